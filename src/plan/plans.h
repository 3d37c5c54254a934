// plans.h — the plans of all layers at one moment: what a Planner hands out, and never changes, but for two things: waiting for
// tables may end at any time, and a layer's rows may choose its archive, because neither may need memory or a lock.
//
// Lifetime: a Plans may be kept as long as one likes; the codecs and lists that its plans point to live as long as the planner.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/layer_plan.h"
#include "tierkv/stats.h"

namespace tierkv::plan {

class Plans {
 public:
  uint32_t num_layers() const { return static_cast<uint32_t>(layers_.size()); }
  // How a layer keeps the tokens of a sequence of this length, the tokens that are just being added included.
  // REQUIRES: layer < num_layers().
  LayerPlan layer(uint32_t layer, uint32_t length) const;
  // One per layer. REQUIRES: as many lengths as layers.
  std::vector<LayerPlan> all(std::span<const uint32_t> lengths) const;

  // Tier lengths and archive bits of every layer; of the shortest sequences' archive where it depends on the length, and what it is
  // without its rows' choice where they choose: this is what was set, archive_codec() what is.
  std::vector<LayerThresholds> thresholds() const;
  // The archive's codec in words: "klt1.875", or "kivi2, from 2048 tokens on squat2"; empty when the layer has no archive.
  std::string archive_codec(uint32_t layer) const;
  // Layers whose archive their rows choose: how many there are, and how many have chosen.
  struct Chosen {
    uint32_t of = 0, layers = 0;
  };
  Chosen chosen() const;
  // Bits that the archive spends on a number, scales and padding included, over all layers that have one; 0: none has.
  double archive_bits() const;
  // What tokens of the warm tier take in the archive, as a part of what they take now, where that is most.
  double archive_share() const;
  // Some layer's archive would be another with tables, and has a warm tier to wait in.
  bool can_wait() const;
  // What the largest block that any sequence can get comes to, by this measure of a codec's blocks.
  size_t largest_block(const std::function<size_t(const CodecEntry&)>& bytes, uint32_t kv_heads) const;

 private:
  friend class Planner;
  struct Step {                         // of the archive, by length
    uint32_t below = UINT32_MAX;        // sequences of fewer tokens; the last step takes all
    const CodecEntry* codec = nullptr;  // as in LayerPlan
    const CodecEntry* const* heads = nullptr;
  };
  struct Layer {
    LayerPlan plan;                              // all but the archive's codecs
    quant::CodecPair configured;                 // the archive as the configuration has it, "auto" resolved
    std::vector<Step> archive;                   // empty: there is none
    std::span<const CodecEntry* const> choices;  // as in LayerPlan, and they stay when one is taken
    bool may_wait = false;                       // tables would give it another archive, and there is a warm tier to wait in
    bool by_length() const { return archive.size() > 1; }
  };
  std::vector<Layer> layers_;
  // Which of its choices a layer has taken; -1: none yet, or it has none.
  int choice_of(uint32_t layer) const;
  // The archive's codec, of the longest sequences. REQUIRES: the layer has an archive.
  const CodecEntry& coldest(uint32_t layer) const;
  const std::atomic<bool>* waiting_ = nullptr;    // the planner's
  const std::atomic<uint8_t>* chosen_ = nullptr;  // the planner's: [layer], 0 or 1 and the number of the choice
};

}  // namespace tierkv::plan
