// simt_machine.h — thread blocks of a CUDA device on the processor, so that tests run the kernels' own source where there is no
// device: every thread is a fiber, and the threads of a warp wait for one another wherever the device has them meet.
//
// A fiber runs until it has to wait. So a thread is as far ahead of its neighbours as a program allows: what one reads before
// another has written it, for want of a barrier, is wrong here every time. Threads may begin from the first or from the last.
// Copies arrive, and products that go on by themselves are made, when somebody waits for them (simt_copies.h). That instructions of
// a warp are met by all its threads, in the same order, is checked. Under ThreadSanitizer every thread is one to it too, and races
// between the threads of a block are found (simt_races.h).
//
// Not here: speed, two thread blocks at once, memory that is read in another order than it was written by other thread blocks.
//
// Errors:   Failure, thrown by run(): threads that wait for ever, or meet in different instructions.
// Threads:  a machine belongs to the thread that runs it; each may have one.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/simt/simt_copies.h"
#include "cuda/simt/simt_races.h"

namespace tierkv::cuda::simt {

inline constexpr uint32_t kWarp = 32;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Grid {
  Grid(uint32_t along, uint32_t across = 1) : x(along), y(across) {}
  uint32_t x, y;
};

class Machine {
 public:
  enum class Order { first_to_last, last_to_first };

  // The one whose thread is running.
  TIERKV_UNWATCHED static Machine& now() { return *running(); }

  // One thread block after another: `kernel` as each of `threads` threads, of all blocks of `grid`.
  void run(Grid grid, uint32_t threads, size_t shared_bytes, Order order, const std::function<void()>& kernel) {
    running() = this, kernel_ = &kernel, threads_ = threads, grid_ = grid;
    prepare(threads, shared_bytes);
    for (uint32_t i = 0; i < grid.x * grid.y; ++i) {
      block_ = {i % grid.x, i / grid.x};
      give(&home_);  // all of a block comes behind all of the one before
      run_block(order);
    }
    running() = nullptr;
  }

  TIERKV_UNWATCHED uint32_t thread() const { return thread_; }
  TIERKV_UNWATCHED Grid block() const { return block_; }
  TIERKV_UNWATCHED Grid grid() const { return grid_; }
  TIERKV_UNWATCHED uint32_t threads() const { return threads_; }
  TIERKV_UNWATCHED uint8_t* shared() { return shared_.data() + (128 - reinterpret_cast<uintptr_t>(shared_.data()) % 128) % 128; }

  // A 32-bit address of shared memory: the offset in it, or for what lies elsewhere (barriers) a number of its own.
  TIERKV_UNWATCHED uint32_t address(const void* at) {
    const Unwatched books;
    const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(at) - shared());
    if (offset < shared_bytes_) return static_cast<uint32_t>(offset);
    for (size_t i = 0; i < elsewhere_.size(); ++i) {
      if (elsewhere_[i] == at) return kElsewhere + static_cast<uint32_t>(i);
    }
    elsewhere_.push_back(at);
    return kElsewhere + static_cast<uint32_t>(elsewhere_.size() - 1);
  }
  TIERKV_UNWATCHED uint8_t* at(uint32_t address, size_t bytes) {
    if (address % bytes != 0) fail("shared memory is read or written at an address that is not aligned");
    if (address + bytes > shared_bytes_) fail("shared memory is read or written past its end");
    return shared() + address;
  }

  // All threads of a warp give something and get something: `work(in, out)` is called once, with what all of them gave. It orders
  // nothing that they read and write, unless `barrier`.
  template <class Out, class In, class Work>
  TIERKV_UNWATCHED Out meet(const char* instruction, const In& mine, Work work, bool barrier = false) {
    static_assert(sizeof(In) <= kMost && sizeof(Out) <= kMost);
    const uint32_t lane = thread_ % kWarp;
    Warp& warp = warps_[thread_ / kWarp];
    if (warp.arrived == 0) warp.instruction = instruction;
    if (std::strcmp(warp.instruction, instruction) != 0) fail("threads of a warp meet in different instructions", instruction);
    const char* const token = barrier ? &warp.tokens[warp.barriers % 2] : nullptr;
    if (token) give(token);
    remember(warp.in[lane], mine);
    if (++warp.arrived == kWarp) {
      In in[kWarp];
      Out out[kWarp];
      for (uint32_t l = 0; l < kWarp; ++l) recall(in[l], warp.in[l]);
      work(in, out);
      for (uint32_t l = 0; l < kWarp; ++l) remember(warp.out[l], out[l]);
      warp.arrived = 0, warp.barriers += barrier;
      wake(warp.waiting);
    } else {
      wait_in(warp.waiting);
    }
    if (token) take(token);
    Out result;
    recall(result, warp.out[lane]);
    return result;
  }

