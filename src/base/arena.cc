#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define TIERKV_POISON(p, n) ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(p), n)
#define TIERKV_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(p), n)
#else
#define TIERKV_POISON(p, n) ((void)(p), (void)(n))
#define TIERKV_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

namespace tierkv {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSmallRegion = size_t{64} << 10;
constexpr size_t kLargeRegion = size_t{2} << 20;  // what the system maps with one entry of its tables, where it does
constexpr size_t kLargest = size_t{1} << 48;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Regions grow with the arena, so that the unused end of the last one stays a small part of the whole, and small budgets get small ones.
size_t region_size(size_t mapped, size_t limit) {
  const size_t least = limit ? std::clamp(whole_pages(limit / 64), 4 * kPage, kSmallRegion) : kSmallRegion;
  return std::clamp(whole_pages(mapped / 16), least, kLargeRegion);
}

void* map_pages(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

// A large region starts at a multiple of its size, so that huge pages can hold it: a long context is read end to end for every token,
// and with small pages the processor spends a fifth of that time looking addresses up.
void* map_large(size_t size) {
  void* p = map_pages(size + kLargeRegion);
  if (!p) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t from = (at + kLargeRegion - 1) / kLargeRegion * kLargeRegion;
  if (from > at) munmap(p, from - at);
  if (from < at + kLargeRegion) munmap(reinterpret_cast<void*>(from + size), at + kLargeRegion - from);
#ifdef MADV_HUGEPAGE
  (void)madvise(reinterpret_cast<void*>(from), size, MADV_HUGEPAGE);  // a wish: without it everything works as before
#endif
  return reinterpret_cast<void*>(from);
}

}  // namespace

Arena::Arena(size_t limit, size_t headroom) : limit_(limit), headroom_(headroom) {}

Arena::~Arena() {
  for (const auto& [base, region] : regions_) {
    TIERKV_UNPOISON(base, region.bytes);
    munmap(reinterpret_cast<void*>(base), region.bytes);
  }
}

void* Arena::allocate(size_t bytes, MemoryTag tag, Use use) noexcept {
  if (bytes > kLargest) return nullptr;  // rounding up must not wrap
  const size_t need = rounded(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  // What relief gave back may still be mapped; it stays relief's.
  if (limit_ != 0 && use == Use::normal && used_locked() + need > limit_ - std::min(limit_, headroom_)) return nullptr;
  try {
    void* p = take(need);
    if (!p && map_region(need, use)) p = take(need);
    if (!p) {
      trim_locked();  // an empty region of the wrong size may stand between us and the limit
      if (map_region(need, use)) p = take(need);
    }
    if (p) {
      allocated_[static_cast<int>(tag)] += need;
      TIERKV_UNPOISON(p, need);
    }
    return p;
  } catch (const std::bad_alloc&) {
    return nullptr;  // the books' own nodes
  }
}

void Arena::release(void* p, size_t bytes, MemoryTag tag) noexcept {
  if (!p) return;
  const size_t size = rounded(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  allocated_[static_cast<int>(tag)] -= size;
  TIERKV_POISON(p, size);
  give(reinterpret_cast<Address>(p), size);
}

void* Arena::take(size_t bytes) noexcept {
  const auto it = free_by_size_.lower_bound({bytes, 0, 0});
  if (it == free_by_size_.end()) return nullptr;
  const Address at = it->at;
  const size_t size = it->bytes;
  drop_free(at, size);
  if (size > bytes) add_free(at + bytes, size - bytes);
  return reinterpret_cast<void*>(at);
}

bool Arena::map_region(size_t bytes, Use use) noexcept {
  size_t size = whole_pages(std::max(bytes, region_size(mapped_, limit_)));
  if (limit_ != 0) {
    const size_t allowed = use == Use::relief ? limit_ : limit_ - std::min(limit_, headroom_);
    const size_t left = allowed > mapped_ ? allowed - mapped_ : 0;
    if (size > left) size = whole_pages(bytes);  // near the limit: just what is needed
    if (size > left) return false;
  }
  void* p = size % kLargeRegion == 0 ? map_large(size) : map_pages(size);
  if (!p) return false;
  regions_.emplace(reinterpret_cast<Address>(p), Region{size, next_order_++});
  add_free(reinterpret_cast<Address>(p), size);
  TIERKV_POISON(p, size);
  mapped_ += size;
  peak_ = std::max(peak_, mapped_);
  return true;
}

void Arena::give(Address at, size_t bytes) noexcept {
  const Address region = region_of(at);
  const Address region_end = region + regions_.at(region).bytes;
  const auto next = free_by_address_.lower_bound(at);
  if (next != free_by_address_.begin()) {
    const auto [before, size] = *std::prev(next);
    if (before >= region && before + size == at) {
      drop_free(before, size);
      at = before;
      bytes += size;
    }
  }
  const auto after = free_by_address_.find(at + bytes);
  if (after != free_by_address_.end() && after->first < region_end) {
    const size_t size = after->second;
    drop_free(at + bytes, size);
    bytes += size;
  }
  add_free(at, bytes);
  // One empty region is kept against thrashing at a region's edge; with a limit, all are: that memory is the cache's to use.
  if (limit_ == 0 && bytes == region_end - region && free_by_size_.size() > 1) {
    for (const auto& [base, other] : regions_) {
      if (base == region) continue;
      const auto it = free_by_address_.find(base);
      if (it != free_by_address_.end() && it->second == other.bytes) {
        unmap(region);
        return;
      }
    }
  }
}

void Arena::unmap(Address base) noexcept {
  const size_t size = regions_.at(base).bytes;
  drop_free(base, size);
  regions_.erase(base);
  mapped_ -= size;
  TIERKV_UNPOISON(base, size);
  munmap(reinterpret_cast<void*>(base), size);
}

void Arena::trim() noexcept {
  std::lock_guard lock(mutex_);
  trim_locked();
}

void Arena::trim_locked() noexcept {
  for (auto it = regions_.begin(); it != regions_.end();) {
    const Address base = it->first;
    const size_t size = (it++)->second.bytes;
    const auto free = free_by_address_.find(base);
    if (free != free_by_address_.end() && free->second == size) unmap(base);
  }
}

Arena::Address Arena::region_of(Address at) const { return std::prev(regions_.upper_bound(at))->first; }

void Arena::add_free(Address at, size_t bytes) {
  free_by_address_.emplace(at, bytes);
  free_by_size_.insert({bytes, regions_.at(region_of(at)).order, at});
}

void Arena::drop_free(Address at, size_t bytes) {
  free_by_address_.erase(at);
  free_by_size_.erase({bytes, regions_.at(region_of(at)).order, at});
}

size_t Arena::mapped() const {
  std::lock_guard lock(mutex_);
  return mapped_;
}

size_t Arena::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

size_t Arena::allocated(MemoryTag tag) const {
  std::lock_guard lock(mutex_);
  return allocated_[static_cast<int>(tag)];
}

size_t Arena::free_bytes() const {
  std::lock_guard lock(mutex_);
  return mapped_ - used_locked();
}

size_t Arena::used_locked() const {
  size_t used = 0;
  for (const size_t bytes : allocated_) used += bytes;
  return used;
}

}  // namespace tierkv
