// learning.h — what a command says while its cache learns the model in passing (tierkv/learning.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/engine.h"
#include "engine_names.h"
#include "tierkv/learning.h"

namespace tierkv::cli {

// The options of a session whose cache learns a model that it has no calibration of.
SessionOptions learning_session(uint32_t ctx = 0);

// Says on stderr how learning goes, whenever there is something new to say: at the start, after what was read, when it is over.
class LearningRemarks {
 public:
  LearningRemarks(const Engine& engine, bool quiet) : engine_(engine), quiet_(quiet) {}
  void tell(Session& session);
  // Before the end of a run: tables that are being made are waited for, so that the next run has them. Ctrl-C ends that too.
  void finish(Session& session);

 private:
  const Engine& engine_;
  const bool quiet_;
  bool began_ = false;
  LearningPhase phase_ = LearningPhase::off;
  uint64_t tokens_ = 0;
};

// {"phase": "gathering", "tokens": 3100, "wanted": 8192, "waiting": true, "sentence": …}, as --json has it. Null for stock caches.
nlohmann::json learning_json(Session& session);

}  // namespace tierkv::cli
