// layer_plan.h — how one layer keeps its tokens at this moment: tier lengths and the codec of each tier.
#pragma once

#include <cstdint>

#include "quant/codec_set.h"
#include "tierkv/config.h"

namespace tierkv::plan {

using quant::CodecEntry;

// The archive's codecs by the length of the sequence (quant::adaptive_steps()).
struct LengthChoice {
  struct Step {
    uint32_t below = 0;
    const CodecEntry* codec = nullptr;  // as in LayerPlan
    const CodecEntry* const* heads = nullptr;
  };
  Step steps[quant::kAdaptiveSteps];
};

// One layer's settings as they are at this moment.
struct LayerPlan {
  uint32_t hot = 0;
  uint32_t warm = 0;
  uint32_t sinks = 0;
  uint32_t window = 0;
  uint32_t slack = 0;
  bool ring = false;
  const CodecEntry* warm_codec = nullptr;            // null when warm == 0
  const CodecEntry* archive_codec = nullptr;         // null when warm == kAll; of head 0 where every head has its own
  const CodecEntry* const* archive_heads = nullptr;  // [kv head], or null: all have archive_codec
  const LengthChoice* choice = nullptr;              // or null: archive_codec serves every length
  const CodecEntry* sink_codec = nullptr;            // null when sinks == 0
  const CodecEntry* raw_warm = nullptr;              // 16-bit rows in blocks of the same size: for rows a codec refuses
  const CodecEntry* raw_archive = nullptr;

  const CodecEntry* archive(uint32_t head) const { return archive_heads ? archive_heads[head] : archive_codec; }
  // The plan for a sequence of this length: its archive codecs chosen, where there is a choice.
  LayerPlan at_length(uint32_t length) const;
  // What the tail graduates into, in blocks of this many tokens.
  const CodecEntry* first_codec(uint32_t head) const { return warm ? warm_codec : archive(head); }
  uint32_t first_block() const { return first_codec(0) ? first_codec(0)->tokens : 0; }
  // Rows a linear tail holds at most in the ordinary course of things; 0: no bound.
  uint32_t tail_bound() const;
};

}  // namespace tierkv::plan
