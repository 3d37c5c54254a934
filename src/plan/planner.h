// planner.h — the one place that answers "which codec, which tier lengths": from the configuration, the calibration, the
// thresholds that quality feedback moves, and the length of the sequence.
//
// Failing:  a call that takes something changes nothing when it fails: not the plans, the calibration, the codecs there are, or
//           what was learned from scores.
// Threads:  any call from any thread. Readers get an immutable Plans and never wait for a writer's work. Sequences that run follow
//           at their next append.
// Locks:    order: writer_, then the leaves. writer_ serialises writers alone; it is held while tables are read from a file and
//           codecs are made, no reader takes it, and no other lock of the cache may be held by who calls a writer. leaf_ guards
//           two pointers' worth of state and is never held while anything else happens.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plan/plans.h"
#include "plan/thresholds.h"
#include "quant/codec_set.h"
#include "tierkv/config.h"
#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace tierkv::plan {

class Planner {
 public:
  // `calibration`: null for none. It becomes the set's. `hot_rows`: the most rows that one view of a hot tail shows.
  // failed_precondition: a codec needs tables that there are none of. REQUIRES: a valid configuration; the set outlives the
  // planner.
  static Result<std::unique_ptr<Planner>> create(const CacheConfig& config, quant::CodecSet& codecs, CalibrationPtr calibration,
                                                 uint32_t hot_rows);

  // --- readers
  // As things are now. For one question the calls below; for several answers that must agree, keep this.
  std::shared_ptr<const Plans> now() const;
  LayerPlan layer(uint32_t layer, uint32_t length) const { return now()->layer(layer, length); }
  std::vector<LayerPlan> all(std::span<const uint32_t> lengths) const { return now()->all(lengths); }
  std::vector<LayerThresholds> thresholds() const { return now()->thresholds(); }
  QualityMetrics quality_metrics() const;
  // What never changes, without a lock. REQUIRES: layer < the configuration's.
  const LayerShape& shape(uint32_t layer) const { return shapes_[layer]; }
  const CodecEntry& hot_codec() const { return *hot_codec_; }  // the tail's 16-bit rows
  // Whether something waits: set_waiting(true) was the last, and no calibration has come since.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed) && now()->can_wait(); }

  // --- writers
  // Blocks are made with these tables from now on, archives at the widths that are configured for them.
  // invalid_argument: null, or of another model.
  [[nodiscard]] Status set_calibration(CalibrationPtr calibration);
  // Whether archives that tables would change wait for them in the warm tier (LayerPlan::waiting). Plans that somebody keeps
  // follow. Needs no memory.
  void set_waiting(bool on) noexcept { waiting_.store(on, std::memory_order_relaxed); }
  // The layer's archive is LayerPlan::choices[choice] from now on, in every sequence; the first call decides. Plans that somebody
  // keeps follow. Needs no memory and no lock. The one that was decided. REQUIRES: the number of one of its choices.
  uint32_t choose(uint32_t layer, uint32_t choice) noexcept;
  // Lengths move, tiers do not come and go; a ring holds its window, and an archive by length its codecs, whatever this says.
  // What was measured so far does not speak about them. invalid_argument: not one per layer, or one beyond what their file takes.
  [[nodiscard]] Status set_thresholds(std::span<const LayerThresholds> wanted);
  // One score of quality; the thresholds move when the rule says so (thresholds.h).
  [[nodiscard]] Status add_score(double score);

 private:
  using HeadCodecs = std::vector<const CodecEntry*>;
  // What a writer makes before anybody sees it.
  struct Next {
    Plans plans;
    quant::CodecDraft codecs;
    std::list<HeadCodecs> lists;
  };

  Planner(const CacheConfig& config, quant::CodecSet& codecs);
  Status plan_layer(uint32_t layer, Next& next) const;
  Status plan_warm(uint32_t layer, Next& next) const;
  Status plan_guide(uint32_t layer, Next& next) const;
  Status plan_archive(uint32_t layer, Next& next) const;
  Status plan_choices(uint32_t layer, Next& next) const;
  Status plan_by_length(uint32_t layer, Next& next) const;
  Status move_layer(uint32_t layer, const LayerThresholds& wanted, Next& next) const;
  // The codecs of one layer's heads. Those that a calibration has no tables for get the uncalibrated codec.
  Result<Plans::Step> codecs_of(uint32_t layer, const quant::CodecPair& pair, uint32_t tokens, Next& next) const;
  const CodecEntry* const* keep_list(HeadCodecs heads, Next& next) const;
  // Makes the next plans by `change` and, when nothing failed, lets everybody see them with what was learned.
  template <class Change>
  Status replan(CalibrationPtr calibration, QualityTracker quality, Change&& change);
  Status apply_thresholds(std::span<const LayerThresholds> wanted, QualityTracker quality);

  const CacheConfig config_;
  quant::CodecSet& codecs_;
  quant::CodecPair raw_;  // 16-bit rows of the hot type
  std::vector<LayerShape> shapes_;
  const CodecEntry* hot_codec_ = nullptr;
  std::atomic<bool> waiting_{false};                // the plans point to it
  std::unique_ptr<std::atomic<uint8_t>[]> chosen_;  // and to this: [layer], 0 or 1 and the number of the choice

  std::mutex writer_;
  std::list<HeadCodecs> lists_;  // what LayerPlan::archive_heads point into; each different list once. Writers' own

  mutable std::mutex leaf_;
  std::shared_ptr<const Plans> plans_;
  QualityTracker quality_;  // written under both locks: a writer may read it without the leaf
};

}  // namespace tierkv::plan
