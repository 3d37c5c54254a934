// simt_races.h — what ThreadSanitizer is told of the threads of simt_machine.h, so that it finds their races as racecheck does on a
// device: a place that one thread writes and another reads or writes with no barrier between the two.
//
// Every fiber is a thread to it. Barriers order what was before them and what comes behind; shuffles, votes and products order
// nothing, though all threads of a warp meet in them. The machine's own books are not looked at.
// Without ThreadSanitizer all of it is nothing.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#define TIERKV_FINDS_RACES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TIERKV_FINDS_RACES 1
#endif
#endif

#ifdef TIERKV_FINDS_RACES
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

// A function that is the machine's own: neither looked at nor on the fiber's stack of calls.
#define TIERKV_UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#else
#define TIERKV_UNWATCHED
#endif

namespace tierkv::cuda::simt {

#ifdef TIERKV_FINDS_RACES

// A thread's identity. The one that makes it has done everything before it that it has done so far.
struct Identity {
  using Name = void*;
  Identity() : name(__tsan_create_fiber(0)) {}
  ~Identity() { __tsan_destroy_fiber(name); }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;
  const Name name;
};
TIERKV_UNWATCHED inline Identity::Name present() { return __tsan_get_current_fiber(); }
// To be called right before the switch.
TIERKV_UNWATCHED inline void become(Identity::Name who) { __tsan_switch_to_fiber(who, __tsan_switch_to_fiber_no_sync); }

// Who takes `token` comes behind everything that those did who gave it before.
TIERKV_UNWATCHED inline void give(const void* token) { __tsan_release(const_cast<void*>(token)); }
TIERKV_UNWATCHED inline void take(const void* token) { __tsan_acquire(const_cast<void*>(token)); }

// The running thread reads what is there, or writes it.
inline void looks_at(const uint8_t* place) { (void)*static_cast<const volatile uint8_t*>(place); }
inline void changes(uint8_t* place) { *static_cast<volatile uint8_t*>(place) = *static_cast<volatile uint8_t*>(place); }

// What the running thread does is not looked at meanwhile.
class Unwatched {
 public:
  TIERKV_UNWATCHED Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  TIERKV_UNWATCHED ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

#else

struct Identity {
  struct Name {};
  Name name;
};
inline Identity::Name present() { return {}; }
inline void become(Identity::Name) {}
inline void give(const void*) {}
inline void take(const void*) {}
inline void looks_at(const uint8_t*) {}
inline void changes(uint8_t*) {}
class Unwatched {
 public:
  Unwatched() {}  // not trivial, so that nobody calls it unused
};

#endif

}  // namespace tierkv::cuda::simt
