#include "cache/learning.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/guarded.h"
#include "base/mapped_memory.h"
#include "base/modest_thread.h"
#include "base/status_macros.h"
#include "cache/learning_text.h"

namespace tierkv::cache {
namespace {

namespace fs = std::filesystem;

Status check_rope(const calib::Rope& rope, uint32_t layer, uint32_t head_dim) {
  std::vector<bool> named(head_dim, false);
  for (const calib::RopePair& pair : rope) {
    if (pair.a >= head_dim || pair.b >= head_dim || pair.a == pair.b || named[pair.a] || named[pair.b]) {
      return error(StatusCode::invalid_argument, "the RoPE of layer ", layer, " pairs channels ", pair.a, " and ", pair.b,
                   ": each is one of ", head_dim, " and in one pair");
    }
    if (!std::isfinite(pair.angle)) return error(StatusCode::invalid_argument, "the RoPE of layer ", layer, " is not finite");
    named[pair.a] = named[pair.b] = true;
  }
  return {};
}

Status check_model(const LearningModel& model, const CacheConfig& config) {
  if (model.ropes.size() != config.num_layers) {
    return error(StatusCode::invalid_argument, "RoPE of ", model.ropes.size(), " layers, this cache has ", config.num_layers);
  }
  for (uint32_t l = 0; l < config.num_layers; ++l) TIERKV_RETURN_IF_ERROR(check_rope(model.ropes[l], l, config.head_dim));
  if (model.grams.empty()) return {};
  if (model.grams.size() != config.num_layers) {
    return error(StatusCode::invalid_argument, "output projections of ", model.grams.size(), " layers, this cache has ",
                 config.num_layers);
  }
  const size_t size = static_cast<size_t>(config.query_heads()) * config.head_dim * config.head_dim;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    const std::vector<float>& gram = model.grams[l];
    if (!gram.empty() && gram.size() != size) {
      return error(StatusCode::invalid_argument, "the output projection of layer ", l, " has ", gram.size(), " numbers, not ",
                   size);
    }
    for (const float x : gram) {
      if (!std::isfinite(x)) return error(StatusCode::invalid_argument, "the output projection of layer ", l, " is not finite");
    }
  }
  return {};
}

// Tokens that a run must have seen for its sums to be kept.
constexpr uint64_t kWorthAFile = 256;

std::string sums_path(const std::string& path) { return path + ".sums"; }

}  // namespace

Learning::~Learning() {
  stopping_ = true;
  active_ = false;
  if (solver_.joinable()) solver_.join();
  if (!learner_ || path_.empty() || learner_->tokens() < loaded_ + kWorthAFile) return;
  try {
    std::error_code ignored;
    fs::create_directories(fs::path(path_).parent_path(), ignored);
    (void)learner_->save_sums(sums_path(path_)).ok();  // there is nobody left to tell
  } catch (const std::exception&) {
    // Without memory the sums of this run are lost, and nothing else.
  }
}

Status Learning::begin(const CacheConfig& config, plan::Planner& planner, LearningModel model, LearningOptions options) {
  TIERKV_RETURN_IF_ERROR(check_model(model, config));
  if (options.tokens == 0) return error(StatusCode::invalid_argument, "learning needs at least one token");
  learn::LearnModel known;
  known.id = {std::move(model.name), model.fingerprint,   config.num_layers,
              config.query_heads(),  config.num_kv_heads, config.head_dim};
  known.ropes = std::move(model.ropes);
  known.grams = std::move(model.grams);
  for (uint32_t l = 0; l < config.num_layers; ++l) known.windows.push_back(planner.shape(l).window);
  learn::LearnSettings settings;
  settings.block = config.archive_block;
  settings.sinks = config.tiers.sinks;
  settings.tokens = options.tokens;
  const calib::ModelId id = known.id;
  TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<learn::Learner> learner, learn::Learner::create(std::move(known), settings));
  std::string note;
  if (!options.path.empty()) {
    const Status loaded = learner->load_sums(sums_path(options.path));
    if (!loaded.ok() && loaded.code() != StatusCode::not_found) note = "what earlier runs saw is not used: " + loaded.message();
  }

  std::lock_guard lock(state_);
  if (phase_ != LearningPhase::off || learner_) {
    return error(StatusCode::failed_precondition, "this cache learns already, or has learned");
  }
  planner_ = &planner;
  path_ = std::move(options.path);
  model_ = id;
  wanted_ = options.tokens;
  loaded_ = learner->tokens();
  note_ = std::move(note);
  learner_ = std::move(learner);
  phase_ = LearningPhase::gathering;
  planner.set_waiting(true);
  active_ = true;
  return {};
}

Status Learning::replace(plan::Planner& planner, CalibrationPtr calibration) {
  std::lock_guard tables(tables_);
  TIERKV_RETURN_IF_ERROR(planner.set_calibration(std::move(calibration)));
  const ReturnHeapMemory afterwards;        // the tables' file was read whole, and is not needed again
  std::shared_ptr<learn::Learner> dropped;  // freed without the lock
  std::lock_guard lock(state_);
  active_ = false;
  stopping_ = true;
  dropped.swap(learner_);
  if (phase_ == LearningPhase::gathering || phase_ == LearningPhase::solving) phase_ = LearningPhase::off;
  return {};
}

