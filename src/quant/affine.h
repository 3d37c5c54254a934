// affine.h — the engine behind every packed codec: x' = offset + scale·code (or scale·table[code]) with one scale per group.
//
// A codec is a Recipe: which way groups run, how a group is fitted (grid.h), how its scale is stored (meta.h), how many bits.
//
// Layout:   [codes, lanes.h, a multiple of 64 bytes][metadata, meta.h]
//           Groups in the metadata: Axis::channel: by token group, then channel; Axis::token: by channel group, then token.
// Scores:   scales of a channel go into the query once per token group, scales of a token onto the finished sum, offsets become one
//           number per (query, group). One tile of 16 lanes at a time is unpacked, into a buffer all queries share.
// Error:    that of the fit and its rounding; Rounding::cover with FitKind::range keeps |x - x'| <= scale/2.
// REQUIRES: tokens % 16 == 0, head_dim % 16 == 0, groups in steps of 16 (so that a tile lies in one group).
#pragma once

#include "quant/codec.h"
#include "quant/grid.h"
#include "quant/lanes.h"
#include "quant/meta.h"

namespace tierkv::quant {

// What a scale belongs to: a channel over a run of tokens (keys only), or a token over a run of channels.
enum class Axis : uint8_t { channel, token };

struct Recipe {
  Axis axis = Axis::token;
  uint32_t group = 0;  // values along the other axis that share a scale; the last group may be shorter
  uint32_t bits = 0;
  FitKind fit = FitKind::range;
  MetaKind meta = MetaKind::f16_pair;
  Rounding rounding = Rounding::cover;
  float zero = 0.0f;             // for metadata without a minimum: the code of value 0
  const float* table = nullptr;  // 2^bits ascending levels in units of the scale; replaces the uniform grid
  bool rotated = false;          // rows come rotated, so no channel stands out
  bool keep_fit_codes = false;   // take the codes with the fit's own step (a scale refit without bias)
};

// The group a spec asks for along an axis of `length`: the default, or a multiple of 16 cut to the axis.
Result<uint32_t> resolve_group(const CodecSpec& spec, uint32_t length, uint32_t fallback);

Result<std::unique_ptr<Codec>> make_affine(const CodecSpec& spec, Side side, const BlockShape& shape, const Recipe& recipe);

}  // namespace tierkv::quant
