// thread_pool.h — a few workers that share out loops; the calling thread works too.
//
// run(n, body) calls body(i) for every i < n and returns when all are done. Several threads may call run() at once: their loops
// share the workers. Workers look out for the next loop for some microseconds and then sleep: the machine may be oversubscribed.
//
// Errors:   a system that refuses threads gives a pool with fewer of them, down to the caller alone. run() allocates nothing. A
//           body that throws ends its loop: indices that nobody has begun are left out, and run() throws the first exception when
//           those that were begun are done.
// REQUIRES: body does not call run() of the same pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tierkv {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 makes no worker at all.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // As many as there are, which may be fewer than were asked for.
  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  template <class Body>
  void run(uint32_t n, const Body& body) {
    run_loop(n, {&body, [](const void* of, uint32_t i) { (*static_cast<const Body*>(of))(i); }});
  }

 private:
  // A body without its type: a std::function of it might have to allocate.
  struct Task {
    const void* body;
    void (*call)(const void* body, uint32_t i);
    void operator()(uint32_t i) const { call(body, i); }
  };
  // Lives on the stack of its caller, and in the list as long as it has indices left.
  struct Loop {
    Task task;
    uint32_t count;
    uint32_t next = 0;
    std::atomic<uint32_t> done = 0;
    std::exception_ptr problem = nullptr;
    Loop* behind = nullptr;
  };
  void run_loop(uint32_t n, Task task);
  void work();
  // All under the lock.
  void enqueue(Loop& loop);
  void dequeue(Loop& loop);
  uint32_t take(Loop& loop);  // the next index
  void fail(Loop& loop);      // with the exception that is being handled

  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable finished_;
  Loop* first_ = nullptr;                    // with indices left, the oldest first
  std::atomic<uint32_t> waiting_loops_ = 0;  // how many, for those who look without the lock
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tierkv
