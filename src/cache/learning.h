// learning.h — a cache's own learner: fed by append() and attention(), solved by a thread of low priority, its tables handed to the
// planner, its files read and written (tierkv/learning.h says what a user sees of it).
//
// Errors:   nothing here fails a call that feeds it: what goes wrong ends in `refused` and a sentence.
// Locks:    state_ is a leaf. tables_ is held while a calibration is given to the planner, so that one from outside is never
//           replaced by one that was learned; it comes before the planner's writer lock and is taken under no other.
// Threads:  any call from any thread. The destructor waits for the solver, which looks at `stopping_` between its steps.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "learn/learner.h"
#include "plan/planner.h"
#include "tierkv/learning.h"

namespace tierkv::cache {

class Learning {
 public:
  Learning() = default;
  // Sums of too little text are saved.
  ~Learning();
  Learning(const Learning&) = delete;
  Learning& operator=(const Learning&) = delete;

  // The planner outlives this.
  Status begin(const CacheConfig& config, plan::Planner& planner, LearningModel model, LearningOptions options);
  // A calibration from outside: learning ends, whatever it knows is dropped.
  Status replace(plan::Planner& planner, CalibrationPtr calibration);

  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  void add_rows(SeqId seq, uint32_t layer, uint32_t position, const RowsView& keys, const RowsView& values) noexcept;
  // Whether the log of the sums of these queries is worth having.
  bool wants(uint32_t layer, uint32_t position, uint32_t count) const noexcept;
  void add_queries(SeqId seq, uint32_t layer, uint32_t position, const RowsView& queries, const float* out, const float* lse,
                   float scale, float softcap, const Executor& run) noexcept;
  // The sequence went, or is no longer what it was.
  void forget(SeqId seq) noexcept;
  void set_residual(uint32_t layer, double mean_square) noexcept;

  LearningReport report(const plan::Planner& planner) const;

 private:
  std::shared_ptr<learn::Learner> learner() const noexcept;
  void start_solving() noexcept;
  void solve() noexcept;
  // Saves the tables and takes the file in their place, so that they need not stay in memory; `note` says what went wrong.
  CalibrationPtr keep(std::shared_ptr<calib::Calibration> solved, std::string& note) const;
  void finish(LearningPhase phase, std::string note, double seconds) noexcept;

  plan::Planner* planner_ = nullptr;
  std::string path_;
  calib::ModelId model_;
  uint64_t wanted_ = 0;
  uint64_t loaded_ = 0;  // tokens of earlier runs

  std::atomic<bool> active_{false};  // rows are wanted
  std::atomic<bool> stopping_{false};
  std::mutex tables_;

  mutable std::mutex state_;
  std::shared_ptr<learn::Learner> learner_;  // null: before and after
  LearningPhase phase_ = LearningPhase::off;
  std::string note_;     // what a user must know: why it was refused, or what could not be kept
  uint64_t tokens_ = 0;  // when it was over
  double seconds_ = 0.0;
  std::thread solver_;
};

}  // namespace tierkv::cache
