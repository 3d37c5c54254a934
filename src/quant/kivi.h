// kivi.h — min/max codec: keys per channel over a group of tokens, values per token over a group of channels. 1..16 bits.
//
// Layout:   [codes, lanes.h][f16 scale per group][f16 minimum per group] (affine.h), or coded metadata with +s8 and +s4 (meta.h)
// Groups:   keys: the block's tokens; values: head_dim, at most 128. "-gN" (a multiple of 16) sets both and is cut to the axis.
// Error:    the stored grid always covers the group: |x - x'| <= scale/2 with the stored scale, which is
//           fp16:     (max - min + one fp16 step of min)/(2^bits - 1), rounded up to the next fp16;
//           +s8, +s4: larger by the coarser minimum (a 255th or 15th of the spread of 64 minimums) and at most 2.2 % (s8) or one
//                     of 15 log steps (s4) for the scale: meant for 4 bits and less, +s4 for rotated rows.
//           +clip gives up the bound for the least squared error of each group.
//           A constant group is f16(x), with fp16 metadata.
// Options:  +center (keys only, values take no notice: centered.h), +had (rotated.h).
// REQUIRES: tokens % 16 == 0. Refused: non-finite values, minimums past 65504 and 1-bit ranges past 65504 (fp16 metadata).
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_kivi(const CodecSpec& spec, Side side, const BlockShape& shape);

}  // namespace tierkv::quant
