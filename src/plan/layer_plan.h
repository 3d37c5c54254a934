// layer_plan.h — how one layer keeps its tokens at this moment: tier lengths and the codec of each tier. plan::Planner makes them.
#pragma once

#include <cstdint>
#include <span>

#include "quant/codec_set.h"
#include "tierkv/config.h"

namespace tierkv::plan {

using quant::CodecEntry;

// What follows from the configuration alone and never changes.
struct LayerShape {
  uint32_t sinks = 0;
  uint32_t window = 0;  // 0: every token is seen for ever
  uint32_t slack = 0;
  bool ring = false;  // the hot rows cover the window: nothing is ever encoded
};

// One layer's settings for a sequence of one length, as they are at this moment. What it points to lives as long as its planner.
struct LayerPlan : LayerShape {
  uint32_t hot = 0;
  uint32_t warm = 0;
  const CodecEntry* warm_codec = nullptr;            // null when warm == 0; of head 0 where every head has its own
  const CodecEntry* const* warm_heads = nullptr;     // [kv head], or null: all have warm_codec
  const CodecEntry* archive_codec = nullptr;         // null when warm == kAll; of head 0 where every head has its own
  const CodecEntry* const* archive_heads = nullptr;  // [kv head], or null: all have archive_codec
  const CodecEntry* const* guide_heads = nullptr;    // [kv head]: whose tables guide the warm codec; null: there are none
  const CodecEntry* sink_codec = nullptr;            // null when sinks == 0
  const CodecEntry* raw_warm = nullptr;              // 16-bit rows in blocks of the same size: for rows a codec refuses
  const CodecEntry* raw_archive = nullptr;
  // Tables for the archive are being learned: what is due for it stays in the warm tier until they are there.
  bool waiting = false;
  // What the archive could be, smallest first: the first rows that are due for it decide (Planner::choose()). Until then it is
  // archive_codec. Empty: there is nothing to decide, or it is decided.
  std::span<const CodecEntry* const> choices;

  const CodecEntry* warm_of(uint32_t head) const { return warm_heads ? warm_heads[head] : warm_codec; }
  const CodecEntry* archive(uint32_t head) const { return archive_heads ? archive_heads[head] : archive_codec; }
  // quant::BlockContext::guide of what the tail graduates into.
  const quant::Codec* guide(uint32_t head) const { return guide_heads ? guide_heads[head]->key.get() : nullptr; }
  // What the tail graduates into, in blocks of this many tokens.
  const CodecEntry* first_codec(uint32_t head) const { return warm ? warm_of(head) : archive(head); }
  uint32_t first_block() const { return first_codec(0) ? first_codec(0)->tokens : 0; }
  // Rows a linear tail holds at most in the ordinary course of things; 0: no bound.
  uint32_t tail_bound() const;
};

}  // namespace tierkv::plan
