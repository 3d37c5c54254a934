#include "cuda/mirror.h"

#include "base/status_macros.h"

namespace tierkv::cuda {

// Blocks of another length with the same checksum are other blocks.
uint64_t Mirror::name_of(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
  return sealed ^ (static_cast<uint64_t>(rounded(rounded(key_bytes) + value_bytes)) << 32) ^ key_bytes;
}

std::optional<Mirror::Place> Mirror::find(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
  const auto found = known_.find(name_of(sealed, key_bytes, value_bytes));
  if (found == known_.end()) return std::nullopt;
  entries_.splice(entries_.end(), entries_, found->second);
  found->second->used = call_;
  return Place{found->second->at, found->second->at + rounded(key_bytes)};
}

Result<Mirror::Place> Mirror::place(uint64_t sealed, std::span<const std::byte> keys, std::span<const std::byte> values,
                                    cudaStream_t stream) {
  const size_t offset = rounded(keys.size()), size = rounded(offset + values.size());
  const uint64_t name = name_of(sealed, keys.size(), values.size());
  TIERKV_ASSIGN_OR_RETURN(uint8_t* const at, take(size));
  for (const auto& [from, to] : {std::pair{keys, at}, std::pair{values, at + offset}}) {
    const cudaError_t copied = cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream);
    if (copied != cudaSuccess) {
      free_[size].push_back(at);
      return status_of(copied, "copying a block");
    }
  }
  entries_.push_back({name, size, at, offset, call_});
  known_.emplace(name, std::prev(entries_.end()));
  ++uploads_;
  return Place{at, at + offset};
}

Result<uint8_t*> Mirror::take(size_t size) {
  for (;;) {
    if (auto& list = free_[size]; !list.empty()) {
      uint8_t* const at = list.back();
      list.pop_back();
      return at;
    }
    if (slab_used_ + size > kSlab && (limit_ == 0 || bytes() + kSlab <= limit_)) {
      auto slab = std::make_unique<Buffer>();
      const Status made = slab->reserve(kSlab);
      if (made.ok()) {
        slabs_.push_back(std::move(slab));
        slab_used_ = 0;
      } else if (made.code() != StatusCode::resource_exhausted) {
        return made;
      }
    }
    if (slab_used_ + size <= kSlab) {
      uint8_t* const at = slabs_.back()->data() + slab_used_;
      slab_used_ += size;
      return at;
    }
    if (!drop_oldest()) {
      return error(StatusCode::resource_exhausted, "the device has no room for the blocks of one call: ", bytes() >> 20,
                   " MiB hold ", blocks(), " blocks; raise byte_limit, attend to fewer sequences a call, or detach");
    }
  }
}

// False: the oldest is of the call under way.
bool Mirror::drop_oldest() {
  if (entries_.empty() || entries_.front().used == call_) return false;
  const Entry& oldest = entries_.front();
  free_[oldest.size].push_back(oldest.at);
  known_.erase(oldest.sealed);
  entries_.pop_front();
  return true;
}

}  // namespace tierkv::cuda