std::shared_ptr<learn::Learner> Learning::learner() const noexcept {
  std::lock_guard lock(state_);
  return active_ ? learner_ : nullptr;
}

void Learning::add_rows(SeqId seq, uint32_t layer, uint32_t position, const RowsView& keys, const RowsView& values) noexcept {
  const auto learner = this->learner();
  // The others are to see the same tokens, and a long prompt may have come to this layer as a whole.
  if (!learner || learner->has_enough(layer)) return;
  learner->add_rows(seq, layer, position, keys, values);
  if (learner->ready()) start_solving();
}

bool Learning::wants(uint32_t layer, uint32_t position, uint32_t count) const noexcept {
  const auto learner = this->learner();
  for (uint32_t i = 0; learner && i < count; ++i) {
    if (learner->wants_query(layer, position + i)) return true;
  }
  return false;
}

void Learning::add_queries(SeqId seq, uint32_t layer, uint32_t position, const RowsView& queries, const float* out,
                           const float* lse, float scale, float softcap, const Executor& run) noexcept {
  if (const auto learner = this->learner()) learner->add_queries(seq, layer, position, queries, out, lse, scale, softcap, run);
}

void Learning::forget(SeqId seq) noexcept {
  if (!active()) return;
  if (const auto learner = this->learner()) learner->forget(seq);
}

void Learning::set_residual(uint32_t layer, double mean_square) noexcept {
  if (!active() || !std::isfinite(mean_square) || !(mean_square > 0.0)) return;
  if (const auto learner = this->learner()) learner->set_residual(layer, mean_square);
}

void Learning::start_solving() noexcept {
  std::lock_guard lock(state_);
  if (phase_ != LearningPhase::gathering) return;
  active_ = false;
  tokens_ = learner_->tokens();
  try {
    solver_ = std::thread([this] { solve(); });
    phase_ = LearningPhase::solving;
  } catch (const std::exception&) {
    phase_ = LearningPhase::refused;
    note_.assign("no thread");  // short enough to need no memory
    planner_->set_waiting(false);
  }
}

void Learning::solve() noexcept {
  be_modest(19);
  std::shared_ptr<learn::Learner> learner;
  {
    std::lock_guard lock(state_);
    learner = learner_;
  }
  if (!learner) return;
  const auto start = std::chrono::steady_clock::now();
  std::string note;
  const Status status = guarded("make tables", [&]() -> Status {
    TIERKV_ASSIGN_OR_RETURN(auto solved, learner->solve("text that went by", [this] { return stopping_.load(); }));
    if (stopping_) return {};
    CalibrationPtr calibration = keep(std::move(solved), note);
    std::lock_guard tables(tables_);
    if (stopping_) return {};
    return planner_->set_calibration(std::move(calibration));
  });
  learner.reset();
  if (stopping_) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (status.ok()) {
    finish(LearningPhase::done, std::move(note), seconds);
  } else {
    // Sums that no tables can be made of must not spoil every run to come.
    std::error_code ignored;
    if (!path_.empty() && loaded_ * 2 >= wanted_) fs::remove(sums_path(path_), ignored);
    finish(LearningPhase::refused, status.message(), seconds);
  }
  return_heap_memory();  // the sample was some tens of MiB
}

CalibrationPtr Learning::keep(std::shared_ptr<calib::Calibration> solved, std::string& note) const {
  if (path_.empty()) return solved;
  std::error_code ignored;
  // Another program was faster: sessions that it saves name its tables.
  if (fs::exists(path_, ignored)) {
    auto theirs = load_calibration(path_);
    if (theirs.status().code() == StatusCode::unsupported) {
      note = "the tables are used and not kept: " + theirs.status().message();
      return solved;
    }
    if (theirs.ok() && (*theirs)->check_model(model_).ok() && (*theirs)->has_klt() && (*theirs)->block == solved->block) {
      return *theirs;
    }
  }
  fs::create_directories(fs::path(path_).parent_path(), ignored);
  if (const Status saved = solved->save(path_); !saved.ok()) {
    note = "the tables are used and could not be kept: " + saved.message();
    return solved;
  }
  fs::remove(sums_path(path_), ignored);
  auto loaded = load_calibration(path_);
  return loaded.ok() && (*loaded)->id() == solved->id() ? *loaded : CalibrationPtr(solved);
}

void Learning::finish(LearningPhase phase, std::string note, double seconds) noexcept {
  std::shared_ptr<learn::Learner> dropped;  // freed without the lock
  std::lock_guard lock(state_);
  if (phase_ != LearningPhase::solving) return;
  phase_ = phase;
  note_ = std::move(note);
  seconds_ = seconds;
  dropped.swap(learner_);
  if (phase == LearningPhase::refused) planner_->set_waiting(false);
}

LearningReport Learning::report(const plan::Planner& planner) const {
  LearningReport report;
  std::string note;
  {
    std::lock_guard lock(state_);
    report.phase = phase_;
    report.tokens = learner_ ? learner_->tokens() : tokens_;
    report.wanted = wanted_;
    report.bytes = learner_ ? learner_->bytes() : 0;
    report.seconds = seconds_;
    note = note_;
  }
  report.waiting = planner.waiting();
  report.sentence = learning_sentence(report, note, *planner.now());
  return report;
}

}  // namespace tierkv::cache
