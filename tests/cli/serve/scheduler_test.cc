// The scheduler on a tiny model: turns, ends, and a shelf that makes room.
#include "serve/scheduler.h"

#include <gtest/gtest.h>

#include "engine/clock.h"
#include "engine/generate.h"

namespace tierkv::serve {
namespace {

using namespace std::chrono_literals;

class Scheduling : public testing::Test {
 protected:
  void open(uint32_t slots, uint32_t queue = 64, const std::string& kv = "balanced,calibrate=off") {
    engine::EngineOptions options;
    options.model = std::string(TIERKV_TINY_MODELS) + "/llama.gguf";
    options.threads = 2;
    engine_ = std::make_unique<engine::Engine>(options);
    engine::SessionOptions session;
    session.slots = slots;
    session.chunk = 8;
    session.cancel = &abort_;
    context_ = engine_->open_context(kv, session);
    SchedulerOptions scheduling;
    scheduling.slots = slots;
    scheduling.queue = queue;
    scheduling.context = 2048;
    scheduling.piece = 8;
    scheduler_ = std::make_unique<Scheduler>(*engine_, *context_, scheduling, abort_, metrics_);
  }

  JobPtr job(size_t prompt, uint32_t tokens, const std::string& client = "one") {
    auto made = std::make_shared<Job>();
    for (size_t i = 0; i < prompt; ++i) made->ask.prompt.push_back(static_cast<llama_token>(3 + (i * i + prompt * 31) % 200));
    made->ask.most_tokens = tokens;
    made->ask.ignore_end = true;
    made->client = client;
    made->arrived = engine::now();
    made->mailbox = std::make_shared<Mailbox>();
    return made;
  }

  static Outcome wait(const JobPtr& job, std::string* text = nullptr) {
    for (;;) {
      auto event = job->mailbox->take(60s);
      if (!event) {
        ADD_FAILURE() << "nothing came";
        return {};
      }
      if (text != nullptr) *text += event->text;
      if (event->outcome) return *event->outcome;
    }
  }

  engine::Cancellation abort_;
  Metrics metrics_;
  std::unique_ptr<engine::Engine> engine_;
  std::shared_ptr<engine::TieredContext> context_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(Scheduling, WritesWhatASessionOfItsOwnWrites) {
  open(2);
  const JobPtr one = job(8, 30);  // a prompt of one piece: the session below reads it in one too
  scheduler_->submit({one});
  std::string text;
  const Outcome outcome = wait(one, &text);
  EXPECT_FALSE(outcome.error.has_value());
  EXPECT_EQ(outcome.finish, Finish::length);
  EXPECT_EQ(outcome.written_tokens, 30u);

  const auto session = engine_->open_session("balanced,calibrate=off");
  session->feed(one->ask.prompt, engine::Want::last);
  engine::Sampler sampler({}, 0);
  engine::GenerateOptions options;
  options.tokens = 30;
  options.ignore_end = true;
  EXPECT_EQ(engine::generate(*engine_, *session, sampler, options).text, text);
}

TEST_F(Scheduling, NoneOfTheTokensAskedForIsAnAnswerToo) {
  open(1);
  const JobPtr none = job(20, 0);
  scheduler_->submit({none});
  const Outcome outcome = wait(none);
  EXPECT_FALSE(outcome.error.has_value());
  EXPECT_EQ(outcome.written_tokens, 0u);
}

TEST_F(Scheduling, ClientsTakeTurnsHoweverManyTheyAskFor) {
  open(1);
  std::vector<JobPtr> jobs;
  const auto mailbox = std::make_shared<Mailbox>();
  for (uint32_t i = 0; i < 7; ++i) {
    jobs.push_back(job(30 + i, 10, i < 6 ? "greedy" : "modest"));
    jobs.back()->index = i;
    jobs.back()->mailbox = mailbox;
  }
  scheduler_->submit(jobs);
  std::vector<uint32_t> order;
  while (order.size() < jobs.size()) {
    const auto event = mailbox->take(60s);
    ASSERT_TRUE(event.has_value());
    if (event->outcome) order.push_back(event->index);
  }
  // The other client has had no turn when the first of the six has ended: it is next, though five came before it.
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 6, 1, 2, 3, 4, 5}));
}

TEST_F(Scheduling, AFullQueueTakesAllOfARequestOrNothing) {
  open(1, 2);
  const JobPtr running = job(20, 1500);
  scheduler_->submit({running});
  while (scheduler_->busy() == 0) std::this_thread::yield();
  int status = 0;
  uint32_t after = 0;
  try {
    scheduler_->submit({job(9, 1), job(9, 1), job(9, 1)});
  } catch (const ApiError& error) {
    status = error.status();
    after = error.retry_after;
  }
  EXPECT_EQ(status, 429);
  EXPECT_GE(after, 1u);
  EXPECT_EQ(scheduler_->waiting(), 0u);
  running->abandoned = true;
  EXPECT_EQ(wait(running).error->status(), 499);
}

TEST_F(Scheduling, WhoTakesTooLongIsToldSo) {
  open(1);
  const JobPtr slow = job(20, 1900), late = job(20, 5);
  slow->deadline = engine::now() + 0.2;
  late->deadline = engine::now() - 1.0;
  scheduler_->submit({slow, late});
  EXPECT_EQ(wait(slow).error->status(), 504);
  EXPECT_EQ(wait(late).error->status(), 504);
}

TEST_F(Scheduling, StoppingEndsEverybody) {
  open(1);
  const JobPtr running = job(20, 1900), waiting = job(20, 5);
  scheduler_->submit({running, waiting});
  while (scheduler_->busy() == 0) std::this_thread::yield();
  scheduler_->stop();
  EXPECT_EQ(wait(running).error->status(), 503);
  EXPECT_EQ(wait(waiting).error->status(), 503);
  EXPECT_THROW(scheduler_->submit({job(9, 1)}), ApiError);
  EXPECT_THROW(scheduler_->on_thread([] {}), ApiError);
}

TEST_F(Scheduling, AnAnswerThatLacksMemoryGoesOnWhenAnotherHasEnded) {
  open(3, 64, "fp16,byte_budget=1500000");
  std::vector<JobPtr> jobs;
  std::vector<std::string> texts(3), alone(3);
  for (size_t i = 0; i < 3; ++i) jobs.push_back(job(200 + i, 400));
  scheduler_->submit(jobs);
  for (size_t i = 0; i < 3; ++i) {
    const Outcome outcome = wait(jobs[i], &texts[i]);
    EXPECT_FALSE(outcome.error.has_value()) << outcome.error->what();
    EXPECT_EQ(outcome.written_tokens, 400u);
  }
  EXPECT_GT(metrics_.counts().suspended, 0u);
  EXPECT_LE(context_->cache().memory_usage().peak_bytes, 1500000u);
}

}  // namespace
}  // namespace tierkv::serve