  // A barrier of the threads of a warp that `mask` names, this one among them.
  TIERKV_UNWATCHED void meet_some(uint32_t mask) {
    Party& party = warps_[thread_ / kWarp].parties[std::countr_zero(mask)];
    if (party.arrived == 0) party.mask = mask;
    if (party.mask != mask || (mask >> thread_ % kWarp & 1u) == 0) fail("threads of a warp meet in other parties than they say");
    meet_in(party, static_cast<uint32_t>(std::popcount(mask)), true);
  }
  // A barrier of `threads` threads by its number. Not `waits`: this one goes on.
  TIERKV_UNWATCHED void meet_numbered(uint32_t number, uint32_t threads, bool waits) {
    if (number >= kNumbered) fail("a barrier has no such number");
    meet_in(numbered_[number], threads, waits);
  }

  // As on a device, number 0 of all threads.
  TIERKV_UNWATCHED void meet_block() { meet_numbered(0, threads_, true); }

  // Barriers that threads arrive at and copies complete.
  TIERKV_UNWATCHED void make_barrier(uint32_t at, uint32_t arrivals) {
    changes(place_of(at));
    const Unwatched books;
    barriers_[at] = CopyBarrier(arrivals);
  }
  TIERKV_UNWATCHED void arrive(uint32_t at, uint32_t bytes) {
    idle_ = 0;
    if (const char* const wrong = barrier(at).arrive(bytes)) fail(wrong);
  }
  TIERKV_UNWATCHED void copy(uint32_t to, const void* from, uint32_t bytes, uint32_t at) {
    if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a copy is not aligned");
    if (to + bytes > shared_bytes_) fail("a copy goes past the end of shared memory");
    const Copy copy{shared() + to, from, bytes};
    copy.spoil();
    idle_ = 0;
    barrier(at).add(copy);
  }
  TIERKV_UNWATCHED void wait_at(uint32_t at, uint32_t parity) {
    CopyBarrier& own = barrier(at);
    while (!own.over(parity)) yield();
    if (const char* const wrong = own.wrong()) fail(wrong);
  }

  // A thread's own copies.
  TIERKV_UNWATCHED void fetch(uint32_t to, const void* from, uint32_t bytes) {
    const Copy copy{at(to, bytes), from, bytes};
    copy.spoil();
    fiber_->fetches.add(copy);
  }
  TIERKV_UNWATCHED void end_fetches() { fiber_->fetches.end_group(); }
  TIERKV_UNWATCHED void wait_for_fetched() { make(fiber_->fetches.take_all()); }
  TIERKV_UNWATCHED void wait_for_fetches(uint32_t left) { make(fiber_->fetches.take_but(left)); }

  // Work that goes on while its thread does something else: done when the thread waits for it.
  TIERKV_UNWATCHED void put_off(std::function<void()> work) { fiber_->products.add(std::move(work)); }
  TIERKV_UNWATCHED void end_put_off() { fiber_->products.end_group(); }
  TIERKV_UNWATCHED void do_put_off(uint32_t left) {
    for (const auto& work : fiber_->products.take_but(left)) work();
  }

  // Nothing is thrown on a fiber's stack: the fiber stays where it is, and run() throws. REQUIRES: no Unwatched.
  [[noreturn]] TIERKV_UNWATCHED void fail(const char* what, const char* where = "") {
    failure_ = what;
    if (*where) failure_ += ": ", failure_ += where;
    leave();
    std::abort();
  }

