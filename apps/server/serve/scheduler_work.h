// scheduler_work.h — what the scheduler knows of an answer under way.
#pragma once

#include "serve/scheduler.h"

namespace tierkv::serve {

struct Scheduler::Work {
  explicit Work(JobPtr of)
      : job(std::move(of)), sampler(job->ask.sampling, job->ask.seed), stops(job->ask.stop), tokens(job->ask.prompt) {
    const size_t looked_at = std::min(tokens.size(), static_cast<size_t>(job->ask.sampling.repeat_last));
    for (size_t i = tokens.size() - looked_at; i < tokens.size(); ++i) sampler.accept(tokens[i]);
  }

  JobPtr job;
  engine::Sampler sampler;
  engine::StopStrings stops;
  engine::Utf8Joiner joiner;
  TokenTrace trace;    // where probabilities are asked for
  Tokens tokens;       // the prompt, and what was written
  uint32_t fed = 0;    // of them are in the cache
  int32_t place = -1;  // on the shelf
  LoadingPtr loading;  // what the disk has of it; or null
  uint32_t cached = 0, written = 0;
  double began = 0.0, first_token = 0.0, last_token = 0.0;

  uint32_t pending() const { return static_cast<uint32_t>(tokens.size()) - fed; }
  bool writes() const { return written > 0 && pending() == 1; }
};

struct Scheduler::Slot {
  std::unique_ptr<Work> work;
  int32_t place = -1;         // of the conversation it had last
  uint64_t conversation = 0;  // its id
  uint64_t task = 0;
};

// A sequence's rows in a step.
struct Scheduler::Part {
  Slot* slot = nullptr;
  uint32_t rows = 0;
  int32_t last_row = 0;  // in the batch
};

}  // namespace tierkv::serve
