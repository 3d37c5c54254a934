// scheduler.cc — turns: who waits, who runs, who has ended.
#include "serve/scheduler.h"

#include <algorithm>
#include <cmath>

#include "engine/clock.h"
#include "engine/error.h"
#include "serve/scheduler_work.h"

namespace tierkv::serve {

using engine::now;

namespace {

constexpr size_t kMostClients = 4096;  // whose turns are remembered
constexpr double kPatience = 2.0;      // seconds that a disk may take for the beginning of a prompt
constexpr auto kLook =
    std::chrono::milliseconds(20);  // how long the thread sleeps while something that does not wake it may change
constexpr double kLastWords = 3.0;  // seconds for what is to be stored when the server ends

std::unique_ptr<Keeper> make_keeper(engine::TieredContext& context, const SchedulerOptions& options, std::function<void()> loaded) {
  if (!options.store) return nullptr;
  return std::make_unique<Keeper>(context, options.piece, *options.store, std::move(loaded));
}

}  // namespace

Scheduler::Scheduler(engine::Engine& engine, engine::TieredContext& context, const SchedulerOptions& options,
                     engine::Cancellation& abort, Metrics& metrics)
    : engine_(engine),
      context_(context),
      options_(options),
      abort_(abort),
      metrics_(metrics),
      keeper_(make_keeper(context, options, [this] { wake_.notify_all(); })),
      shelf_(context, options.conversations, metrics, keeper_.get()),
      pace_(options.piece, context.host().micro_batch()),
      slots_(options.slots) {
  engine::check(context_.cache().set_pressure_handler([this](const MemoryPressure&) { return shelf_.make_room(); }));
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  stop();
  (void)context_.cache().set_pressure_handler({}).ok();
  keeper_.reset();  // its threads wake ours
}

void Scheduler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    draining_ = true;
  }
  abort_.request();
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// The time that those before it will take, if answers take as long as they did.
uint32_t Scheduler::retry_after() const {
  const double seconds = usual_s_ * (queued_ + 1.0) / std::max(1u, options_.slots);
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds), 1.0, 60.0));
}

void Scheduler::submit(const std::vector<JobPtr>& jobs) {
  if (draining_) throw ApiError(503, "the server is being stopped");
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw ApiError(503, "the server is being stopped");
    // Slots that are free do not count: who gets one does not wait.
    const uint32_t room = options_.queue + (options_.slots - std::min(options_.slots, busy_.load()));
    if (queued_ + jobs.size() > room) {
      metrics_.update([](Counts& counts) { ++counts.refused; });
      ApiError full(429, "all " + std::to_string(options_.slots) + " slots are busy and the queue is full: try again later");
      full.retry_after = retry_after();
      throw full;
    }
    for (const JobPtr& job : jobs) inbox_.push_back(job);
    queued_ += static_cast<uint32_t>(jobs.size());
  }
  metrics_.update([&](Counts& counts) { counts.requests += jobs.size(); });
  wake_.notify_all();
}

void Scheduler::on_thread(const std::function<void()>& task) {
  std::packaged_task<void()> errand(task);
  std::future<void> done = errand.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || ended_) throw ApiError(503, "the server is being stopped");
    errands_.push_back(std::move(errand));
  }
  wake_.notify_all();
  try {
    done.get();
  } catch (const std::future_error&) {
    throw ApiError(503, "the server is being stopped");
  }
}

void Scheduler::run() {
  while (wait_for_work()) {
    run_tasks();
    take_inbox();
    drop_ended();
    admit();
    step();
    (void)shelf_.store_some();
  }
  end_all();
}

bool Scheduler::wait_for_work() {
  const bool ready = busy_ > 0 || can_begin(), store = shelf_.store_due();
  const bool changes = !waiting_.empty() || store;  // by time, or because the disk got on
  std::unique_lock lock(mutex_);
  const auto called = [this] { return stopping_ || !inbox_.empty() || !errands_.empty(); };
  if (ready || called()) return !stopping_;
  if (store && keeper_->store().has_room()) return !stopping_;
  if (changes) wake_.wait_for(lock, kLook);
  else wake_.wait(lock, called);
  return !stopping_;
}

