// body_products.h — codes times factors: factors are rounded to bytes, products summed as integers. See body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

// --- products of codes and factor bytes

TIERKV_INLINE I splat_factors(const int8_t* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof word);
  return splat_word(word);
}

// sums[n][lane] over units first..last-1 for N rows of factors. kValueBits bounds the levels, kBits is how they are packed.
template <int kBits, int kValueBits, uint32_t N>
void dot_units(const uint8_t* const* base, uint32_t first, uint32_t last, const int8_t* factors, size_t stride,
               int32_t (*sums)[kTile]) {
  using Sums = Dot<kValueBits>;
  for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
    Sums acc[N];
    for (uint32_t u = first; u < last;) {
      const uint32_t stop = last - u > Sums::kUnits ? u + Sums::kUnits : last;
      for (; u < stop; ++u) {
        I codes[4];
        read_unit<kBits>(base, part, u, codes);
        for (uint32_t g = 0; g < 4; ++g) {
          for (uint32_t n = 0; n < N; ++n) acc[n].add(codes[g], splat_factors(factors + n * stride + u * 16 + g * 4));
        }
      }
      for (uint32_t n = 0; n < N; ++n) acc[n].widen();
    }
    for (uint32_t n = 0; n < N; ++n) store_words(reinterpret_cast<uint8_t*>(sums[n]) + part, acc[n].total());
  }
}

template <int kBits, int kValueBits>
void dot_batch(const uint8_t* const* base, uint32_t first, uint32_t last, const int8_t* factors, size_t stride, uint32_t n,
               int32_t (*sums)[kTile]) {
  while (n > 0) {
    uint32_t take = n;
    switch (n) {
      case 1: dot_units<kBits, kValueBits, 1>(base, first, last, factors, stride, sums); break;
      case 2: dot_units<kBits, kValueBits, 2>(base, first, last, factors, stride, sums); break;
      case 3: dot_units<kBits, kValueBits, 3>(base, first, last, factors, stride, sums); break;
      case 4:
      case 5:
        dot_units<kBits, kValueBits, 4>(base, first, last, factors, stride, sums);
        take = 4;
        break;
      case 6:
      case 7:
        dot_units<kBits, kValueBits, 6>(base, first, last, factors, stride, sums);
        take = 6;
        break;
      default:
        dot_units<kBits, kValueBits, 8>(base, first, last, factors, stride, sums);
        take = 8;
        break;
    }
    n -= take;
    factors += take * stride;
    sums += take;
  }
}

// Sums of one batch of factor rows with the 16 lanes of a tile.
struct Sums {
  int32_t high[kMaxBatch][kTile];
  int32_t low[kMaxBatch][kTile];  // of the low bytes of a codebook
};

// Codes of one tile against any number of factor rows, a batch at a time. Few rows read the packed codes, many the unpacked bytes.
class TileDot {
 public:
  // bytes: 2·16·depth.
  TileDot(const PackedSide& side, uint32_t rows, uint8_t* bytes)
      : side_(side),
        bytes_(bytes),
        low_(bytes + static_cast<size_t>(side.depth) * kTile),
        fused_(rows <= kMaxBatch && !side.levels && (side.bits <= 4 || side.bits == 8)) {}

  TIERKV_INLINE void start(const std::byte* codes, uint32_t tile, uint32_t units) {
    at_ = tile_at(side_, codes, tile);
    if (fused_) return;
    unpack_bytes(side_, at_, units, bytes_, low_);
    at_.base[0] = bytes_;
  }

  TIERKV_INLINE void run(uint32_t first, uint32_t last, const int8_t* factors, size_t stride, uint32_t n, Sums& sums) const {
    if (fused_) {
      switch (side_.bits) {
        case 1: return dot_batch<1, 1>(at_.base, first, last, factors, stride, n, sums.high);
        case 2: return dot_batch<2, 2>(at_.base, first, last, factors, stride, n, sums.high);
        case 3: return dot_batch<3, 3>(at_.base, first, last, factors, stride, n, sums.high);
        case 4: return dot_batch<4, 4>(at_.base, first, last, factors, stride, n, sums.high);
        default: return dot_batch<8, 8>(at_.base, first, last, factors, stride, n, sums.high);
      }
    }
    if (side_.levels) dot_batch<8, 8>(&low_, first, last, factors, stride, n, sums.low);
    if (side_.levels || side_.bits > 4) return dot_batch<8, 8>(at_.base, first, last, factors, stride, n, sums.high);
    if (side_.bits > 2) return dot_batch<8, 4>(at_.base, first, last, factors, stride, n, sums.high);
    return dot_batch<8, 2>(at_.base, first, last, factors, stride, n, sums.high);
  }

  // Lanes l.. of the sum of products of factor row `row` (planes joined), as floats.
  TIERKV_INLINE F joined(const Sums& sums, uint32_t row, uint32_t l) const {
    const uint32_t planes = side_.factor_planes;
    const F high = joined_planes(sums.high + row * planes, planes, l);
    return side_.levels ? fma(high, splat(256.0f), joined_planes(sums.low + row * planes, planes, l)) : high;
  }

 private:
  static TIERKV_INLINE F joined_planes(const int32_t (*sums)[kTile], uint32_t planes, uint32_t l) {
    const F high = to_floats(load_words(sums[0] + l));
    return planes == 2 ? fma(high, splat(256.0f), to_floats(load_words(sums[1] + l))) : high;
  }

  const PackedSide& side_;
  uint8_t* bytes_;
  uint8_t* low_;
  bool fused_;
  TileAt at_;
};

// --- factors: floats to bytes

// x[0..n) as step·integer: one byte plane, or two (256·high + low). n % 16 == 0.
TIERKV_INLINE RoundedRow round_factors(const float* x, uint32_t n, uint32_t planes, int8_t* high, int8_t* low) {
  F most = splat(0.0f), total = splat(0.0f);
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F v = load(x + i);
    most = max(most, abs(v));
    total = add(total, v);
  }
  const float limit = planes == 2 ? 32639.0f : 127.0f;
  const float largest = top(most);
  const float inverse = largest > 1e-30f ? limit / largest : 0.0f;
  const F factor = splat(inverse);
  I integers = zero_words();
  for (uint32_t i = 0; i < n; i += kLanes) {
    const I v = to_words(mul(load(x + i), factor));
    integers = add_words(integers, v);
    if (planes == 2) {
      const I h = right_signed<8>(add_words(v, splat_word(128)));
      store_bytes(high + i, h);
      store_bytes(low + i, sub_words(v, left<8>(h)));
    } else {
      store_bytes(high + i, v);
    }
  }
  const float step = inverse > 0.0f ? largest / limit : 0.0f;
  return {step, sum(total), step * static_cast<float>(sum_words(integers))};
}

// What is added to a sum of products: what rounding did to the middle of the levels is put back, the level of zero taken out.
TIERKV_INLINE float shift_of(const PackedSide& side, const RoundedRow& r) {
  return side.unit * (side.middle * (r.sum - r.rounded_sum) - side.zero * r.sum);
}

TIERKV_INLINE void store_up_to(float* out, F v, uint32_t n) {
  if (n >= kLanes) store(out, v);
  else store_first(out, v, n);
}

}  // namespace
}  // namespace tierkv::quant
