// arena_vector.h — a growing array of plain values in the arena, for the cache's own books.
//
// Like std::vector for trivially copyable T, but growth reports failure instead of throwing, so that a budget can refuse it, and
// its capacity is counted. At most 4 GiB: every head of every layer has some, and they should be small. Not copyable; clone_from()
// copies and may fail. The owner calls reset() with the arena it was used with.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/arena.h"

namespace tierkv {

template <class T>
class ArenaVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ArenaVector() = default;
  ArenaVector(const ArenaVector&) = delete;
  ArenaVector& operator=(const ArenaVector&) = delete;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t capacity() const { return bytes_ / sizeof(T); }
  size_t storage_bytes() const { return bytes_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

  [[nodiscard]] bool reserve(Arena& arena, size_t wanted, Arena::Use use = Arena::Use::normal) {
    if (wanted <= capacity()) return true;
    size_t grown = capacity() + capacity() / 2;
    if (grown < wanted) grown = wanted;
    const size_t bytes = Arena::rounded(grown * sizeof(T));
    if (bytes > UINT32_MAX) return false;
    T* fresh = static_cast<T*>(arena.allocate(bytes, MemoryTag::bookkeeping, use));
    if (!fresh) return false;
    if (size_) std::memcpy(fresh, data_, size_ * sizeof(T));
    free_storage(arena);
    data_ = fresh;
    bytes_ = static_cast<uint32_t>(bytes);
    return true;
  }

  [[nodiscard]] bool push_back(Arena& arena, const T& value, Arena::Use use = Arena::Use::normal) {
    const T copy = value;  // `value` may live in the storage that is about to move
    if (!reserve(arena, size_ + 1, use)) return false;
    data_[size_++] = copy;
    return true;
  }
  // REQUIRES: capacity() > size(); for code that reserved before it began to change things.
  void push_reserved(const T& value) { data_[size_++] = value; }

  void resize_down(size_t n) { size_ = static_cast<uint32_t>(n); }
  void erase(size_t first, size_t count) {
    if (count == 0) return;
    std::memmove(data_ + first, data_ + first + count, (size_ - first - count) * sizeof(T));
    size_ -= static_cast<uint32_t>(count);
  }

  [[nodiscard]] bool clone_from(Arena& arena, const ArenaVector& other) {
    if (!reserve(arena, other.size_)) return false;
    if (other.size_) std::memcpy(data_, other.data_, other.size_ * sizeof(T));
    size_ = other.size_;
    return true;
  }

  void swap(ArenaVector& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(bytes_, other.bytes_);
  }

  void reset(Arena& arena) {
    free_storage(arena);
    data_ = nullptr;
    size_ = bytes_ = 0;
  }

 private:
  void free_storage(Arena& arena) {
    if (data_) arena.release(data_, bytes_, MemoryTag::bookkeeping);
  }

  T* data_ = nullptr;
  uint32_t size_ = 0;
  uint32_t bytes_ = 0;
};

}  // namespace tierkv
