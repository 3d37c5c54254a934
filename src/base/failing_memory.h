// failing_memory.h — for tests: a process whose memory runs out at a chosen request.
//
//   FailingMemory::arm(n, FailingMemory::Mode::once);  // the n-th request from here on, counted from 1, is refused
//   ... the call under test ...
//   const bool refused = FailingMemory::disarm();      // false: it made fewer than n requests
//
// Armed with Where::inside it counts only the requests of threads that are in a Scope(true): where a library that cannot do without
// memory calls back into ours, and ours into it.
//
// Counts malloc, calloc, realloc, the aligned ones, and mmap, of all threads; under a sanitizer, whose malloc it must not replace,
// operator new and mmap; under ThreadSanitizer, which must see every mapping, operator new alone. Defines those functions: included
// by one file of a test program, and by nothing else.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tierkv::testing {

class FailingMemory {
 public:
  enum class Mode { once, from_then_on };
  enum class Where { everywhere, inside };

  // What the thread does until the end of the scope is inside, or not.
  class Scope {
   public:
    explicit Scope(bool inside) : before_(inside_) { inside_ = inside; }
    ~Scope() { inside_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const bool before_;
  };

  static void arm(long nth, Mode mode, Where where = Where::everywhere) {
    mode_ = mode;
    where_ = where;
    left_ = nth;
    refused_ = false;
    armed_ = true;
  }
  static bool disarm() {
    armed_ = false;
    return refused_;
  }
  // Whether the request that is being made is to be refused.
  static bool refuses() {
    if (!armed_ || (where_ == Where::inside && !inside_)) return false;
    const long left = --left_;
    if (left > 0 || (left < 0 && mode_ == Mode::once)) return false;
    refused_ = true;
    return true;
  }

 private:
  static inline std::atomic<bool> armed_{false}, refused_{false};
  static inline std::atomic<long> left_{0};
  static inline Mode mode_ = Mode::once;
  static inline Where where_ = Where::everywhere;
  static inline thread_local bool inside_ = false;
};

}  // namespace tierkv::testing

#ifndef __SANITIZE_THREAD__
extern "C" void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  const long p = ::syscall(SYS_mmap, at, size, protection, flags, fd, offset);
  return p == -1 ? MAP_FAILED : reinterpret_cast<void*>(p);
}
#endif

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* p, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) return errno = ENOMEM, nullptr;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) return errno = ENOMEM, nullptr;
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) return errno = ENOMEM, nullptr;
  return __libc_realloc(p, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) return errno = ENOMEM, nullptr;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  if (tierkv::testing::FailingMemory::refuses()) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}
}

#else

// Not inlined: gcc would see a malloc in one and a free in the other, and warn of a mismatch that is none.
__attribute__((noinline)) void* operator new(size_t size) {
  void* p = tierkv::testing::FailingMemory::refuses() ? nullptr : std::malloc(size ? size : 1);
  if (!p) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return tierkv::testing::FailingMemory::refuses() ? nullptr : std::malloc(size ? size : 1);
}
void* operator new[](size_t size) { return operator new(size); }
void* operator new[](size_t size, const std::nothrow_t& tag) noexcept { return operator new(size, tag); }
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { operator delete(p); }
void operator delete(void* p, size_t) noexcept { operator delete(p); }
void operator delete[](void* p, size_t) noexcept { operator delete(p); }

#endif
