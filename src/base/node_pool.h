// node_pool.h — nodes of one size for the arena's own books, so that writing them down never fails halfway.
//
// reserve() is the only call that asks the system for memory and the only one that can be refused. take() and give() work within
// what is reserved: whoever knows how many nodes it can ever need reserves them before it changes anything, and then frees and
// files away without a word from the system. Pages that no node was written to are addresses, not memory.
// Threads: none of its own; the owner's lock.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace tierkv {

class NodePool {
 public:
  static constexpr size_t kNodeBytes = 80;

  NodePool() = default;
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;
  ~NodePool() {
    while (slabs_) {
      Slab* next = slabs_->next;
      munmap(slabs_, kSlabBytes);
      slabs_ = next;
    }
  }

  // Room for `nodes` in all, those that are taken included. False: the system refused, and nothing has changed.
  [[nodiscard]] bool reserve(size_t nodes) noexcept {
    while (capacity_ < nodes) {
      void* p = mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) return false;
      append(new (p) Slab);
      capacity_ += kSlabNodes;
    }
    return true;
  }

  // REQUIRES: fewer are taken than were reserved. Null otherwise.
  void* take() noexcept {
    if (free_) {
      Free* node = free_;
      free_ = node->next;
      return node;
    }
    if (fresh_ && fresh_->used == kSlabNodes) fresh_ = fresh_->next;
    return fresh_ ? fresh_->node(fresh_->used++) : nullptr;
  }
  void give(void* node) noexcept { free_ = new (node) Free{free_}; }

  size_t capacity() const { return capacity_; }

 private:
  static constexpr size_t kSlabBytes = size_t{256} << 10;
  struct Slab {
    Slab* next = nullptr;
    size_t used = 0;
    void* node(size_t i) { return reinterpret_cast<std::byte*>(this) + kNodeBytes * (i + 1); }
  };
  struct Free {
    Free* next;
  };
  static constexpr size_t kSlabNodes = kSlabBytes / kNodeBytes - 1;  // the slab's own record is in the place of one
  static_assert(sizeof(Slab) <= kNodeBytes && kNodeBytes % alignof(std::max_align_t) == 0);

  // Behind the others: the earlier ones are used up first.
  void append(Slab* slab) noexcept {
    *end_ = slab;
    end_ = &slab->next;
    if (!fresh_) fresh_ = slab;
  }

  Slab* slabs_ = nullptr;
  Slab** end_ = &slabs_;
  Slab* fresh_ = nullptr;  // the first with nodes that were never taken
  Free* free_ = nullptr;
  size_t capacity_ = 0;
};

// For containers that allocate node by node.
template <class T>
class NodeAllocator {
 public:
  using value_type = T;
  explicit NodeAllocator(NodePool* pool) noexcept : pool_(pool) {}
  template <class U>
  NodeAllocator(const NodeAllocator<U>& other) noexcept : pool_(other.pool()) {}

  T* allocate(size_t n) {
    static_assert(sizeof(T) <= NodePool::kNodeBytes);
    void* p = n == 1 ? pool_->take() : nullptr;
    if (!p) throw std::bad_alloc();
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) noexcept { pool_->give(p); }
  NodePool* pool() const { return pool_; }
  template <class U>
  bool operator==(const NodeAllocator<U>& other) const {
    return pool_ == other.pool();
  }

 private:
  NodePool* pool_;
};

}  // namespace tierkv
