#include "base/thread_pool.h"

#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/relax.h"

namespace tierkv {

ThreadPool::ThreadPool(uint32_t threads) {
  // Workers that run already must not see an exception end this constructor: they would use a pool that is gone.
  try {
    if (threads > 1) workers_.reserve(threads - 1);
    for (uint32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // the system has no more threads
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
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

void ThreadPool::run_loop(uint32_t n, Task task) {
  if (workers_.empty() || n <= 1) {
    for (uint32_t i = 0; i < n; ++i) task(i);
    return;
  }
  Loop loop{task, n};
  std::unique_lock lock(mutex_);
  enqueue(loop);
  ready_.notify_all();
  while (loop.next < loop.count) {
    const uint32_t i = take(loop);
    lock.unlock();
    try {
      task(i);
      lock.lock();
    } catch (...) {
      lock.lock();
      fail(loop);
    }
    ++loop.done;
  }
  lock.unlock();
  const auto all_done = [&] { return loop.done == loop.count; };
  spin_until(all_done);
  lock.lock();
  finished_.wait(lock, all_done);
  if (loop.problem) std::rethrow_exception(std::move(loop.problem));
}

void ThreadPool::enqueue(Loop& loop) {
  Loop** end = &first_;
  while (*end) end = &(*end)->behind;
  *end = &loop;
  ++waiting_loops_;
}

void ThreadPool::dequeue(Loop& loop) {
  Loop** at = &first_;
  while (*at != &loop) at = &(*at)->behind;
  *at = loop.behind;
  --waiting_loops_;
}

uint32_t ThreadPool::take(Loop& loop) {
  const uint32_t i = loop.next++;
  if (loop.next == loop.count) dequeue(loop);
  return i;
}

void ThreadPool::fail(Loop& loop) {
  if (!loop.problem) loop.problem = std::current_exception();
  if (loop.next == loop.count) return;
  dequeue(loop);
  loop.done += loop.count - loop.next;
  loop.next = loop.count;
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stop_ && !first_) {
      lock.unlock();
      spin_until([this] { return waiting_loops_ > 0; });
      lock.lock();
    }
    ready_.wait(lock, [this] { return stop_ || first_; });
    if (stop_) return;
    Loop& loop = *first_;
    const uint32_t i = take(loop);
    lock.unlock();
    try {
      loop.task(i);
      lock.lock();
    } catch (...) {
      lock.lock();
      fail(loop);
    }
    // Under the lock: the loop is gone as soon as its owner sees that all is done, and the owner needs the lock for that.
    if (++loop.done == loop.count) finished_.notify_all();
  }
}

}  // namespace tierkv
