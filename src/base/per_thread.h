// per_thread.h — one object a thread, made when it is first asked for and deleted when the thread ends.
//
// Why not thread_local: a thread_local with a destructor must be registered, the C library takes memory for that, and ends the
// process when there is none. Here the want of memory is std::bad_alloc, and the next call tries again.
//
//   Scratch& scratch = PerThread<Scratch>::get();
//
// Threads: every thread has its own. The main thread's lives as long as the process.
#pragma once

#include <pthread.h>

#include <memory>
#include <new>

namespace tierkv {

template <class T>
class PerThread {
 public:
  // Throws std::bad_alloc.
  static T& get() {
    if (!mine_) mine_ = make();
    return *mine_;
  }

 private:
  struct Key {
    pthread_key_t key{};
    const bool made;
    Key() : made(pthread_key_create(&key, destroy) == 0) {}
    // A library that is unloaded must not be called back when a thread ends.
    ~Key() {
      if (made) pthread_key_delete(key);
    }
  };

  static T* make() {
    static Key key;
    auto object = std::make_unique<T>();
    if (!key.made || pthread_setspecific(key.key, object.get()) != 0) throw std::bad_alloc();
    return object.release();
  }

  static void destroy(void* object) {
    delete static_cast<T*>(object);
    mine_ = nullptr;
  }

  static inline constinit thread_local T* mine_ = nullptr;
};

}  // namespace tierkv
