// crew.h — ggml's threads, which all enter a node's operation, as workers for what one of them calls.
//
// The first thread leads: it makes the calls and hands out loops with run(). The others follow(): they take indices of the loops
// until the leader is done with the node. Both are once a node and thread, in the order of the nodes. Waiting is a short spin, then
// sleep: a thread that spins, or yields, on a machine with other work to do gives its time slice to that work for milliseconds,
// once a layer.
//
// Layout:   one word holds the loop that is being handed out: its number, its length and the next index, so that an index is taken
//           by one compare-and-swap that cannot mistake one loop for another. A loop ends only when every index taken has been
//           finished, so whoever has taken one may use the task.
// Errors:   a task that throws does not end its thread, which is ggml's: the other indices are done, then run() throws the first
//           exception to the leader, who must not let it out of lead().
// REQUIRES: begin() before the first node of a graph, when no thread is inside; loops shorter than 2^20, run() by the leader alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/relax.h"

namespace tierkv::llama {

class Crew {
 public:
  static constexpr uint32_t kMaxThreads = 512;  // as many as ggml takes

  Crew() : entered_(kMaxThreads) {}

  void begin() {
    for (Count& count : entered_) count.nodes = 0;
    finished_nodes_.store(0);
  }

  // The leader's side of a node: lead() runs `work`, within which run() shares loops out.
  template <class Work>
  void lead(const Work& work) {
    const uint64_t node = ++entered_[0].nodes;
    work();
    finished_nodes_.store(node);
    wake();
  }

  // The side of thread `ith` > 0.
  void follow(int ith) {
    const uint64_t node = ++entered_[static_cast<size_t>(ith)].nodes;
    const auto finished = [&] { return finished_nodes_.load() >= node; };
    while (!finished()) {
      if (!help()) wait([&] { return finished() || work_left(); });
    }
  }

  void run(uint32_t count, const std::function<void(uint32_t)>& task) {
    if (count == 0) return;
    task_.store(&task, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (word_.load(std::memory_order_relaxed) >> 40) + 1;
    word_.store(loop << 40 | static_cast<uint64_t>(count) << 20);
    if (count > 1) wake();
    while (help()) {
    }
    wait([&] { return done_.load() >= count; });
    if (problem_) std::rethrow_exception(std::exchange(problem_, nullptr));
  }

 private:
  struct alignas(64) Count {
    uint64_t nodes = 0;  // that the thread has entered
  };

  static constexpr uint64_t kField = (1u << 20) - 1;
  static constexpr int kSpins = 2000;  // some ten microseconds: longer than the gaps between two loops of a node

  bool work_left() const {
    const uint64_t seen = word_.load();
    return (seen & kField) < ((seen >> 20) & kField);
  }

  // Takes one index and does it. False if there is none.
  bool help() {
    uint64_t seen = word_.load(std::memory_order_acquire);
    do {
      if ((seen & kField) >= ((seen >> 20) & kField)) return false;
    } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire));
    const auto* task = task_.load(std::memory_order_relaxed);
    const uint32_t count = static_cast<uint32_t>((seen >> 20) & kField);
    try {
      (*task)(static_cast<uint32_t>(seen & kField));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!problem_) problem_ = std::current_exception();
    }
    if (done_.fetch_add(1) + 1 == count) wake();
    return true;
  }

  // Returns when ready() is true. Whoever makes it true calls wake() afterwards: the stores and the counter of sleepers are
  // sequentially consistent, so either the sleeper sees the store or the waker sees the sleeper.
  template <class Ready>
  void wait(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return;
      relax_processor();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    awake_.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }

  void wake() {
    if (sleepers_.load() == 0) return;
    { std::lock_guard lock(mutex_); }  // whoever counted itself is in wait() by now
    awake_.notify_all();
  }

  std::vector<Count> entered_;
  std::atomic<uint64_t> finished_nodes_{0};
  std::atomic<uint64_t> word_{0};  // loop number, length, next index
  std::atomic<uint32_t> done_{0};
  std::atomic<const std::function<void(uint32_t)>*> task_{nullptr};
  std::mutex mutex_;
  std::condition_variable awake_;
  std::atomic<uint32_t> sleepers_{0};
  std::exception_ptr problem_;  // of the loop: written under the lock, read by the leader when all indices are done
};

}  // namespace tierkv::llama
