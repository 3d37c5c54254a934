// rot.h — the archive without calibration: Hadamard frame, keys centred on a clipped unbiased grid, values on a min/max grid.
//
// Keys:     minus their block's channel mean (fp16, rotated frame: centered.h); per token a uniform mid-rise grid of 2^bits levels,
//           its step the one of least squared error, the stored scale refit so that <x', x> = <x, x>: large scores do not shrink.
//           [codes][f32 top, 8-bit log scale per token][f16 mean per channel]. Past 4 bits, where the rounding of the
//           scale would show, codes are taken with the stored scale instead of the fitted step.
// Values:   per token minimum and maximum, never clipped (clipping hurts values). [codes][log4_pair below 4 bits, log8_pair
//           from 4 on] (meta.h), one entry per token.
// Size:     128 tokens of 128 channels at 2 bits: keys 2.19 bits a value, values 2.08.
// Error:    no bound per value for keys. Values: half a step, and at the ends of a row the rounding of its coded minimum and
//           maximum (nearest, rot.cc says why): below 4 bits a 30th of the spread of 64 minimums plus half a log step of scale.
// REQUIRES: tokens % 16 == 0. Refused: non-finite values, rotated channel means past 65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

// Rotated rows on the grid of rot's keys, without their means. For values: unbiased where rot's minimum and maximum are merely
// safe.
Result<std::unique_ptr<Codec>> make_mid(const CodecSpec& spec, Side side, const BlockShape& shape);

Result<std::unique_ptr<Codec>> make_rot(const CodecSpec& spec, Side side, const BlockShape& shape);

}  // namespace tierkv::quant
