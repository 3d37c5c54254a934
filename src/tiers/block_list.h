// block_list.h — the blocks of a stream, oldest first, and a version of them (version.h).
//
// Every access that could change the list, or a reference in it, counts as a change, from its place on; only access through const
// does not. So nobody can forget to say it, and whoever keeps something made of the list (views, descriptors on a device) can trust
// the number, and what is said to have stayed at the front. The
// state of a block itself (resident, packed, spilled) is changed by the holder of its only reference, under the sequence's lock and
// through an access of this kind.
// A pointer or reference to an element must not outlive the lock under which it was got.
#pragma once

#include "base/arena_vector.h"
#include "tiers/block.h"
#include "tiers/version.h"

namespace tierkv::tiers {

class BlockList {
 public:
  uint64_t version() const { return version_.number(); }
  uint64_t drawn_version() const { return version_.drawn(); }
  Version::Step step() const { return version_.step(); }

  size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  size_t storage_bytes() const { return list_.storage_bytes(); }
  const BlockRef& operator[](size_t i) const { return list_[i]; }
  const BlockRef& back() const { return list_.back(); }
  const BlockRef* begin() const { return list_.begin(); }
  const BlockRef* end() const { return list_.end(); }

  BlockRef& operator[](size_t i) { return changing(i)[i]; }
  BlockRef& back() { return changing(size() - 1).back(); }
  BlockRef* begin() { return changing().begin(); }
  BlockRef* end() { return changing().end(); }

  // As ArenaVector.
  [[nodiscard]] bool reserve(Arena& arena, size_t wanted) { return changing(size()).reserve(arena, wanted); }
  [[nodiscard]] bool push_back(Arena& arena, const BlockRef& ref, Arena::Use use) {
    return changing(size()).push_back(arena, ref, use);
  }
  void push_reserved(const BlockRef& ref) { changing(size()).push_reserved(ref); }
  void resize_down(size_t n) { changing(n).resize_down(n); }
  void erase(size_t first, size_t count) {
    if (count != 0) changing(first).erase(first, count);
  }
  void swap(BlockList& other) { changing().swap(other.changing()); }
  void reset(Arena& arena) { changing().reset(arena); }

 private:
  ArenaVector<BlockRef>& changing(size_t from = 0) {
    version_.may_change_from(from);
    return list_;
  }

  ArenaVector<BlockRef> list_;
  Version version_;
};

}  // namespace tierkv::tiers