bool Scheduler::can_begin() const { return !memory_short_ && next_in_line() != waiting_.size(); }

void Scheduler::run_tasks() {
  for (;;) {
    std::packaged_task<void()> errand;
    {
      const std::lock_guard lock(mutex_);
      if (errands_.empty()) return;
      errand = std::move(errands_.front());
      errands_.pop_front();
    }
    errand();
  }
}

void Scheduler::take_inbox() {
  std::deque<JobPtr> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(inbox_);
  }
  for (JobPtr& job : jobs) {
    waiting_.push_back(std::make_unique<Work>(std::move(job)));
    Work& work = *waiting_.back();
    if (work.job->ask.reuse && !work.job->after) work.loading = shelf_.look(work.tokens);
  }
}

// Those whose client left, and those that took too long.
void Scheduler::drop_ended() {
  const double time = now();
  const auto reason = [&](const Work& work) -> std::optional<ApiError> {
    if (work.job->abandoned) return ApiError(499, "the client left");
    if (work.job->deadline > 0.0 && time > work.job->deadline) return ApiError(504, "the answer took longer than a request may");
    return std::nullopt;
  };
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (const auto why = reason(**at)) {
      Outcome outcome;
      outcome.error = why;
      report(**at, std::move(outcome));
      at = waiting_.erase(at);
      --queued_;
    } else {
      ++at;
    }
  }
  for (Slot& slot : slots_) {
    if (!slot.work) continue;
    if (const auto why = reason(*slot.work)) fail(slot, *why);
  }
}

// The index in the queue of who is next, or its size: nobody can begin. Who has fewest answers under way, then whose last turn was
// longest ago, then who came first.
size_t Scheduler::next_in_line() const {
  size_t best = waiting_.size();
  std::pair<long, uint64_t> least;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const Job& job = *waiting_[i]->job;
    if (job.after && !job.after->prompt_read) continue;  // it will find its prompt read
    const LoadingPtr& loading = waiting_[i]->loading;
    if (loading && !loading->done && now() < loading->began + kPatience) continue;
    const auto running = std::count_if(slots_.begin(), slots_.end(),
                                       [&](const Slot& slot) { return slot.work && slot.work->job->client == job.client; });
    const auto turn = last_turns_.find(job.client);
    const std::pair<long, uint64_t> had(running, turn == last_turns_.end() ? 0 : turn->second);
    if (best == waiting_.size() || had < least) {
      best = i;
      least = had;
    }
  }
  return best;
}

void Scheduler::admit() {
  while (!memory_short_) {
    const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.work; });
    const size_t next = next_in_line();
    if (free == slots_.end() || next == waiting_.size()) return;
    std::unique_ptr<Work> work = std::move(waiting_[next]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
    ++busy_;
    --queued_;
    if (!start(*free, std::move(work))) return;
  }
}

// Gives the slot to the work. False: it was refused for want of room on the shelf.
bool Scheduler::start(Slot& slot, std::unique_ptr<Work> work) {
  slot.work = std::move(work);
  Work& mine = *slot.work;
  const Shelf::Taken taken = shelf_.take(mine.tokens, mine.job->ask.reuse, mine.loading.get());
  if (mine.loading && !mine.loading->done) keeper_->store().late();
  mine.loading.reset();
  if (taken.at < 0) {
    fail(slot, ApiError(500, "there is no place for another sequence"));
    return false;
  }
  mine.place = taken.at;
  mine.fed = taken.reused;
  slot.place = taken.at;
  slot.conversation = shelf_.at(taken.at).id;
  slot.task = ++tasks_begun_;
  if (last_turns_.size() >= kMostClients) last_turns_.clear();
  last_turns_[mine.job->client] = slot.task;
  if (mine.began == 0.0) {
    mine.began = now();
    mine.cached = taken.reused;
  }
  if (mine.fed == mine.tokens.size()) {  // the very prompt, with its logits
    const std::vector<float> logits = shelf_.at(taken.at).logits;
    prompt_read(mine, logits);
    pick(slot, logits);
  }
  return true;
}

