// kernels.h — the inner loops of attention and encoding, once per instruction set; isa.h says which one runs.
//
// Everything here works on raw pointers and plain structs: the files that implement it (kernels_*.cc over simd/body_*.h) are
// compiled for wider instruction sets than the rest, and nothing inline that others share may be compiled there.
//
// Scores and sums on codes multiply unsigned codes with signed bytes. The other side (queries with scales folded in, or weights) is
// rounded to such bytes per row: one plane (steps of max/127) or two (steps of max/32639), as PackedSide::factor_planes says. What
// the rounding does to the middle of the code range is put back exactly, so the error of a sum of products is that of n terms of
// step/2·|code - middle|.
// Threads:  pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/meta.h"

namespace tierkv::quant {

inline constexpr uint32_t kMaxCodeBits = 8;  // wider codes are left to the scalar code

// How the codes of one side of a block are packed (lanes.h) and what they mean: value = scale·unit·(level - zero) + offset, where
// the level is the code itself or 256·levels[code] + levels[16 + code].
struct PackedSide {
  struct Plane {
    uint32_t bits = 0;    // 8, 4, 2 or 1
    uint32_t chunks = 0;  // words per lane
    size_t offset = 0;    // of its first byte
  };
  uint32_t bits = 0;
  uint32_t depth = 0;  // positions of a lane, a multiple of 16
  Plane planes[4];
  uint32_t group = 0;   // values that share a scale along their axis
  uint32_t across = 0;  // scales of one group index
  uint32_t factor_planes = 1;
  const uint8_t* levels = nullptr;  // high bytes of sixteen levels, then their low bytes; or null
  float unit = 1.0f;
  float zero = 0.0f;
  float middle = 0.0f;  // of the levels
};

// The unit of kept weights: they are 1 at most, so all sixteen bits' range lies below, and full precision reaches 2^-29.
inline constexpr float kKeptUnit = 32768.0f;

// Square root of the sum of squares of 16-bit integers that are multiplied and added up (multiply_pairs()).
inline constexpr float kPairLength = 32000.0f;

// Words of 32 bits that hold 2-, 4- and 8-bit codes of one token (klt.h).
struct WordCounts {
  uint32_t words[3] = {0, 0, 0};
};

// A run of floats as step·integers.
struct RoundedRow {
  float step;
  float sum;          // of the floats
  float rounded_sum;  // of what the integers stand for
};

// Bytes that will be read after a call: it asks for them bit by bit while it works, because blocks lie apart, which no hardware
// prefetcher foresees, and asking for a whole block at once stalls.
struct Ahead {
  const std::byte* at = nullptr;
  size_t bytes = 0;
};

// Scratch of the calls below, in elements.
struct KernelScratch {
  int8_t* bytes = nullptr;  // kernel_bytes()
  float* floats = nullptr;  // kernel_floats()
  Ahead ahead;
};
inline size_t kernel_bytes(uint32_t depth, uint32_t count) {
  return static_cast<size_t>(depth) * (32 + 2 * static_cast<size_t>(count)) + 64;
}
inline size_t kernel_floats(uint32_t depth, uint32_t count, uint32_t groups) {
  return static_cast<size_t>(depth) + 4 * static_cast<size_t>(count) * groups + 16 * 8;
}

inline constexpr uint32_t kBoxRun = 16;  // channels of a box that share steps (key_box.h)

// What sixteen groups ask for, one a lane: GroupFit (grid.h) by field.
struct LaneFits {
  float lo[16], hi[16], scale[16], step[16];
};

// How codes are taken and read back. The grid of a value is [(position / group)·across + lane] where a scale belongs to a lane, and
// [(lane / group)·across + position] where it belongs to a position (group and across as in PackedSide).
struct LaneGrids {
  bool per_lane = false;
  const float* scales = nullptr;
  const float* offsets = nullptr;
  const float* table = nullptr;    // decode: sixteen levels in units of the scale, or null
  const float* middles = nullptr;  // encode: the sums of neighbouring levels of the table, 2^bits - 1 of them, or null
};

// Rows of a block that are kept better (overlaid.h), one after the other: row = step·(code - 3.5).
struct BetterRows {
  const std::byte* indices = nullptr;  // of the block's rows, a byte each
  const std::byte* steps = nullptr;    // half floats without their sign and their seven lowest bits
  const std::byte* codes = nullptr;    // of 3 bits, dim·3/8 bytes a row. The byte before the first is read too
  uint32_t count = 0;
  uint32_t dim = 0;  // % 16 == 0, at most 256
};

struct Kernels {
  const char* isa;

