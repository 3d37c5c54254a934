// meta.h — scales and minimums of the groups of a block, as bytes.
//
// Layouts (little-endian; "run" = 64 consecutive entries, the last one may be shorter):
//   f16_pair    per entry: f16 scale; then per entry: f16 minimum
//   f16_scale   per entry: f16 scale; offset = -zero·scale
//   f32_scale   per entry: f32 scale; offset = -zero·scale
//   f32_pair    per entry: f32 scale; then per entry: f32 zero point; offset = -scale·zero point
//   log8_scale  f32 top; per entry: one byte, 0 = zero, else top·2^((code-255)/32): 8 octaves in steps of 2.2 %
//   log8_pair   per run: f32 top, f32 lo, f32 step; a byte per entry as in log8_scale; a byte per entry, minimum = lo + step·code
//   log4_pair   per run: f32 top, f32 ratio, f32 lo, f32 step; a byte per entry: low nibble 0 = zero, else top·ratio^(15-code),
//               high nibble: minimum = lo + step·code
// Rounding: Rounding::cover rounds minimums down and scales up, so that the stored grid still spans [lo, hi] and no value lies
//           further than scale/2 from it; Rounding::nearest gives the closest values. A constant group under f16_pair gets
//           the nearest fp16 and scale 0: exact as far as fp16 is.
// Errors:   encode_meta() refuses what its format cannot hold (fp16 overflow, ranges past float) and returns nothing then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quant/grid.h"
#include "tierkv/status.h"

namespace tierkv::quant {

enum class MetaKind : uint8_t { f16_pair, f16_scale, f32_scale, f32_pair, log8_scale, log8_pair, log4_pair };
enum class Rounding : uint8_t { cover, nearest };

struct MetaFormat {
  MetaKind kind = MetaKind::f16_pair;
  Rounding rounding = Rounding::cover;
  uint32_t entries = 0;
  uint32_t levels = 0;  // of a code
  float zero = 0;       // for the kinds without a minimum
};

size_t meta_bytes(const MetaFormat& format);

// out: meta_bytes().
Status encode_meta(const MetaFormat& format, std::span<const GroupFit> fits, std::byte* out);

void decode_meta(const MetaFormat& format, const std::byte* in, float* scales, float* offsets);

// Decodes and refuses scales that are not finite or negative and offsets that are not finite, and grids that overflow.
Status validate_meta(const MetaFormat& format, const std::byte* in);

}  // namespace tierkv::quant