 private:
  static constexpr uint32_t kElsewhere = 1u << 30;
  static constexpr size_t kMost = 64, kStack = 256 << 10;
  static constexpr uint32_t kPatience = 100000, kNumbered = 16;

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<uint8_t[]> stack;
    PutOff<Copy> fetches;
    PutOff<std::function<void()>> products;
    Identity identity;
  };
  struct Party {
    uint32_t mask = 0, arrived = 0, barriers = 0;
    char tokens[2];  // as a warp's
    std::vector<uint32_t> waiting;
  };
  struct Warp {
    const char* instruction = "";
    uint32_t arrived = 0, barriers = 0;
    char tokens[2];  // of barriers in turn: who is woken late takes nothing of the next one
    alignas(16) uint8_t in[kWarp][kMost];
    alignas(16) uint8_t out[kWarp][kMost];
    std::vector<uint32_t> waiting;
    Party parties[kWarp];  // by their first thread
  };
  template <class T>
  TIERKV_UNWATCHED static void remember(uint8_t* at, const T& x) {
    const Unwatched books;
    std::memcpy(at, &x, sizeof x);
  }
  template <class T>
  TIERKV_UNWATCHED static void recall(T& x, const uint8_t* at) {
    const Unwatched books;
    std::memcpy(&x, at, sizeof x);
  }

  TIERKV_UNWATCHED static Machine*& running() {
    static thread_local Machine* machine = nullptr;
    return machine;
  }

  void prepare(uint32_t threads, size_t shared_bytes) {
    while (fibers_.size() < threads) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.reset(new uint8_t[kStack]);  // not touched before it is used
    }
    shared_bytes_ = shared_bytes;
    shared_.assign(shared_bytes + 128, 0xFF);
    warps_.assign((threads + kWarp - 1) / kWarp, {});
  }

  void run_block(Order order) {
    const Unwatched books;
    self_ = present();
    std::memset(shared_.data(), 0xFF, shared_.size());
    barriers_.clear(), elsewhere_.clear(), ready_.clear();
    left_ = threads_, failure_.clear();
    warps_.assign(warps_.size(), {});
    for (Party& party : numbered_) party = {};
    for (uint32_t i = 0; i < threads_; ++i) {
      const uint32_t t = order == Order::first_to_last ? i : threads_ - 1 - i;
      fibers_[t]->fetches.clear(), fibers_[t]->products.clear();
      begin(*fibers_[t]);
      ready_.push_back(t);
    }
    while (left_ != 0 && failure_.empty()) {
      if (ready_.empty()) take(&left_);
      if (ready_.empty()) throw Failure(std::to_string(left_) + " threads of block " + std::to_string(block_.x) + " wait for ever");
      thread_ = ready_.front();
      ready_.pop_front();
      fiber_ = fibers_[thread_].get();
      go_on();
    }
    take(&left_);
    if (failure_.empty()) return;
    throw Failure(failure_ + " (block " + std::to_string(block_.x) + ", thread " + std::to_string(thread_) + ")");
  }

  void begin(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &home_;
    makecontext(&fiber.context, &Machine::enter, 0);
  }
  TIERKV_UNWATCHED static void enter() {
    Machine& machine = now();
    take(&machine.home_);
    (*machine.kernel_)();
    give(&machine.left_);
    --machine.left_;
    become(machine.self_);
  }

  TIERKV_UNWATCHED void meet_in(Party& party, uint32_t threads, bool waits) {
    const char* const token = &party.tokens[party.barriers % 2];
    give(token);
    if (++party.arrived == threads) {
      party.arrived = 0, ++party.barriers;
      wake(party.waiting);
    } else if (waits) {
      wait_in(party.waiting);
    }
    if (waits) take(token);
  }

  TIERKV_UNWATCHED void go_on() {
    become(fiber_->identity.name);
    swapcontext(&home_, &fiber_->context);
  }
  TIERKV_UNWATCHED void leave() {
    give(&left_);  // to whoever takes this machine apart
    become(self_);
    swapcontext(&fiber_->context, &home_);
  }
  TIERKV_UNWATCHED void wait_in(std::vector<uint32_t>& list) {
    {
      const Unwatched books;
      list.push_back(thread_);
    }
    leave();
  }
  TIERKV_UNWATCHED void wake(std::vector<uint32_t>& list) {
    const Unwatched books;
    ready_.insert(ready_.begin(), list.begin(), list.end());  // a warp goes on before others, and this thread before all
    list.clear();
    idle_ = 0;
  }
  // While others may have something to do.
  TIERKV_UNWATCHED void yield() {
    if (++idle_ > kPatience) fail("a barrier of copies is waited for, and nothing comes");
    {
      const Unwatched books;
      ready_.push_back(thread_);
    }
    leave();
  }

  TIERKV_UNWATCHED static void make(const std::vector<Copy>& copies) {
    const Copy* const first = copies.data();
    for (size_t i = 0, count = copies.size(); i < count; ++i) first[i].make();
  }

  TIERKV_UNWATCHED uint8_t* place_of(uint32_t address) {
    const Unwatched books;
    return address < kElsewhere ? shared() + address : static_cast<uint8_t*>(const_cast<void*>(elsewhere_[address - kElsewhere]));
  }
  TIERKV_UNWATCHED CopyBarrier& barrier(uint32_t at) {
    looks_at(place_of(at));
    CopyBarrier* const found = find_barrier(at);
    if (!found) fail("a barrier is used that nobody has made yet");
    return *found;
  }
  TIERKV_UNWATCHED CopyBarrier* find_barrier(uint32_t at) {
    const Unwatched books;
    const auto found = barriers_.find(at);
    return found == barriers_.end() ? nullptr : &found->second;
  }

  const std::function<void()>* kernel_ = nullptr;
  Grid grid_{1}, block_{0, 0};
  uint32_t threads_ = 0, thread_ = 0, left_ = 0, idle_ = 0;
  Identity::Name self_{};
  Fiber* fiber_ = nullptr;  // whose thread is running
  size_t shared_bytes_ = 0;
  std::vector<uint8_t> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  Party numbered_[kNumbered];
  std::map<uint32_t, CopyBarrier> barriers_;  // by address
  std::vector<const void*> elsewhere_;
  std::deque<uint32_t> ready_;
  std::string failure_;
  ucontext_t home_;
};

}  // namespace tierkv::cuda::simt
