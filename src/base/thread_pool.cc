#include "base/thread_pool.h"

#include "base/relax.h"

namespace tierkv {

ThreadPool::ThreadPool(uint32_t threads) {
  for (uint32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

namespace {

// Some ten microseconds: the gap between two layers' loops, less than it takes to wake a sleeper, too little to be missed by other
// programs.
constexpr int kSpins = 2000;

template <class Ready>
void spin_until(const Ready& ready) {
  for (int i = 0; i < kSpins && !ready(); ++i) relax_processor();
}

}  // namespace

void ThreadPool::run(uint32_t n, const std::function<void(uint32_t)>& body) {
  if (workers_.empty() || n <= 1) {
    for (uint32_t i = 0; i < n; ++i) body(i);
    return;
  }
  Loop loop{&body, n};
  std::unique_lock lock(mutex_);
  loops_.push_back(&loop);
  waiting_loops_ = loops_.size();
  ready_.notify_all();
  while (loop.next < loop.count) {
    const uint32_t i = take(loop);
    lock.unlock();
    body(i);
    lock.lock();
    ++loop.done;
  }
  lock.unlock();
  const auto all_done = [&] { return loop.done == loop.count; };
  spin_until(all_done);
  lock.lock();
  finished_.wait(lock, all_done);
}

uint32_t ThreadPool::take(Loop& loop) {
  const uint32_t i = loop.next++;
  if (loop.next == loop.count) std::erase(loops_, &loop);
  waiting_loops_ = loops_.size();
  return i;
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stop_ && loops_.empty()) {
      lock.unlock();
      spin_until([this] { return waiting_loops_ > 0; });
      lock.lock();
    }
    ready_.wait(lock, [this] { return stop_ || !loops_.empty(); });
    if (stop_) return;
    Loop& loop = *loops_.front();
    const uint32_t i = take(loop);
    lock.unlock();
    (*loop.body)(i);
    lock.lock();
    // Under the lock: the loop is gone as soon as its owner sees that all is done, and the owner needs the lock for that.
    if (++loop.done == loop.count) finished_.notify_all();
  }
}

}  // namespace tierkv
