// thresholds.h — what adaptation learns: tier lengths and archive bits per layer, the rule that moves them, and their file.
//
// File:     one JSON object: {"format": "tierkv thresholds", "version": 1,
//           "kv_threshold:MODEL:LAYER": {"hot": 64, "warm": 448, "archive_bits": 2}, …}.
//           Several models share a file: saving replaces the entries of one and keeps the others. Written atomically
//           (base/file.h); two programs that save different models at the same moment may lose one of the two saves.
// Rule:     ADR-004's. Mean score below the target: hot x1.2 (rounded up, at most 4096), archive bits +1 (at most 4).
//           Comfortably above it: hot x0.9 (at least 32), bits -1 (at least 2). Values already outside those bounds
//           ("all" hot rows, an 8-bit archive) are left alone.
// Comfort:  the document says 1.1 x target. A score is at most 1, so for targets above 0.91 that is never reached and nothing
//           would ever shrink again; comfort is therefore min(1.1 x target, halfway from the target to 1).
// Settling: the document compares every sample with the last 100, most of them from before the last change, and overshoots.
//           Here the mean is over the last 100 *since the last change*, and at least 16 must have come. Where no setting lies
//           between target and comfort the rule would swing for ever: a shrink that had to be taken back bars further
//           shrinking for kHistory samples.
// Threads:  QualityTracker is plain data; its owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace tierkv::plan {

// The most bits that an archive may be asked for; lengths have config's kMaxTokens, or kAll.
inline constexpr uint32_t kMostArchiveBits = 16;

[[nodiscard]] Status save_thresholds_file(const std::string& path, std::string_view model,
                                          std::span<const LayerThresholds> thresholds);
// One entry per layer, from layer 0 without a gap. not_found when the file or the model in it is missing.
[[nodiscard]] Result<std::vector<LayerThresholds>> load_thresholds_file(const std::string& path, std::string_view model);

// One step of the rule, each way.
LayerThresholds more_precise(LayerThresholds t);
LayerThresholds more_compact(LayerThresholds t);

class QualityTracker {
 public:
  static constexpr size_t kHistory = 1000;
  static constexpr size_t kRecent = 100;
  static constexpr uint64_t kMinSamples = 16;

  explicit QualityTracker(double target = 0.97) : target_(target) {}

  double target() const { return target_; }
  double comfort() const;
  // Takes one score and moves every layer's thresholds when the rule says so. True when one of them changed.
  // Refuses negative and non-finite scores; one above 1 counts as 1.
  [[nodiscard]] Result<bool> add(double score, std::span<LayerThresholds> thresholds);
  QualityMetrics metrics() const;
  // For thresholds that came from elsewhere: what was measured before does not speak about them.
  void restart_window() { since_change_ = 0; }

 private:
  enum class Move : uint8_t { none, up, down };
  double mean_of_last(size_t count) const;

  double target_;
  std::deque<double> scores_;
  uint64_t samples_ = 0;
  uint64_t since_change_ = 0;
  uint64_t adaptations_ = 0;
  uint64_t no_shrink_before_ = 0;  // in samples
  Move last_move_ = Move::none;
};

}  // namespace tierkv::plan
