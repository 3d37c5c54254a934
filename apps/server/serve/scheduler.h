// scheduler.h — the one thread that owns the model: it gives turns, computes steps and hands out what they give.
//
// A step is one batch: the next token of every answer that is being written and, beside them, pieces of prompts (pace.h). Pieces
// are cut the same way whatever else is in a batch, and rows of a batch do not see each other: an answer at temperature 0 is the
// one its client would get alone.
//
// Turns go to the client that has fewest, then to the one whose last turn was longest ago. The queue is bounded.
//
// When the cache has no room and the shelf cannot make any, an answer gives its place back and goes on later, when another has
// ended; one that is alone is refused.
//
// Threads: submit(), on_thread() and what reads, any. The thread starts with the object and ends with stop() or the destructor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/stop_strings.h"
#include "engine/utf8.h"
#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/pace.h"
#include "serve/shelf.h"

namespace tierkv::serve {

struct SchedulerOptions {
  uint32_t slots = 4;                 // answers at a time
  uint32_t queue = 64;                // answers that may wait
  uint32_t conversations = 64;        // in memory, idle ones and copies of prompts included
  uint32_t context = 0;               // tokens of a sequence
  uint32_t piece = 4;                 // rows of a prompt that are served at a time: the chunk of the context's host
  std::optional<StoreOptions> store;  // a prefix store on disk; none: there is none
};

// A slot as /slots shows it.
struct SlotView {
  uint32_t id = 0;
  bool busy = false;
  uint64_t task = 0;
  uint32_t prompt_tokens = 0, cached_tokens = 0, written_tokens = 0;
  uint32_t tokens = 0;  // in the cache
  bool parked = false;
  int32_t place = -1;  // on the shelf; -1: none
};

class Scheduler {
 public:
  // `abort` is the context's own Cancellation: stop() requests it.
  Scheduler(engine::Engine& engine, engine::TieredContext& context, const SchedulerOptions& options, engine::Cancellation& abort,
            Metrics& metrics);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // All of them or none: ApiError 429 when the queue has no room for them, 503 while the server is being stopped.
  void submit(const std::vector<JobPtr>& jobs);
  // Runs a task between two steps and waits for it; throws what it throws. ApiError 503 when the thread has ended.
  void on_thread(const std::function<void()>& task);

  // No more jobs. Those there are go on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Nothing runs and nothing waits.
  bool idle() const { return busy_ == 0 && queued_ == 0; }
  // Ends everything; jobs under way get a 503.
  void stop();

  // For tasks on the scheduler's thread.
  std::vector<SlotView> slots() const;
  Shelf& shelf() { return shelf_; }
  // Null: there is none. From any thread.
  PrefixStore* store() { return keeper_ ? &keeper_->store() : nullptr; }
  // The place of a slot's conversation; ApiError 400 while it is being written.
  int32_t idle_place(uint32_t slot) const;
  // The slot shows this place from here on.
  void show(uint32_t slot, int32_t place);

  uint32_t busy() const { return busy_; }
  uint32_t waiting() const { return queued_; }
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Work;
  struct Slot;
  struct Part;

  void run();
  bool wait_for_work();
  void run_tasks();
  void take_inbox();
  void drop_ended();
  void admit();
  bool can_begin() const;
  size_t next_in_line() const;
  bool start(Slot& slot, std::unique_ptr<Work> work);
  void step();
  std::vector<Part> plan_step(uint32_t& writers, uint32_t& prompt_rows);
  void settle(const Part& part, const Status& status);
  void prompt_read(Work& work, std::span<const float> logits);
  void pick(Slot& slot, std::span<const float> logits);
  void lacks_memory(Slot& slot, const Status& status);
  void finish(Slot& slot, Finish finish);
  void fail(Slot& slot, const ApiError& error);
  void end(Slot& slot, Outcome outcome);
  void report(Work& work, Outcome outcome);
  void end_all();
  uint32_t retry_after() const;

  engine::Engine& engine_;
  engine::TieredContext& context_;
  const SchedulerOptions options_;
  engine::Cancellation& abort_;
  Metrics& metrics_;

  // The scheduler's thread's.
  std::unique_ptr<Keeper> keeper_;  // or null
  Shelf shelf_;
  Pace pace_;
  std::vector<Slot> slots_;
  std::deque<std::unique_ptr<Work>> waiting_;
  uint32_t turn_ = 0;  // whose prompt comes first in the next step
  uint64_t tasks_begun_ = 0;
  std::map<std::string, uint64_t> last_turns_;  // of clients: the number of their last task
  bool memory_short_ = false;                   // an answer waits for another to end

  // Everybody's.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<JobPtr> inbox_;
  std::deque<std::packaged_task<void()>> errands_;
  bool stopping_ = false, ended_ = false;
  std::atomic<bool> draining_{false};
  std::atomic<uint32_t> busy_{0}, queued_{0};
  std::atomic<double> usual_s_{1.0};  // that an answer takes

  std::thread thread_;
};

}  // namespace tierkv::serve
