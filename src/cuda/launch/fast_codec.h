// fast_codec.h — what the fast paths have to know of a codec, in few bytes: a host puts it into a launch's parameters, a device
// keeps it in shared memory.
#pragma once

#include "cuda/launch/better.h"
#include "cuda/launch/desc.h"

namespace tierkv::cuda {

// klt's steps whose words are taken four at a time (fragments.h).
TIERKV_BOTH uint32_t klt_grouped(const quant::SideLayout& key) { return key.words[0] / 4 * 4; }

TIERKV_BOTH FastCodec fast_codec(const CodecDesc& codec) {
  FastCodec out;
  const bool words = codec.key.kind == quant::LayoutKind::words;
  const uint32_t better = better_bytes(codec.value_better == 0 ? 0 : kMostFastBetter, codec.value.head_dim);
  out.key_bytes = static_cast<uint16_t>(padded_bytes(codec.key.bytes));
  out.value_bytes = static_cast<uint16_t>(padded_bytes(codec.value.bytes) + better);
  out.mean_at = static_cast<uint16_t>(words ? 0 : codec.key.mean_at);
  if (words) out.fragments = codec.key_fragments, out.turns = codec.key.turns;
  out.steps = static_cast<uint8_t>(words ? klt_steps(codec.key) : 0);
  out.grouped = static_cast<uint8_t>(words ? klt_grouped(codec.key) : 0);
  out.by_channel = codec.key.by_channel, out.key_hadamard = codec.key.hadamard, out.value_hadamard = codec.value.hadamard;
  out.value_bits = codec.value.bits;
  out.key_zero = codec.key.zero, out.value_zero = codec.value.zero;
  out.value_meta = codec.value.meta;
  return out;
}

// The first segment of a fast thread block, with a codec of the parameters.
TIERKV_BOTH SegmentDesc first_segment(const CtaFirst& first, uint32_t codec, Path path) {
  SegmentDesc out;
  out.task = first.task, out.first_view = first.first_view, out.views = first.views;
  out.partial = first.first_partial + first.own_partial, out.first_row = first.first_row;
  out.codec = codec, out.path = path;
  out.first_partial = first.first_partial, out.partials = first.partials;
  return out;
}

}  // namespace tierkv::cuda
