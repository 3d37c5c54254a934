#include "cuda/memory/places.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"

namespace tierkv::cuda {

// Blocks of another length with the same checksum are other blocks.
uint64_t Places::name_of(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
  return sealed ^ (static_cast<uint64_t>(rounded(rounded(key_bytes) + value_bytes)) << 32) ^ key_bytes;
}

Places::Entry* Places::look(uint64_t sealed, size_t key_bytes, size_t value_bytes) const {
  const auto found = known_.find(name_of(sealed, key_bytes, value_bytes));
  return found == known_.end() ? nullptr : found->second;
}

Places::Entry* Places::find(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
  const auto found = known_.find(name_of(sealed, key_bytes, value_bytes));
  if (found == known_.end()) return nullptr;
  Entry* const entry = found->second;
  if (entry->holds == 0) entries_.splice(entries_.end(), entries_, entry->self);
  entry->used = call_;
  return entry;
}

Result<Places::Entry*> Places::add(uint64_t sealed, size_t key_bytes, size_t value_bytes, size_t keys_there, size_t values_there) {
  const size_t offset = rounded(keys_there), size = rounded(offset + values_there);
  const uint64_t name = name_of(sealed, key_bytes, value_bytes);
  TIERKV_ASSIGN_OR_RETURN(uint8_t* const at, take(size));
  entries_.push_back({name, size, at, at + offset, call_});
  Entry* const entry = &entries_.back();
  entry->self = std::prev(entries_.end());
  entry->own_keys = {key_bytes, keys_there}, entry->own_values = {value_bytes, values_there};
  known_.emplace(name, entry);
  return entry;
}

void Places::forget(Entry* entry) {
  free_[entry->size].push_back(entry->keys);
  known_.erase(entry->name);
  Entries& own = entry->holds == 0 ? entries_ : held_;
  own.erase(entry->self);
}

void Places::hold(Entry* entry) {
  if (entry->holds++ == 0) held_.splice(held_.end(), entries_, entry->self);
}

void Places::let_go(Entry* entry) {
  if (--entry->holds != 0) return;
  entries_.splice(entry->used == call_ ? entries_.end() : entries_.begin(), held_, entry->self);
}

void Places::replaced(Entry* entry) {
  let_go(entry);
  if (entry->holds == 0 && entry->used != call_) forget(entry);
}

void Places::keep(Entry* entry) {
  hold(entry);
  if (entry->kept++ == 0) kept_bytes_ += entry->size, ++kept_blocks_;
}

void Places::give_up(Entry* entry) {
  if (--entry->kept == 0) kept_bytes_ -= entry->size, --kept_blocks_;
  replaced(entry);
}

// 0: the limit has no room for it.
size_t Places::next_slab(size_t size) const {
  const size_t share = (slab_bytes_ / kSlabShare + kSlabStep - 1) / kSlabStep * kSlabStep;
  const size_t slab = std::max(std::clamp(share, kLeastSlab, kMostSlab), size);
  if (limit_ == 0 || slab_bytes_ + slab <= limit_) return slab;
  return slab_bytes_ + size <= limit_ ? limit_ - slab_bytes_ : 0;
}

Result<uint8_t*> Places::take(size_t size) {
  for (;;) {
    if (auto& list = free_[size]; !list.empty()) {
      uint8_t* const at = list.back();
      list.pop_back();
      return at;
    }
    if (const size_t fresh = slab_used_ + size > slab_size_ ? next_slab(size) : 0; fresh != 0) {
      const Result<uint8_t*> slab = more_(fresh);
      if (slab.ok()) {
        slab_ = *slab, slab_size_ = fresh, slab_used_ = 0, slab_bytes_ += fresh;
      } else if (slab.status().code() != StatusCode::resource_exhausted) {
        return slab.status();
      }
    }
    if (slab_used_ + size <= slab_size_) return slab_ + std::exchange(slab_used_, slab_used_ + size);
    if (!drop_oldest()) {
      ++refusals_;
      return error(StatusCode::resource_exhausted, "the device has no room for the blocks of one call: ", bytes() >> 20,
                   " MiB hold ", blocks(), " blocks; raise byte_limit, attend to fewer sequences a call, or detach");
    }
  }
}

// False: the oldest is of the call under way.
bool Places::drop_oldest() {
  if (entries_.empty() || entries_.front().used == call_) return false;
  forget(&entries_.front());
  return true;
}

}  // namespace tierkv::cuda
