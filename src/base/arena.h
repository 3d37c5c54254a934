// arena.h — the one place the cache's memory comes from: page regions from the system, cut by best fit in steps of 64 bytes.
//
// Sizes vary by codec and head, and blocks are freed roughly in the order they were made, so a best-fit cut with coalescing wastes
// less than size classes would, and the books are exact: mapped() == sum of allocated(tag) + free_bytes(), always.
// Sized release keeps no header per allocation. A region that becomes empty goes back to the system (a whole one is kept, until
// trim()); with a limit it stays, faulted in and ready, until trim() or until the limit needs its bytes for another shape.
//
// Regions:  2 MiB of addresses each (more for what is larger). The first ones grow page by page, and shrink, and count as far as
//           they are used, because pages that nobody touched are not in memory; an arena past 32 MiB takes the rest whole, as huge
//           pages where the system has them; a region that has grown to its end becomes one at once (Linux 6.1).
// Pools:    archive blocks, which stay, lie in regions apart from what comes and goes (tails, warm blocks, lists): in the holes of
//           warm blocks, which are all of one size, they left gaps that fit nothing, 5 % of a cache of 8K tokens. Near the limit
//           each pool serves the other; books, which stay, go as far to the front there as they can.
// Books:    trees of what is free, in nodes that allocate() reserves: with n pieces handed out there are at most n free ones more
//           than regions, so that everything that frees can be written down in nodes that are there. Nothing that frees needs
//           memory.
// Limit:    mapped() never exceeds it. A part of it, the headroom, only serves Use::relief: the work that frees memory (merging
//           half-dead blocks) must still be able to allocate when everything else no longer may.
// Threads:  safe; one mutex.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/node_pool.h"

namespace tierkv {

// The first four are the tiers in order of tierkv::Tier.
enum class MemoryTag : uint8_t { sink = 0, hot = 1, warm = 2, archive = 3, bookkeeping = 4, parked = 5, count = 6 };

class Arena {
 public:
  enum class Use : uint8_t { normal, relief };
  static constexpr size_t kAlign = 64;

  explicit Arena(size_t limit = 0, size_t headroom = 0);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, contents undefined. Null when the limit or the system says no; nothing has changed then but what was mapped.
  void* allocate(size_t bytes, MemoryTag tag, Use use = Use::normal) noexcept;
  // `bytes` and `tag` as allocated.
  void release(void* p, size_t bytes, MemoryTag tag) noexcept;
  // `bytes`, as allocated, count under another tag from here on; release() takes that one.
  void retag(size_t bytes, MemoryTag from, MemoryTag to) noexcept;
  void trim() noexcept;

  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  size_t limit() const { return limit_; }
  size_t mapped() const;
  size_t peak() const;
  size_t allocated(MemoryTag tag) const;
  size_t free_bytes() const;
  // All of it at one moment: mapped is the sum of allocated and free_bytes.
  struct Books {
    size_t mapped = 0, peak = 0, free_bytes = 0;
    size_t allocated[static_cast<int>(MemoryTag::count)] = {};
  };
  Books books() const;

 private:
  using Address = uintptr_t;
  static constexpr int kPools = 2;
  static int pool_of(MemoryTag tag) { return tag == MemoryTag::archive ? 1 : 0; }
  void* take(size_t bytes, int pool) noexcept;
  bool grow(size_t bytes, int pool, Use use) noexcept;
  bool grow_open(size_t bytes, int pool, size_t left) noexcept;
  bool map_region(size_t bytes, int pool, size_t left) noexcept;
  bool take_spare(size_t bytes, int pool) noexcept;
  bool reserve_nodes() noexcept;
  bool empty(Address region) const;
  void give(Address at, size_t bytes) noexcept;
  void shrink_open(Address base, Address at, size_t bytes) noexcept;
  void unmap(Address base) noexcept;
  void trim_locked() noexcept;
  size_t used_locked() const;
  Address region_of(Address at) const;
  // Within the nodes that are reserved.
  void add_free(Address at, size_t bytes) noexcept;
  void drop_free(Address at, size_t bytes) noexcept;

  const size_t limit_;
  const size_t headroom_;
  mutable std::mutex mutex_;
  struct Region {
    size_t bytes = 0;     // counted: from the base on, all that was ever cut
    size_t reserved = 0;  // addresses it may grow into
    uint64_t order = 0;   // counts up: the system's addresses are random, what fits where must not be
    int pool = 0;
  };
  struct FreeExtent {
    size_t bytes = 0;
    uint64_t order = 0;
    Address at = 0;
    auto operator<=>(const FreeExtent&) const = default;
  };
  using Regions = std::map<Address, Region, std::less<Address>, NodeAllocator<std::pair<const Address, Region>>>;
  using ByAddress = std::map<Address, size_t, std::less<Address>, NodeAllocator<std::pair<const Address, size_t>>>;
  using BySize = std::set<FreeExtent, std::less<FreeExtent>, NodeAllocator<FreeExtent>>;
  NodePool nodes_;                                     // outlives the trees
  Regions regions_{Regions::allocator_type(&nodes_)};  // by base
  ByAddress free_by_address_{ByAddress::allocator_type(&nodes_)};
  // Best fit first; ties go to the oldest region.
  BySize free_by_size_[kPools] = {BySize(BySize::allocator_type(&nodes_)), BySize(BySize::allocator_type(&nodes_))};
  size_t live_ = 0;            // pieces handed out
  Address open_[kPools] = {};  // the region that grows, or 0
  Address spare_ = 0;          // the empty region that is kept, if it still is empty
  uint64_t next_order_ = 0;
  size_t mapped_ = 0;
  size_t peak_ = 0;
  size_t allocated_[static_cast<int>(MemoryTag::count)] = {};
};

}  // namespace tierkv