  // Queries as bytes, one rounding per query and run of `group` channels: factors[(i*planes + plane)*dim + c], terms[i*groups + g].
  void (*round_queries)(const float* queries, uint32_t count, uint32_t dim, uint32_t group, uint32_t planes, int8_t* factors,
                        RoundedRow* terms);
  // out[i*stride + t] = dot(queries[i], row t), t < rows. The scale of a group belongs to a token: queries come rounded, by
  // side.group and side.factor_planes. Or it belongs to a channel over a run of tokens.
  void (*scores_by_token)(const PackedSide&, const std::byte* codes, const float* scales, const float* offsets,
                          const int8_t* factors, const RoundedRow* terms, uint32_t count, uint32_t rows, float* out, size_t stride,
                          const KernelScratch&);
  void (*scores_by_channel)(const PackedSide&, const std::byte* codes, const float* scales, const float* offsets,
                            const float* queries, uint32_t count, uint32_t rows, float* out, size_t stride, const KernelScratch&);
  // out[i*stride + t] = base[i] + sum over components j of (code - middles[j])·factors[i*factor_stride + j], codes in the layout of
  // klt.h. n: components to whole vectors, n % 16 == 0; bytes: 2·count·n of scratch.
  void (*scores_by_word)(const WordCounts&, const std::byte* codes, const float* factors, size_t factor_stride,
                         const float* middles, const float* base, uint32_t count, uint32_t n, uint32_t rows, float* out,
                         size_t stride, int8_t* bytes, const Ahead&);
  // acc[i*dim + c] += sum over t < rows of weights[i*stride + t]·(row t)[c]. Weights are not negative.
  void (*accumulate)(const PackedSide&, const std::byte* codes, const float* scales, const float* offsets, const float* weights,
                     size_t stride, uint32_t count, uint32_t rows, uint32_t dim, float* acc, const KernelScratch&);

  // The same two for rows of 16-bit floats. dim % 16 == 0.
  void (*half_scores)(const uint16_t* rows, bool bf16, uint32_t dim, const float* queries, uint32_t count, uint32_t n, float* out,
                      size_t stride, float* scratch, const Ahead&);  // scratch: 16*dim
  void (*half_accumulate)(const uint16_t* rows, bool bf16, uint32_t dim, const float* weights, size_t stride, uint32_t count,
                          uint32_t n, float* acc, const Ahead&);
  // out[i*n + j] = sum over c < dim of rows[i*dim + c]·matrix[c*n + j]. n % 16 == 0.
  void (*multiply)(const float* matrix, uint32_t n, const float* rows, uint32_t dim, uint32_t count, float* out);
  // The same in 16-bit integers, where fast_pairs says that it is worth it. The matrix comes from rows of 16-bit floats: a word of
  // channels c and c + 1, the first in its low half, is round(scales[j]·halves[c*n + j]) and its neighbour below. Products are
  // sums·units[j]/scales[i] of rows that are rounded by scales[i]; a scale of 0 gives 0. Columns and rows in integers must be no
  // longer than kPairLength, so that no sum of products leaves 32 bits: each product is then off by 2e-5 of the two lengths, about.
  bool fast_pairs;
  void (*pair_rows)(const uint16_t* halves, uint32_t dim, uint32_t n, const float* scales, int32_t* out);
  void (*multiply_pairs)(const int32_t* matrix, const float* units, uint32_t n, const float* rows, const float* scales,
                         uint32_t dim, uint32_t count, float* out);
  // Queries times better rows, but for their steps: out[i*better.count + k]. With `turn`, queries go through rotate_rows(.., run,
  // turn, forward) first. Then what that adds to scores, out[i*stride + index] += step·product, every index below `rows`; and what
  // better rows add to sums, acc[i*dim + c] += weights[i*stride + index]·row[c].
  void (*better_products)(const BetterRows&, const float* queries, const float* turn, uint32_t run, uint32_t count, float* out);
  void (*add_products)(const BetterRows&, const float* products, uint32_t count, uint32_t rows, float* out, size_t stride);
  void (*better_sums)(const BetterRows&, const float* weights, size_t stride, uint32_t count, float* acc);
  // Of each query with a box (key_box.h): q·middle, the sum of |q|·reach, and of its squares, three floats each. dim % 16 == 0.
  void (*box_scores)(const std::byte* box, uint32_t dim, const float* queries, uint32_t count, float* out);
  // out[i] = value of a 16-bit float, n % 16 == 0.
  void (*widen)(const uint16_t* in, bool bf16, uint32_t n, float* out);

