#include "learning.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "interrupt.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

const char* phase_name(LearningPhase phase) {
  switch (phase) {
    case LearningPhase::gathering: return "gathering";
    case LearningPhase::solving: return "solving";
    case LearningPhase::done: return "done";
    case LearningPhase::refused: return "refused";
    case LearningPhase::off: break;
  }
  return "off";
}

// Tokens between two remarks of the same phase.
constexpr uint64_t kRemarkEvery = 256;

}  // namespace

SessionOptions learning_session(uint32_t ctx) {
  SessionOptions options;
  options.ctx = ctx;
  options.learning = Learning::in_passing;
  return options;
}

void LearningRemarks::tell(Session& session) {
  AdaptiveKVCache* cache = session.cache();
  if (quiet_ || cache == nullptr) return;
  const LearningReport report = cache->learning();
  const bool first = !std::exchange(began_, true);
  if (first && !engine_.calibration_note().empty()) remark(dim(engine_.calibration_note()) + "\n");
  if (report.phase == LearningPhase::off) {
    if (first && !cache->calibration() && wants_calibration(cache->config())) remark(dim(report.sentence) + "\n");
    return;
  }
  const bool grew = report.phase == LearningPhase::gathering && report.tokens >= tokens_ + kRemarkEvery;
  if (!first && report.phase == phase_ && !grew) return;
  phase_ = report.phase;
  tokens_ = report.tokens;
  remark(dim(report.sentence) + "\n");
}

void LearningRemarks::finish(Session& session) {
  AdaptiveKVCache* cache = session.cache();
  if (cache == nullptr || cache->learning().phase != LearningPhase::solving) return;
  tell(session);
  if (!quiet_) remark(dim("waiting for the tables, which the next run will have from its start; Ctrl-C does not") + "\n");
  while (!interrupted() && cache->learning().phase == LearningPhase::solving) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  tell(session);
}

nlohmann::json learning_json(Session& session) {
  const AdaptiveKVCache* cache = session.cache();
  if (cache == nullptr) return nullptr;
  const LearningReport report = cache->learning();
  return {{"phase", phase_name(report.phase)}, {"tokens", report.tokens}, {"wanted", report.wanted},  {"waiting", report.waiting},
          {"sentence", report.sentence},       {"bytes", report.bytes},   {"seconds", report.seconds}};
}

}  // namespace tierkv::cli
