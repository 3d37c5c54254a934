// mapped_memory.h — memory for a moment: pages of the system's that go back to it at once, and the heap's own free pages after work
// that used many.
#pragma once

#include <cstddef>

namespace tierkv {

class MappedMemory {
 public:
  // Zeros. Throws bad_alloc.
  explicit MappedMemory(size_t bytes);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Large work leaves its freed pieces with the heap, which keeps them. Where the C library can, they go back to the system.
void return_heap_memory() noexcept;

struct ReturnHeapMemory {
  ~ReturnHeapMemory() { return_heap_memory(); }
};

}  // namespace tierkv