void Scheduler::finish(Slot& slot, Finish finish) {
  Work& work = *slot.work;
  const std::string rest = work.stops.add(work.joiner.rest()) + work.stops.rest();
  auto tokens = work.stops.hit() ? work.trace.shown(rest.size()) : work.trace.rest();
  if (!rest.empty() || !tokens.empty()) work.job->mailbox->put({work.job->index, rest, std::nullopt, std::move(tokens)});
  Outcome outcome;
  outcome.finish = finish;
  end(slot, std::move(outcome));
}

void Scheduler::fail(Slot& slot, const ApiError& error) {
  Outcome outcome;
  outcome.error = error;
  end(slot, std::move(outcome));
}

void Scheduler::end(Slot& slot, Outcome outcome) {
  Work& work = *slot.work;
  if (work.place >= 0) shelf_.give_back(work.place);
  report(work, std::move(outcome));
  usual_s_ = usual_s_ + 0.2 * (now() - work.began - usual_s_);
  slot.work.reset();
  memory_short_ = false;
  --busy_;
}

// The last that its client hears of it.
void Scheduler::report(Work& work, Outcome outcome) {
  Job& job = *work.job;
  outcome.prompt_tokens = static_cast<uint32_t>(job.ask.prompt.size());
  outcome.cached_tokens = work.cached;
  outcome.written_tokens = work.written;
  if (work.first_token > 0.0) {
    outcome.prompt_s = work.first_token - work.began;
    outcome.write_s = work.last_token - work.first_token;
  }
  metrics_.update([&](Counts& counts) {
    counts.cached_tokens += outcome.cached_tokens;
    counts.prompt_s += outcome.prompt_s;
    counts.written_s += outcome.write_s;
    if (!outcome.error) return;
    const int status = outcome.error->status();
    ++(status == 499 ? counts.abandoned : status == 504 ? counts.timed_out : status == 429 ? counts.refused : counts.failed);
  });
  job.prompt_read = true;
  job.mailbox->put({job.index, "", std::move(outcome), {}});
}

void Scheduler::end_all() {
  take_inbox();
  const ApiError stopped(503, "the server was stopped");
  for (Slot& slot : slots_) {
    if (slot.work) fail(slot, stopped);
  }
  for (const auto& work : waiting_) {
    Outcome outcome;
    outcome.error = stopped;
    report(*work, std::move(outcome));
  }
  waiting_.clear();
  queued_ = 0;
  for (const double until = now() + kLastWords; shelf_.store_due() && now() < until;) {
    if (!shelf_.store_some() && keeper_->store().has_room()) break;
    if (!keeper_->store().has_room()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  errands_.clear();  // whoever waits for one hears that it was never run
}

std::vector<SlotView> Scheduler::slots() const {
  std::vector<SlotView> views;
  for (const Slot& slot : slots_) {
    SlotView view;
    view.id = static_cast<uint32_t>(views.size());
    view.task = slot.task;
    if (slot.work) {
      view.busy = true;
      view.prompt_tokens = static_cast<uint32_t>(slot.work->job->ask.prompt.size());
      view.cached_tokens = slot.work->cached;
      view.written_tokens = slot.work->written;
    }
    if (slot.place >= 0 && shelf_.at(slot.place).id == slot.conversation) {
      const Conversation& held = shelf_.at(slot.place);
      view.place = slot.place;
      view.tokens = static_cast<uint32_t>(held.tokens.size());
      view.parked = held.parked;
    }
    views.push_back(view);
  }
  return views;
}

int32_t Scheduler::idle_place(uint32_t slot) const {
  const SlotView view = slots().at(slot);
  if (view.busy) throw ApiError(400, "slot " + std::to_string(slot) + " is busy", "id_slot");
  if (view.place >= 0 && shelf_.at(view.place).busy) {
    throw ApiError(400, "the conversation of slot " + std::to_string(slot) + " goes on in another slot", "id_slot");
  }
  return view.place;
}

void Scheduler::show(uint32_t slot, int32_t place) {
  slots_.at(slot).place = place;
  slots_.at(slot).conversation = place >= 0 ? shelf_.at(place).id : 0;
}

}  // namespace tierkv::serve
