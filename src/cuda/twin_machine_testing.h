// twin_machine_testing.h — a machine whose memory is the processor's and whose launch is the scalar twin, so that tests run all of
// a device's backend but its threads.
//
// A lazy one does nothing before somebody waits, as late as a device may: what is sent from staging memory is read then, and what
// a caller reads too early is not there.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/encode/encode_twin_testing.h"
#include "cuda/mass/mass_twin_testing.h"
#include "cuda/memory/graph.h"
#include "cuda/memory/machine.h"
#include "cuda/plan/twin_testing.h"
#include "cuda/prompt/prompt_twin_testing.h"

namespace tierkv::cuda::testing {

class TwinMachine final : public Machine {
 public:
  // `memory`: so many bytes in all can be allocated; 0: any number.
  explicit TwinMachine(MachineFacts facts = {7, true}, uint64_t memory = 0, bool lazy = false)
      : facts_(facts), memory_(memory), main_(std::make_shared<Queue>()), beside_(std::make_shared<Queue>()), queue_(main_.get()) {
    main_->lazy = beside_->lazy = lazy;
  }

  MachineFacts facts() const override { return facts_; }
  Status enter() override { return {}; }
  Status follow(const StreamName& stream) override {
    followed = stream;
    ++asked;
    return {};
  }
  Status leave() override {
    ++asked;
    return {};
  }
  void go_aside() noexcept override { queue_ = beside_.get(); }
  void come_back() noexcept override { queue_ = main_.get(); }
  Result<uint8_t*> allocate_staging(size_t bytes) override {
    auto* const memory = static_cast<uint8_t*>(std::malloc(bytes));
    std::lock_guard lock(staging_mutex_);
    staging_[memory] = bytes;
    return memory;
  }
  void release_staging(uint8_t* memory) noexcept override {
    do_everything();
    std::lock_guard lock(staging_mutex_);
    staging_.erase(memory);
    std::free(memory);
  }

  Status send(uint8_t* to, const void* from, size_t bytes) override { return send_pieces(to, bytes, from, bytes, bytes, 1); }
  Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) override {
    if (lost) return gone();
    if (sends_that_fail != 0 && --sends_that_fail == 0) return error(StatusCode::io_error, "a copy to the device failed");
    sent += bytes * count, ++sends, ++asked;
    const auto* source = static_cast<const uint8_t*>(from);
    std::shared_ptr<std::vector<uint8_t>> copy;  // of what may be gone when this returns
    if (queue_->lazy && !is_staging(source)) {
      copy = std::make_shared<std::vector<uint8_t>>(source, source + (count - 1) * from_stride + bytes);
      source = copy->data();
    }
    return queue_->add([=] {
      for (size_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, source + i * from_stride, bytes);
      (void)copy;
    });
  }
  Status clear(uint8_t* at, size_t bytes) override {
    return queue_->add([=] { std::memset(at, 0, bytes); });
  }
  Status attend(const Launch& launch, const Plan& plan) override {
    last = launch;
    ++asked;
    if (!attends) return {};
    return queue_->add([launch, partials = plan.partials] { Twin(launch, partials).run(); });
  }
  Status weigh(const MassLaunch& launch) override {
    ++weighs;
    if (!attends) return {};
    return queue_->add([launch] { weigh_on_host(launch); });
  }
  Status encode(const EncodeLaunch& launch) override {
    ++encodes;
    return queue_->add([launch] { encode_on_host(launch); });
  }
  Status prompt(const PromptLaunch& launch, PromptStep step) override {
    if (!attends) return {};
    return queue_->add([launch, step] { prompt_on_host(launch, step); });
  }
  Status fetch(void* to, const uint8_t* from, size_t bytes) override {
    if (lost) return gone();
    if (fetches_that_fail != 0 && --fetches_that_fail == 0) return error(StatusCode::io_error, "a copy from the device failed");
    ++fetches;
    return queue_->add([=] { std::memcpy(to, from, bytes); });
  }
  Status move_rows(std::span<const RowMove> moves, uint32_t head_dim) override {
    ++asked;
    return queue_->add([list = std::vector(moves.begin(), moves.end()), head_dim] { move_rows_on_host(list, head_dim); });
  }
  Status wait() override {
    ++(queue_ == main_.get() ? waits : waits_aside);
    queue_->run(UINT64_MAX);
    return lost ? gone() : Status();
  }

  Result<std::unique_ptr<Mark>> make_mark() override { return std::unique_ptr<Mark>(std::make_unique<TwinMark>(main_)); }
  Status put(Mark& mark) override {
    ++asked, ++puts;
    static_cast<TwinMark&>(mark).at = main_->added();
    return {};
  }

  Result<std::unique_ptr<Graph>> make_graph() override { return std::unique_ptr<Graph>(std::make_unique<TwinGraph>(*this)); }
  Status leave_to(Graph&) override { return {}; }

  // A graph that is captured, and at the same time what is made of it. What is launched does what its places were told last.
  struct Captured {
    std::vector<std::function<void()>> places;
  };
  void* capturing = nullptr;  // a stream
  Captured* captured = nullptr;
  uint64_t updates = 0;            // of places that do something else from then on
  uint64_t updates_that_fail = 0;  // of what places are told, the so manieth from now; 0: none
  // What is done between calls of the cache while its stream is captured: the model's own work.
  void capture(std::function<void()> what) { captured->places.push_back(std::move(what)); }
  void launch(const Captured& graph) {
    for (const std::function<void()>& place : graph.places) (void)main_->add(place);
  }

