// key_box.h — the box that the keys of a block lie in, in a few bytes: how large can a query's score be, without reading the block?
//
// Layout:   [bf16 step of the middles, one a run of 16 channels][bf16 step of the reaches, likewise][u8 middle of each channel, 128
//           is zero][u8 reach of each channel][1: the box is there; all zeros are none].
// Meaning:  every key x has |x_c - middle_c| <= reach_c. Reaches are rounded up, after the middles are rounded, so the box holds.
// Frame:    plain, the queries' own: one query serves all blocks, whatever their codecs are and wherever they begin.
// Scores:   with m = q·middle, r = sum of |q_c|·reach_c and s² = sum of (q_c·reach_c)², no score is above m + r. Scores spread as
// if
//           channels were independent stay about m ± s.
// Size:     2.25 bytes a channel and one; 128 tokens of 2-bit keys and values have 64.
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tierkv::quant {

size_t box_bytes(uint32_t head_dim);

// Of `count` rows, one after another; `out` gets box_bytes(). A row that is not finite, or none at all, makes no box.
void make_box(const float* rows, uint32_t count, uint32_t head_dim, std::byte* out);
bool has_box(const std::byte* box, uint32_t head_dim);

struct BoxScore {
  float middle = 0.0f, reach = 0.0f, spread = 0.0f;  // m, r and s above
};
// One for each query. REQUIRES: has_box().
void box_scores(const std::byte* box, uint32_t head_dim, const float* queries, uint32_t count, BoxScore* out);

}  // namespace tierkv::quant
