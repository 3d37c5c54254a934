#include "base/thread_pool.h"

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

void ThreadPool::run(uint32_t n, const std::function<void(uint32_t)>& body) {
  if (workers_.empty() || n <= 1) {
    for (uint32_t i = 0; i < n; ++i) body(i);
    return;
  }
  Loop loop{&body, n};
  std::unique_lock lock(mutex_);
  loops_.push_back(&loop);
  ready_.notify_all();
  while (loop.next < loop.count) {
    const uint32_t i = loop.next++;
    if (loop.next == loop.count) std::erase(loops_, &loop);
    lock.unlock();
    body(i);
    lock.lock();
    ++loop.done;
  }
  finished_.wait(lock, [&] { return loop.done == loop.count; });
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ready_.wait(lock, [this] { return stop_ || !loops_.empty(); });
    if (stop_) return;
    Loop* loop = loops_.front();
    const uint32_t i = loop->next++;
    if (loop->next == loop->count) loops_.pop_front();
    lock.unlock();
    (*loop->body)(i);
    lock.lock();
    if (++loop->done == loop->count) finished_.notify_all();
  }
}

}  // namespace tierkv
