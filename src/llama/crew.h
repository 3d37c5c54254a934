// crew.h — ggml's threads, which all enter a node's operation, as workers for what one of them calls.
//
// The first thread leads: it makes the calls and hands out loops with run(). The others follow(): they take indices of the loops
// until the leader is done with the node. Both are once a node and thread, in the order of the nodes. Nobody sleeps: ggml's own
// threads wait for each other by spinning between any two nodes.
//
// Layout:   one word holds the loop that is being handed out: its number, its length and the next index, so that an index is taken
//           by one compare-and-swap that cannot mistake one loop for another. A loop ends only when every index taken has been
//           finished, so whoever has taken one may use the task.
// REQUIRES: begin() before the first node of a graph, when no thread is inside; loops shorter than 2^20, run() by the leader alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

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
    finished_nodes_.store(node, std::memory_order_release);
  }

  // The side of thread `ith` > 0.
  void follow(int ith) {
    const uint64_t node = ++entered_[static_cast<size_t>(ith)].nodes;
    for (uint32_t idle = 0; finished_nodes_.load(std::memory_order_acquire) < node;) {
      idle = help() ? 0 : idle + 1;
      relax(idle);
    }
  }

  void run(uint32_t count, const std::function<void(uint32_t)>& task) {
    if (count == 0) return;
    task_.store(&task, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (word_.load(std::memory_order_relaxed) >> 40) + 1;
    word_.store(loop << 40 | static_cast<uint64_t>(count) << 20, std::memory_order_release);
    while (help()) {
    }
    for (uint32_t idle = 0; done_.load(std::memory_order_acquire) < count; ++idle) relax(idle);
  }

 private:
  struct alignas(64) Count {
    uint64_t nodes = 0;  // that the thread has entered
  };

  // Takes one index and does it. False if there is none.
  bool help() {
    constexpr uint64_t kField = (1u << 20) - 1;
    uint64_t seen = word_.load(std::memory_order_acquire);
    do {
      if ((seen & kField) >= ((seen >> 20) & kField)) return false;
    } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire));
    (*task_.load(std::memory_order_relaxed))(static_cast<uint32_t>(seen & kField));
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  static void relax(uint32_t idle) {
    if (idle > 4096) std::this_thread::yield();  // the machine may have fewer processors than ggml has threads
  }

  std::vector<Count> entered_;
  std::atomic<uint64_t> finished_nodes_{0};
  std::atomic<uint64_t> word_{0};  // loop number, length, next index
  std::atomic<uint32_t> done_{0};
  std::atomic<const std::function<void(uint32_t)>*> task_{nullptr};
};

}  // namespace tierkv::llama
