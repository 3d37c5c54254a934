// turned_queries.h — queries turned back to where a block begins, for codecs in Frame::block.
//
// Attention goes from a block to the next, and the next begins as many positions later as a block has tokens: one rotation that is
// the same all the way. So queries are turned on from where they are, in vectors, instead of afresh with sines composed for every
// block.
// Error:    rounding of a few turns in 32-bit floats; every kMostSteps-th block of a sequence queries are turned afresh.
// Bits:     the same for a block whoever asks: they depend on its position, not on the blocks before it.
#pragma once

#include "calib/rope.h"
#include "quant/codec.h"

namespace tierkv::quant {

inline constexpr uint32_t kMostSteps = 16;

// count x head_dim in `ws` until its next use. `turner` has to live as codecs do (Workspace::queries_id).
const float* turn_to_block(const calib::Turner& turner, const BlockShape& shape, const float* queries, uint32_t count,
                           uint32_t first_position, Workspace& ws);

}  // namespace tierkv::quant
