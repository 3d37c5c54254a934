#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

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
constexpr size_t kRegion = size_t{2} << 20;  // what the system maps with one entry of its tables, where it does
constexpr size_t kWholeFrom = 16 * kRegion;  // with this much mapped, the unused end of a region is a small part of the whole
constexpr size_t kWorthGiving = size_t{64} << 10;
constexpr size_t kLargest = size_t{1} << 48;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void* map_pages(size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

// Starts at a multiple of kRegion, so that huge pages can hold it: a long context is read end to end for every token,
// and with small pages the processor spends a fifth of that time looking addresses up.
void* map_aligned(size_t size) {
  void* p = map_pages(size + kRegion);
  if (!p) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t from = (at + kRegion - 1) / kRegion * kRegion;
  if (from > at) munmap(p, from - at);
  if (from < at + kRegion) munmap(reinterpret_cast<void*>(from + size), at + kRegion - from);
  return reinterpret_cast<void*>(from);
}

// A wish: without it everything works as before. A region that grows must not get a huge page at its first touch, which would be in
// memory whole.
void wish_huge_pages([[maybe_unused]] uintptr_t at, [[maybe_unused]] size_t size, [[maybe_unused]] bool huge) {
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
  (void)madvise(reinterpret_cast<void*>(at), size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

// A region that has grown to its end lies in small pages; the kernel would get to it in its own time, minutes later. One copy of 2
// MiB, once. A wish too: kernels before 6.1 do not know it.
void collapse_pages([[maybe_unused]] uintptr_t at, [[maybe_unused]] size_t size) {
#if defined(__linux__)
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which headers of 2022 have not got
  (void)madvise(reinterpret_cast<void*>(at), size, kCollapse);
#endif
}

// Pieces that are looked at for one that lies early. More would find little better, and this is for every small piece near a limit.
constexpr int kLookedAt = 256;

// Of the smallest that fit, the one that lies first in the oldest region.
template <class BySize>
auto earliest_fit(const BySize& pieces, size_t bytes) {
  auto it = pieces.lower_bound({bytes, 0, 0});
  auto best = it;
  for (int looked = 0; it != pieces.end() && looked < kLookedAt; ++it, ++looked) {
    if (std::pair(it->order, it->at) < std::pair(best->order, best->at)) best = it;
  }
  return best;
}

}  // namespace

Arena::Arena(size_t limit, size_t headroom) : limit_(limit), headroom_(headroom) {}

Arena::~Arena() {
  for (const auto& [base, region] : regions_) {
    TIERKV_UNPOISON(base, region.reserved);
    munmap(reinterpret_cast<void*>(base), region.reserved);
  }
}

void* Arena::allocate(size_t bytes, MemoryTag tag, Use use) noexcept {
  if (bytes > kLargest) return nullptr;  // rounding up must not wrap
  const size_t need = rounded(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  // What relief gave back may still be mapped; it stays relief's.
  if (limit_ != 0 && use == Use::normal && used_locked() + need > limit_ - std::min(limit_, headroom_)) return nullptr;
  if (!reserve_nodes()) return nullptr;
  const int pool = pool_of(tag);
  const auto cut = [&](const FreeExtent piece) {
    drop_free(piece.at, piece.bytes);
    if (piece.bytes > need) add_free(piece.at + need, piece.bytes - need);
    return reinterpret_cast<void*>(piece.at);
  };
  void* p = take(need, pool);
  if (!p && grow(need, pool, use)) p = take(need, pool);
  // Books stay for as long as their sequence. Among archive blocks, which come and go here where they are spilled, each would keep
  // its neighbours' room from becoming one: with the best fit 10 of 24 MiB were free and no tail of 32 KiB found a place.
  if (!p && tag == MemoryTag::bookkeeping) {
    const auto& others = free_by_size_[1 - pool];
    if (const auto it = earliest_fit(others, need); it != others.end()) p = cut(*it);
  }
  if (!p) p = take(need, 1 - pool);
  if (!p) {
    trim_locked();  // an empty region of the wrong size may stand between us and the limit
    if (grow(need, pool, use)) p = take(need, pool);
  }
  if (!p) return nullptr;
  ++live_;
  allocated_[static_cast<int>(tag)] += need;
  TIERKV_UNPOISON(p, need);
  return p;
}

// Free pieces never touch, so a region has at most one more of them than pieces handed out; each is in two trees. One piece and one
// region more than there are: what an allocation adds.
bool Arena::reserve_nodes() noexcept {
  const size_t regions = regions_.size() + 1;
  return nodes_.reserve(2 * (live_ + 1 + regions) + regions);
}

void Arena::release(void* p, size_t bytes, MemoryTag tag) noexcept {
  if (!p) return;
  const size_t size = rounded(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  allocated_[static_cast<int>(tag)] -= size;
  --live_;
  TIERKV_POISON(p, size);
  give(reinterpret_cast<Address>(p), size);
}

void Arena::retag(size_t bytes, MemoryTag from, MemoryTag to) noexcept {
  const size_t size = rounded(std::max<size_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  allocated_[static_cast<int>(from)] -= size;
  allocated_[static_cast<int>(to)] += size;
}

void* Arena::take(size_t bytes, int pool) noexcept {
  const auto it = free_by_size_[pool].lower_bound({bytes, 0, 0});
  if (it == free_by_size_[pool].end()) return nullptr;
  const Address at = it->at;
  const size_t size = it->bytes;
  drop_free(at, size);
  if (size > bytes) add_free(at + bytes, size - bytes);
  return reinterpret_cast<void*>(at);
}

// A free piece of `bytes` or more for the pool, which it has not got yet.
bool Arena::grow(size_t bytes, int pool, Use use) noexcept {
  const auto left = [&]() -> size_t {
    if (limit_ == 0) return kLargest;
    const size_t allowed = use == Use::relief ? limit_ : limit_ - std::min(limit_, headroom_);
    return allowed > mapped_ ? allowed - mapped_ : 0;
  };
  return take_spare(bytes, pool) || grow_open(bytes, pool, left()) || map_region(bytes, pool, left());
}

// The empty region that was kept changes pools.
bool Arena::take_spare(size_t bytes, int pool) noexcept {
  if (!spare_ || !empty(spare_)) return false;
  Region& region = regions_.at(spare_);
  if (region.pool == pool || region.bytes < bytes) return false;
  drop_free(spare_, region.bytes);
  if (open_[region.pool] == spare_) open_[region.pool] = 0;
  region.pool = pool;
  add_free(spare_, region.bytes);
  return true;
}

bool Arena::grow_open(size_t bytes, int pool, size_t left) noexcept {
  const Address base = open_[pool];
  if (!base) return false;
  Region& region = regions_.at(base);
  // The last piece counts if it is free.
  const auto next = free_by_address_.lower_bound(base + region.bytes);
  const auto last = next == free_by_address_.begin() ? free_by_address_.end() : std::prev(next);
  const bool joins = last != free_by_address_.end() && last->first >= base && last->first + last->second == base + region.bytes;
  const Address at = joins ? last->first : base + region.bytes;
  const size_t had = joins ? last->second : 0;
  const size_t more = whole_pages(bytes - std::min(bytes, had));
  const size_t room = region.reserved - region.bytes;
  // An end too small for this one is counted too when it is small, so that the region is whole and huge pages may hold it.
  const bool fits = more <= room, ends = room <= kRegion / 32;
  const size_t taken = fits ? more : room;
  if (taken == 0 || taken > left || !(fits || ends)) return false;
  if (had) drop_free(at, had);
  region.bytes += taken;
  add_free(at, had + taken);
  mapped_ += taken;
  peak_ = std::max(peak_, mapped_);
  if (region.bytes == region.reserved) {
    wish_huge_pages(base, region.reserved, true);
    collapse_pages(base, region.reserved);
    open_[pool] = 0;
  }
  return fits;
}

bool Arena::map_region(size_t bytes, int pool, size_t left) noexcept {
  const size_t need = whole_pages(bytes);
  if (need > left) return false;
  const size_t reserved = std::max(need, kRegion);
  const bool whole = mapped_ >= kWholeFrom && reserved <= left;
  void* p = reserved % kRegion == 0 ? map_aligned(reserved) : map_pages(reserved);
  if (!p) return false;
  const auto base = reinterpret_cast<Address>(p);
  const size_t size = whole ? reserved : need;
  if (reserved % kRegion == 0) wish_huge_pages(base, reserved, size == reserved);
  regions_.emplace(base, Region{size, reserved, next_order_++, pool});
  add_free(base, size);
  TIERKV_POISON(p, reserved);
  const auto room = [&](Address at) { return at ? regions_.at(at).reserved - regions_.at(at).bytes : 0; };
  if (room(base) > room(open_[pool])) open_[pool] = base;
  mapped_ += size;
  peak_ = std::max(peak_, mapped_);
  return true;
}

bool Arena::empty(Address region) const {
  const auto at = regions_.find(region);
  const auto free = free_by_address_.find(region);
  return at != regions_.end() && free != free_by_address_.end() && free->second == at->second.bytes;
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
  if (limit_ != 0) return;  // that memory is the cache's to use
  if (open_[regions_.at(region).pool] == region && at + bytes == region_end) return shrink_open(region, at, bytes);
  // One empty region is kept against thrashing at a region's edge.
  if (bytes != region_end - region) return;
  if (spare_ && spare_ != region && empty(spare_)) unmap(region);
  else spare_ = region;
}

// A region that grows page by page gives its free end back, if it is worth the faults when it grows again.
void Arena::shrink_open(Address base, Address at, size_t bytes) noexcept {
  Region& region = regions_.at(base);
  if (bytes == region.bytes) return unmap(base);
  const Address keep = base + whole_pages(at - base);
  const size_t end = base + region.bytes - keep;
  if (end < kWorthGiving || madvise(reinterpret_cast<void*>(keep), end, MADV_DONTNEED) != 0) return;
  drop_free(at, bytes);
  region.bytes -= end;
  mapped_ -= end;
  if (keep > at) add_free(at, keep - at);
}

void Arena::unmap(Address base) noexcept {
  const Region region = regions_.at(base);
  drop_free(base, region.bytes);
  if (open_[region.pool] == base) open_[region.pool] = 0;
  if (spare_ == base) spare_ = 0;
  regions_.erase(base);
  mapped_ -= region.bytes;
  TIERKV_UNPOISON(base, region.reserved);
  munmap(reinterpret_cast<void*>(base), region.reserved);
}

void Arena::trim() noexcept {
  std::lock_guard lock(mutex_);
  trim_locked();
}

void Arena::trim_locked() noexcept {
  for (auto it = regions_.begin(); it != regions_.end();) {
    const Address base = (it++)->first;
    if (empty(base)) unmap(base);
  }
}

Arena::Address Arena::region_of(Address at) const { return std::prev(regions_.upper_bound(at))->first; }

void Arena::add_free(Address at, size_t bytes) noexcept {
  free_by_address_.emplace(at, bytes);
  const Region& region = regions_.at(region_of(at));
  free_by_size_[region.pool].insert({bytes, region.order, at});
}

void Arena::drop_free(Address at, size_t bytes) noexcept {
  free_by_address_.erase(at);
  const Region& region = regions_.at(region_of(at));
  free_by_size_[region.pool].erase({bytes, region.order, at});
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

Arena::Books Arena::books() const {
  std::lock_guard lock(mutex_);
  Books out{mapped_, peak_, mapped_ - used_locked(), {}};
  std::copy(std::begin(allocated_), std::end(allocated_), std::begin(out.allocated));
  return out;
}

size_t Arena::used_locked() const {
  size_t used = 0;
  for (const size_t bytes : allocated_) used += bytes;
  return used;
}

}  // namespace tierkv
