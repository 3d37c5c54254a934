// thread_pool.h — a few workers that share out loops; the calling thread works too.
//
// run(n, body) calls body(i) for every i < n and returns when all are done. Several threads may call run() at once: their loops
// share the workers. Workers look out for the next loop for some microseconds and then sleep: the machine may be oversubscribed.
// REQUIRES: body does not throw and does not call run() of the same pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
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

  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }
  void run(uint32_t n, const std::function<void(uint32_t)>& body);

 private:
  struct Loop {
    const std::function<void(uint32_t)>* body;
    uint32_t count;
    uint32_t next = 0;
    std::atomic<uint32_t> done = 0;
  };
  void work();
  uint32_t take(Loop& loop);  // the next index; under the lock

  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable finished_;
  std::deque<Loop*> loops_;                // with indices left
  std::atomic<size_t> waiting_loops_ = 0;  // as many, for those who look without the lock
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tierkv