  uint64_t asked = 0;            // streams, marks, copies, moves and launches of attention
  uint64_t puts = 0;             // of them, marks
  uint64_t sent = 0, sends = 0;  // bytes, and how often
  uint64_t waits = 0;            // for everything but what is aside
  uint64_t waits_aside = 0;      // for that
  uint64_t encodes = 0;          // launches that coded blocks
  uint64_t weighs = 0;           // launches that said what rows received
  uint64_t fetches = 0;
  uint64_t sends_that_fail = 0;  // the so manieth from now; 0: none
  uint64_t fetches_that_fail = 0;
  bool lost = false;  // nothing is copied any more, nor waited for
  Launch last;
  StreamName followed;
  bool attends = true;  // false: outputs are whatever they were, for measurements of what is around it

 protected:
  Result<uint8_t*> take_memory(size_t bytes) override {
    if (memory_ != 0 && this->bytes() + bytes > memory_) return error(StatusCode::resource_exhausted, "no device memory");
    const size_t whole = (bytes + 255) / 256 * 256;
    auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(256, whole));
    std::memset(memory, 0, whole);
    return memory;
  }
  void give_memory(uint8_t* memory) noexcept override {
    do_everything();
    std::free(memory);
  }

 private:
  static Status gone() { return error(StatusCode::io_error, "the device is lost"); }

  // What was asked for and is not done.
  struct Queue {
    std::mutex mutex;
    std::deque<std::function<void()>> left;
    uint64_t done = 0;
    bool lazy = false;

    Status add(std::function<void()> what) {
      std::lock_guard lock(mutex);
      if (lazy) {
        left.push_back(std::move(what));
      } else {
        what();
        ++done;
      }
      return {};
    }
    void run(uint64_t until) {
      std::lock_guard lock(mutex);
      for (; done < until && !left.empty(); ++done, left.pop_front()) left.front()();
    }
    uint64_t added() {
      std::lock_guard lock(mutex);
      return done + left.size();
    }
    bool reached(uint64_t at) {
      std::lock_guard lock(mutex);
      return done >= at;
    }
  };
  class TwinGraph final : public Graph {
   public:
    explicit TwinGraph(TwinMachine& machine) : machine_(machine), main_(machine.main_) {}
    Result<bool> captures(void* stream) override { return machine_.captured && machine_.capturing == stream; }
    Status follow(void*) override {
      if (of_ && of_ != machine_.captured) return error(StatusCode::failed_precondition, "another capture");
      of_ = machine_.captured;
      return {};
    }
    Status add_moves(size_t) override { return add(moves_); }
    Status add_attend(uint32_t, uint32_t) override { return add(attends_); }
    Status add_end() override { return add(ends_); }

    Status set_end(void* exec, Progress* progress, uint64_t number) override {
      if (exec != of_) return error(StatusCode::invalid_argument, "the graph is another");
      return set(ends_[0], std::as_bytes(std::span(&number, 1)), [progress, number] { progress->end(number); });
    }
    Status set_moves(uint32_t place, std::span<const RowMove> moves, uint32_t head_dim) override {
      return set(moves_[place], std::as_bytes(moves),
                 [list = std::vector(moves.begin(), moves.end()), head_dim] { move_rows_on_host(list, head_dim); });
    }
    Status set_attend(uint32_t place, const Launch& launch, const Plan& plan) override {
      struct {
        Launch launch;
        CtaFirsts firsts;
      } const told{launch, plan.firsts};
      return set(attends_[place], std::as_bytes(std::span(&told, 1)),
                 [launch, partials = plan.partials] { Twin(launch, partials).run(); });
    }
    Status wait() const override {
      main_->run(UINT64_MAX);
      return {};
    }

   private:
    Status add(std::vector<size_t>& kind) {
      kind.push_back(of_->places.size());
      of_->places.push_back([] {});
      return {};
    }
    // As CUDA's: what it was told before it is not told again.
    Status set(size_t place, std::span<const std::byte> told, std::function<void()> what) {
      std::vector<std::byte>& before = told_[place];
      if (machine_.updates_that_fail != 0 && --machine_.updates_that_fail == 0) {
        return error(StatusCode::io_error, "a place of the graph could not be changed");
      }
      if (std::equal(before.begin(), before.end(), told.begin(), told.end())) return {};
      before.clear();
      ++machine_.updates;
      of_->places[place] = std::move(what);
      before.assign(told.begin(), told.end());
      return {};
    }
    TwinMachine& machine_;
    const std::shared_ptr<Queue> main_;
    Captured* of_ = nullptr;
    std::vector<size_t> moves_, attends_, ends_;
    std::map<size_t, std::vector<std::byte>> told_;
  };
  struct TwinMark final : Mark {
    explicit TwinMark(std::shared_ptr<Queue> of) : queue(std::move(of)) {}
    bool reached() const override { return queue->reached(at); }
    Status wait() const override {
      queue->run(at);
      return {};
    }
    std::shared_ptr<Queue> queue;
    uint64_t at = 0;
  };

  void do_everything() noexcept {
    for (Queue* queue : {main_.get(), beside_.get()}) queue->run(UINT64_MAX);
  }

  bool is_staging(const uint8_t* at) const {
    std::lock_guard lock(staging_mutex_);
    const auto behind = staging_.upper_bound(at);
    if (behind == staging_.begin()) return false;
    const auto& [first, bytes] = *std::prev(behind);
    return at < first + bytes;
  }

  const MachineFacts facts_;
  const uint64_t memory_;
  const std::shared_ptr<Queue> main_, beside_;
  Queue* queue_;                      // where things are asked for
  mutable std::mutex staging_mutex_;  // slots go on any thread
  std::map<const uint8_t*, size_t> staging_;
};

}  // namespace tierkv::cuda::testing
