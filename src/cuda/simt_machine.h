// simt_machine.h — thread blocks of a CUDA device on the processor, so that tests run the kernels' own source where there is no
// device: every thread is a fiber, and the threads of a warp wait for one another wherever the device has them meet.
//
// A fiber runs until it has to wait. So a thread is as far ahead of its neighbours as a program allows: what one reads before
// another has written it, for want of a barrier, is wrong here every time. Threads may begin from the first or from the last.
// Copies into shared memory arrive when somebody waits for them, not before; until then their place holds bytes that are no data.
// That instructions of a warp are met by all its threads, in the same order, is checked.
//
// Not here: speed, two thread blocks at once, memory that is read in another order than it was written by other thread blocks.
//
// Errors:   Failure, thrown by run(): threads that wait for ever, or meet in different instructions.
// Threads:  a machine belongs to the thread that runs it; each may have one.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tierkv::cuda::simt {

inline constexpr uint32_t kWarp = 32;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Machine {
 public:
  enum class Order { first_to_last, last_to_first };

  // The one whose thread is running.
  static Machine& now() { return *running(); }

  // One thread block after another: `kernel` as each of `threads` threads, of `blocks` blocks.
  void run(uint32_t blocks, uint32_t threads, size_t shared_bytes, Order order, const std::function<void()>& kernel) {
    running() = this, kernel_ = &kernel, threads_ = threads;
    prepare(threads, shared_bytes);
    for (block_ = 0; block_ < blocks; ++block_) run_block(order);
    running() = nullptr;
  }

  uint32_t thread() const { return thread_; }
  uint32_t block() const { return block_; }
  uint32_t threads() const { return threads_; }
  uint8_t* shared() { return shared_.data() + (128 - reinterpret_cast<uintptr_t>(shared_.data()) % 128) % 128; }

  // A 32-bit address of shared memory: the offset in it, or for what lies elsewhere (barriers) a number of its own.
  uint32_t address(const void* at) {
    const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(at) - shared());
    if (offset < shared_bytes_) return static_cast<uint32_t>(offset);
    for (size_t i = 0; i < elsewhere_.size(); ++i) {
      if (elsewhere_[i] == at) return kElsewhere + static_cast<uint32_t>(i);
    }
    elsewhere_.push_back(at);
    return kElsewhere + static_cast<uint32_t>(elsewhere_.size() - 1);
  }
  uint8_t* at(uint32_t address, size_t bytes) {
    if (address % bytes != 0) fail("shared memory is read or written at an address that is not aligned");
    if (address + bytes > shared_bytes_) fail("shared memory is read or written past its end");
    return shared() + address;
  }

  // All threads of a warp give something and get something: `work(in, out)` is called once, with what all of them gave.
  template <class Out, class In, class Work>
  Out meet(const char* instruction, const In& mine, Work work) {
    static_assert(sizeof(In) <= kMost && sizeof(Out) <= kMost);
    const uint32_t lane = thread_ % kWarp;
    Warp& warp = warps_[thread_ / kWarp];
    if (warp.arrived == 0) warp.instruction = instruction;
    if (std::strcmp(warp.instruction, instruction) != 0) fail("threads of a warp meet in different instructions", instruction);
    std::memcpy(warp.in[lane], &mine, sizeof mine);
    if (++warp.arrived == kWarp) {
      In in[kWarp];
      Out out[kWarp];
      for (uint32_t l = 0; l < kWarp; ++l) std::memcpy(&in[l], warp.in[l], sizeof mine);
      work(in, out);
      for (uint32_t l = 0; l < kWarp; ++l) std::memcpy(warp.out[l], &out[l], sizeof(Out));
      warp.arrived = 0;
      wake(warp.waiting);
    } else {
      wait_in(warp.waiting);
    }
    Out result;
    std::memcpy(&result, warp.out[lane], sizeof result);
    return result;
  }

  void meet_block() {
    if (++arrived_ == threads_) {
      arrived_ = 0;
      wake(waiting_);
    } else {
      wait_in(waiting_);
    }
  }

  // Barriers of copies.
  void make_barrier(uint32_t at) { barrier(at) = {}; }
  void expect(uint32_t at, uint32_t bytes) { barrier(at).expected += bytes; }
  void copy(uint32_t to, const void* from, uint32_t bytes, uint32_t at) {
    if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a copy is not aligned");
    if (to + bytes > shared_bytes_) fail("a copy goes past the end of shared memory");
    std::memset(shared() + to, 0xFF, bytes);
    idle_ = 0;
    barrier(at).copies.push_back({to, from, bytes});
  }
  void wait_for_copies(uint32_t at, uint32_t parity) {
    Barrier& own = barrier(at);
    while (own.phase == parity) {
      for (const Copy& copy : own.copies) {
        std::memcpy(shared() + copy.to, copy.from, copy.bytes);
        if (copy.bytes > own.expected) fail("a barrier is given more bytes than it was told to expect");
        own.expected -= copy.bytes;
      }
      const bool complete = !own.copies.empty() && own.expected == 0;
      own.copies.clear();
      if (complete) own.phase ^= 1;
      else yield();
    }
  }

  // Nothing is thrown on a fiber's stack: the fiber stays where it is, and run() throws.
  [[noreturn]] void fail(const char* what, const char* where = "") {
    failure_ = what;
    if (*where) failure_ += ": ", failure_ += where;
    leave();
    std::abort();
  }

 private:
  static constexpr uint32_t kElsewhere = 1u << 30;
  static constexpr size_t kMost = 64, kStack = 256 << 10;
  static constexpr uint32_t kPatience = 100000;

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<uint8_t[]> stack;
  };
  struct Warp {
    const char* instruction = "";
    uint32_t arrived = 0;
    alignas(16) uint8_t in[kWarp][kMost];
    alignas(16) uint8_t out[kWarp][kMost];
    std::vector<uint32_t> waiting;
  };
  struct Copy {
    uint32_t to;
    const void* from;
    uint32_t bytes;
  };
  struct Barrier {
    uint32_t phase = 0;
    uint64_t expected = 0;
    std::vector<Copy> copies;
  };

  static Machine*& running() {
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
    std::memset(shared_.data(), 0xFF, shared_.size());
    barriers_.clear(), elsewhere_.clear(), ready_.clear(), waiting_.clear();
    arrived_ = 0, left_ = threads_, failure_.clear();
    for (Warp& warp : warps_) warp.arrived = 0, warp.waiting.clear();
    for (uint32_t i = 0; i < threads_; ++i) {
      const uint32_t t = order == Order::first_to_last ? i : threads_ - 1 - i;
      begin(*fibers_[t]);
      ready_.push_back(t);
    }
    while (left_ != 0 && failure_.empty()) {
      if (ready_.empty()) throw Failure(std::to_string(left_) + " threads of block " + std::to_string(block_) + " wait for ever");
      thread_ = ready_.front();
      ready_.pop_front();
      swapcontext(&home_, &fibers_[thread_]->context);
    }
    if (failure_.empty()) return;
    throw Failure(failure_ + " (block " + std::to_string(block_) + ", thread " + std::to_string(thread_) + ")");
  }

  void begin(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &home_;
    makecontext(&fiber.context, &Machine::enter, 0);
  }
  static void enter() {
    Machine& machine = now();
    (*machine.kernel_)();
    --machine.left_;
  }

  void leave() { swapcontext(&fibers_[thread_]->context, &home_); }
  void wait_in(std::vector<uint32_t>& list) {
    list.push_back(thread_);
    leave();
  }
  void wake(std::vector<uint32_t>& list) {
    ready_.insert(ready_.begin(), list.begin(), list.end());  // a warp goes on before others, and this thread before all
    list.clear();
    idle_ = 0;
  }
  // While others may have something to do.
  void yield() {
    if (++idle_ > kPatience) fail("a barrier of copies is waited for, and nothing comes");
    ready_.push_back(thread_);
    leave();
  }

  Barrier& barrier(uint32_t at) {
    if (barriers_.size() <= at - kElsewhere) barriers_.resize(at - kElsewhere + 1);
    return barriers_[at - kElsewhere];
  }

  const std::function<void()>* kernel_ = nullptr;
  uint32_t threads_ = 0, thread_ = 0, block_ = 0, left_ = 0, arrived_ = 0, idle_ = 0;
  size_t shared_bytes_ = 0;
  std::vector<uint8_t> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  std::deque<Barrier> barriers_;
  std::vector<const void*> elsewhere_;
  std::deque<uint32_t> ready_;
  std::vector<uint32_t> waiting_;
  std::string failure_;
  ucontext_t home_;
};

}  // namespace tierkv::cuda::simt