  // Metadata (meta.h), the same bits as the scalar code: factor·table[code]; lo + step·code; and levels[low nibble] beside lo +
  // step·(high nibble).
  void (*lookup_bytes)(const float* table256, float factor, const std::byte* codes, uint32_t n, float* out);
  void (*affine_bytes)(float lo, float step, const std::byte* codes, uint32_t n, float* out);  // lo + step·code
  void (*lookup_nibbles)(const float* levels16, float lo, float step, const std::byte* codes, uint32_t n, float* scales,
                         float* offsets);

  // Softmax pieces and a dot product over n % 16 == 0 floats: the largest; e^(x - m) in place and their sum (0 for what lies 87 and
  // more below).
  float (*largest)(const float* x, uint32_t n);
  float (*exp_sum)(float* x, uint32_t n, float m);
  float (*dot)(const float* a, const float* b, uint32_t n);

  // --- encoding and decoding of whole blocks: the same bits as the scalar code of grid.h, lanes.h, frame.h and base/f16.h

  // Fits sixteen groups of n values, x[i*stride + lane]. `centre`: midrise_centre() of grid.h.
  void (*fit_lanes)(FitKind kind, const float* x, size_t stride, uint32_t n, uint32_t levels, float centre, LaneFits& fits);
  // tile[c*16 + r] = rows[r*stride + c] for r < 16, c < n. n % 16 == 0.
  void (*transpose_tile)(const float* rows, size_t stride, uint32_t n, float* tile);
  // Codes x[position*stride + lane] of one tile and packs them. bytes: 16·depth of scratch.
  void (*encode_tile)(const PackedSide&, const LaneGrids&, uint32_t tile, const float* x, size_t stride, std::byte* out,
                      uint8_t* bytes);
  // Positions first..first+count-1 of one tile: out[(position - first)*stride + lane], and for a tile whose lanes are rows
  // out[lane*stride + position], all positions. bytes: 16·depth of scratch.
  void (*decode_columns)(const PackedSide&, const LaneGrids&, uint32_t tile, const std::byte* codes, uint32_t first, uint32_t count,
                         float* out, size_t stride, uint8_t* bytes);
  void (*decode_rows)(const PackedSide&, const LaneGrids&, uint32_t tile, const std::byte* codes, float* out, size_t stride,
                      uint8_t* bytes);

  // Rows of dim floats: signs and a Walsh–Hadamard transform of each run of `run` channels (forward), or the transform and then the
  // signs; in == out is allowed. Sums of each channel, in the order of the rows. out = in + row, for every row.
  void (*rotate_rows)(const float* in, uint32_t rows, uint32_t dim, uint32_t run, const float* signs, bool forward, float* out);
  // Rows of dim floats turned by RoPE, out apart from them: out[c] = step[c]·in[c] + step[dim + c]·in[other channel of c's pair].
  // The pairs are (2p, 2p + 1) where apart is 1, else (p, p + apart), apart % 16 == 0; channels past them have 1 and 0 in `step`.
  void (*turn_rows)(const float* in, uint32_t rows, uint32_t dim, uint32_t apart, const float* step, float* out);
  void (*column_sums)(const float* in, uint32_t rows, uint32_t dim, float* sums);
  void (*add_row)(const float* in, const float* row, uint32_t rows, uint32_t dim, float* out);

  // out[r*n + j] = start[j] + the sum over c of rows[r*dim + c]·matrix[c*n + j], term by term. n % 16 == 0.
  void (*project_rows)(const float* rows, uint32_t count, uint32_t dim, const float* matrix, uint32_t n, const float* start,
                       float* out);

  // Whether no value is NaN or beyond ±limit; floats to 16 bits, to nearest even, past the range infinity. n % 16 == 0.
  bool (*within)(const float* x, size_t n, float limit);
  void (*narrow)(const float* in, bool bf16, uint32_t n, uint16_t* out);

  // What a softmax gave each token, for whoever listens. exp_sum() that leaves its weights, 0..1, a second time in two bytes each:
  // 16-bit floats of x·kKeptUnit. Sums of them: sums[t] (0 unless `add`) + the sum over i of shares[i]·kept[i*stride + t], t < n;
  // stride % 16 == 0, stride >= n. And what becomes of a statistic: stats[t] = fade·stats[t] + sums[t], t < n.
  float (*exp_sum_kept)(float* x, uint32_t n, float m, uint16_t* kept);
  void (*sum_kept)(const uint16_t* kept, size_t stride, const float* shares, uint32_t count, uint32_t n, bool add, float* sums);
  void (*fade_add)(float* stats, float fade, const float* sums, uint32_t n);
};

}  // namespace tierkv::quant
