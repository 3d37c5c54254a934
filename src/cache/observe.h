// observe.h — what attention gave each token becomes the statistics that the eviction policy and the archive choose by, and a
// MassReport.
//
// One observer serves one stream for one attention call. It says beforehand which sums it wants of the backend (attn/mass.h), and
// afterwards folds them in, as if the queries had come one by one: the sums are made by many threads in any order, because what
// each query adds to each statistic is known from its place alone. A call that failed is not folded in at all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/mass.h"
#include "policy/policy.h"
#include "tiers/stream.h"

namespace tierkv::cache {

using tiers::HeadStream;
using tiers::kDeadPosition;
using tiers::StreamViews;

struct ObserveSettings {
  uint32_t signals = 0;              // floats per token; 0: no statistics
  const int* signal_slot = nullptr;  // [policy::kNumSignals], -1 where not kept
  uint32_t wanted = 0;               // of those, bit set of (1 << Signal): what this call shall change
  uint32_t observation = 32;         // queries in a window
  uint32_t window_queries = 0;       // already in the current one
  uint32_t group = 1;                // query heads per KV head
  bool recent_only = false;          // of tokens that are not archived yet. REQUIRES: no report, and no blocks
  bool blocks = false;               // take_blocks() is wanted, whether there is a report or not
  float total_times = 1.0f;          // what a query counts for in kMassTotal: more where others are not heard
};

// Totals of a long sequence hardly change with one query more: of its decoding steps every second one is heard, and counts twice,
// where totals are all that is kept. Layers take turns, so that steps take equally long.
inline constexpr uint32_t kLongTotals = 16384;
inline bool hears_totals(uint32_t position, uint32_t layer) { return (position + layer) % 2 == 0; }

class StreamObserver {
 public:
  // `positions` are the call's queries'. `report` may be null. Its tokens, when wanted, are already sized.
  StreamObserver(const ObserveSettings& settings, const HeadStream& stream, const StreamViews& views,
                 std::span<const uint32_t> positions, MassReport* report, uint32_t length);

  // What the backend shall sum up. Valid while the observer is where it is.
  attn::HeadMass wanted();
  // How many sums that are, and where they go: memory of the caller's that stays until the observer goes.
  size_t num_sums() const { return lanes_.size() * rows_; }
  void put_sums_at(float* sums) { sums_ = sums; }
  // The sums are there. Needs no memory.
  void fold();

  // What each view received, archived ones too. REQUIRES: a report, or ObserveSettings::blocks.
  std::vector<BlockMass> take_blocks() { return std::move(blocks_); }

 private:
  static constexpr int kNoLane = -1;
  // The weights of the queries in one sum per token, and how often tokens were looked at little if `low`.
  struct Lane {
    std::vector<float> weights;
    bool low = false;
  };

  bool keeps(policy::Signal signal) const { return settings_.signals && settings_.wanted >> signal & 1u && slot(signal) >= 0; }
  int slot(policy::Signal signal) const { return settings_.signal_slot[signal]; }
  void plan_lanes();
  void plan_low_counts(const HeadStream& stream);
  int lane(std::vector<float> weights, bool low = false);
  void fetch_stats(size_t v) const;
  void fold_view(float* stats, const float* sums, uint32_t rows) const;
  void report_view(size_t view, const float* sums);

  const ObserveSettings settings_;
  const StreamViews& views_;
  const std::span<const uint32_t> positions_;
  MassReport* report_;
  const size_t report_base_;
  std::vector<BlockMass> blocks_;
  uint32_t from_ = 0;                  // the first view
  size_t rows_ = 0;                    // of the views from there on
  uint32_t closings_ = 0;              // windows that end in this call
  float habit_ = 1.0f, faded_ = 1.0f;  // what this call leaves of ScissorHands' counts and of the fading score
  std::vector<Lane> lanes_;
  std::vector<attn::MassLane> asked_;
  std::vector<float> below_;
  float* sums_ = nullptr;
  int lane_of_[policy::kNumSignals], report_lane_ = kNoLane;
};

}  // namespace tierkv::cache
