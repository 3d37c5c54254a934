// rotated.h — any codec in the Hadamard frame (frame.h).
//
// Layout:   the inner codec's bytes, of rotated rows.
// Error:    the inner codec's, measured in the rotated frame; lengths and dot products are unchanged.
// Frames:   frame() is Frame::hadamard: scores() takes rotated queries, accumulate() adds rotated sums.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

// REQUIRES: inner != nullptr and inner->frame() == Frame::plain.
std::unique_ptr<Codec> rotate_codec(std::unique_ptr<Codec> inner);

}  // namespace tierkv::quant
