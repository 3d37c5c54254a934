// neon.h — four lanes in a 128-bit register: the vocabulary that body_*.h are written in. Needs little-endian AArch64, whose
// baseline has fused multiply-adds and conversions of fp16.
//
// With TIERKV_SIMD_DOTPROD defined (and the dot product extension switched on for the file) four bytes are multiplied and added in
// one instruction. Minimum, maximum and rounding are those of the x86 headers to the bit: no byte may depend on the machine.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tierkv::quant {
namespace {

#define TIERKV_INLINE inline __attribute__((always_inline))

constexpr uint32_t kLanes = 4;
using F = float32x4_t;
using I = int32x4_t;

TIERKV_INLINE uint8x16_t as_bytes(I v) { return vreinterpretq_u8_s32(v); }
TIERKV_INLINE uint32x4_t as_unsigned(I v) { return vreinterpretq_u32_s32(v); }

TIERKV_INLINE F load(const float* p) { return vld1q_f32(p); }
TIERKV_INLINE void store(float* p, F v) { vst1q_f32(p, v); }
TIERKV_INLINE void store_first(float* p, F v, uint32_t n) {
  if (n > 0) p[0] = vgetq_lane_f32(v, 0);
  if (n > 1) p[1] = vgetq_lane_f32(v, 1);
  if (n > 2) p[2] = vgetq_lane_f32(v, 2);
  if (n > 3) p[3] = vgetq_lane_f32(v, 3);
}
TIERKV_INLINE F splat(float x) { return vdupq_n_f32(x); }
TIERKV_INLINE F add(F a, F b) { return vaddq_f32(a, b); }
TIERKV_INLINE F sub(F a, F b) { return vsubq_f32(a, b); }
TIERKV_INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
TIERKV_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
TIERKV_INLINE F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // NaN or equal: b, where FMAX would give a NaN or +0
TIERKV_INLINE F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
TIERKV_INLINE F div(F a, F b) { return vdivq_f32(a, b); }
TIERKV_INLINE F sqrt(F a) { return vsqrtq_f32(a); }
TIERKV_INLINE F nearest(F a) { return vrndnq_f32(a); }  // half to even
TIERKV_INLINE F abs(F a) { return vabsq_f32(a); }
TIERKV_INLINE float sum(F v) { return vaddvq_f32(v); }
// out[0..3] = the sums of four vectors.
TIERKV_INLINE void sum_four(F a, F b, F c, F d, float* out) { vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))); }
TIERKV_INLINE float top(F v) { return vmaxnmvq_f32(v); }
TIERKV_INLINE F keep_above(F v, F x, float limit) {
  return vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(x, vdupq_n_f32(limit)), vreinterpretq_u32_f32(v)));
}

// a < b ? x : y (a NaN gives y).
TIERKV_INLINE F pick_less(F a, F b, F x, F y) { return vbslq_f32(vcltq_f32(a, b), x, y); }

TIERKV_INLINE I load_words(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
TIERKV_INLINE void store_words(void* p, I v) { vst1q_u8(static_cast<uint8_t*>(p), as_bytes(v)); }
TIERKV_INLINE I splat_word(int32_t x) { return vdupq_n_s32(x); }
TIERKV_INLINE I zero_words() { return vdupq_n_s32(0); }
TIERKV_INLINE I bit_and(I a, I b) { return vandq_s32(a, b); }
TIERKV_INLINE I bit_or(I a, I b) { return vorrq_s32(a, b); }
template <int N>
TIERKV_INLINE I right(I v) {
  if constexpr (N == 0) return v;
  else return vreinterpretq_s32_u32(vshrq_n_u32(as_unsigned(v), N));
}
template <int N>
TIERKV_INLINE I left(I v) {
  return vshlq_n_s32(v, N);
}
TIERKV_INLINE I right_by(I v, uint32_t n) {
  return vreinterpretq_s32_u32(vshlq_u32(as_unsigned(v), vdupq_n_s32(-static_cast<int32_t>(n))));
}
TIERKV_INLINE I add_words(I a, I b) { return vaddq_s32(a, b); }
TIERKV_INLINE I sub_words(I a, I b) { return vsubq_s32(a, b); }
template <int N>
TIERKV_INLINE I right_signed(I v) {
  return vshrq_n_s32(v, N);
}
TIERKV_INLINE F to_floats(I v) { return vcvtq_f32_s32(v); }
TIERKV_INLINE I to_words(F v) { return vcvtnq_s32_f32(v); }  // to nearest
TIERKV_INLINE F as_floats(I v) { return vreinterpretq_f32_s32(v); }
TIERKV_INLINE I as_words(F v) { return vreinterpretq_s32_f32(v); }
TIERKV_INLINE int32_t sum_words(I v) { return vaddvq_s32(v); }

// n + (x > limit ? 1 : 0)
TIERKV_INLINE I count_above(I n, F x, F limit) { return vsubq_s32(n, vreinterpretq_s32_u32(vcgtq_f32(x, limit))); }

TIERKV_INLINE I load_bytes(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word)))));
}
TIERKV_INLINE void store_bytes(void* p, I v) {
  const uint16x4_t halves = vmovn_u32(as_unsigned(v));
  const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
  __builtin_memcpy(p, &word, sizeof word);
}
// What codes of 3 bits of channels c.. of a row stand for, code - 3.5: eight in three bytes; c % kLanes == 0. Reads a byte before
// them.
TIERKV_INLINE F load_threes(const uint8_t* row, uint32_t c) {
  uint32_t word;
  __builtin_memcpy(&word, row + c / 8 * 3 - 1, sizeof word);
  constexpr int32_t kShifts[8] = {-8, -11, -14, -17, -20, -23, -26, -29};
  const uint32x4_t codes = vandq_u32(vshlq_u32(vdupq_n_u32(word), vld1q_s32(kShifts + c % 8)), vdupq_n_u32(7));
  return vsubq_f32(vcvtq_f32_u32(codes), vdupq_n_f32(3.5f));
}
TIERKV_INLINE F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
TIERKV_INLINE F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

TIERKV_INLINE void store_f16(uint16_t* p, F v) {  // nearest even, infinity past the range
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
TIERKV_INLINE void store_halves(uint16_t* p, I v) { vst1_u16(p, vmovn_u32(as_unsigned(v))); }  // the low sixteen bits of each word

// Lane r of vector c becomes lane c of vector r.
TIERKV_INLINE void transpose(F (&v)[kLanes]) {
  const auto pairs = [](F a) { return vreinterpretq_f64_f32(a); };
  const float64x2_t a = pairs(vtrn1q_f32(v[0], v[1])), b = pairs(vtrn2q_f32(v[0], v[1]));
  const float64x2_t c = pairs(vtrn1q_f32(v[2], v[3])), d = pairs(vtrn2q_f32(v[2], v[3]));
  v[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
  v[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  v[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
  v[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

// table[index] for sixteen floats: a lookup of every byte among the 64 of the table.
struct Table16 {
  uint8x16x4_t t;
  explicit TIERKV_INLINE Table16(const float* p) {
    for (int i = 0; i < 4; ++i) t.val[i] = vreinterpretq_u8_f32(load(p + 4 * i));
  }
  TIERKV_INLINE F at(I index) const {
    const uint32x4_t bytes = vmlaq_u32(vdupq_n_u32(0x03020100u), as_unsigned(index), vdupq_n_u32(0x04040404u));
    return vreinterpretq_f32_u8(vqtbl4q_u8(t, vreinterpretq_u8_u32(bytes)));
  }
};
TIERKV_INLINE F gather(const float* table, I index) {
  F v = vld1q_dup_f32(table + vgetq_lane_s32(index, 0));
  v = vld1q_lane_f32(table + vgetq_lane_s32(index, 1), v, 1);
  v = vld1q_lane_f32(table + vgetq_lane_s32(index, 2), v, 2);
  return vld1q_lane_f32(table + vgetq_lane_s32(index, 3), v, 3);
}

// Sixteen byte levels, looked up by every byte of a vector (all below 16).
struct ByteTable {
  uint8x16_t t;
  explicit TIERKV_INLINE ByteTable(const uint8_t* p) : t(vld1q_u8(p)) {}
  TIERKV_INLINE I at(I codes) const { return vreinterpretq_s32_u8(vqtbl1q_u8(t, as_bytes(codes))); }
};

TIERKV_INLINE F swap_neighbours(F v) { return vrev64q_f32(v); }  // lane i and lane i^1
// Lane i and lane i^kHalf: their sum in the lower one, lower minus upper in the upper one.
template <int kHalf>
TIERKV_INLINE F butterfly(F v) {
  const uint64_t minus = 0x80000000u;
  F other;
  uint64x2_t signs;
  if constexpr (kHalf == 2) {
    other = vextq_f32(v, v, 2);
    signs = vcombine_u64(vcreate_u64(0), vcreate_u64(minus << 32 | minus));
  } else {
    other = vrev64q_f32(v);
    signs = vdupq_n_u64(minus << 32);
  }
  return vaddq_f32(other, vreinterpretq_f32_u64(veorq_u64(vreinterpretq_u64_f32(v), signs)));
}

// Sums of four byte products in each lane: unsigned codes below 2^kBits times signed factors. Codes below 128 are signed bytes as
// they are; wider ones go as two nibbles.
template <int kBits>
struct Dot {
#ifdef TIERKV_SIMD_DOTPROD
  static constexpr uint32_t kUnits = ~0u;  // units of 16 positions that may be added before widen()
  I low = zero_words(), high = zero_words();
  TIERKV_INLINE void add(I codes, I factors) {
    const int8x16_t f = vreinterpretq_s8_s32(factors);
    if constexpr (kBits > 7) {
      low = vdotq_s32(low, vreinterpretq_s8_u8(vandq_u8(as_bytes(codes), vdupq_n_u8(15))), f);
      high = vdotq_s32(high, vreinterpretq_s8_u8(vshrq_n_u8(as_bytes(codes), 4)), f);
    } else {
      low = vdotq_s32(low, vreinterpretq_s8_s32(codes), f);
    }
  }
  TIERKV_INLINE void widen() {}
  TIERKV_INLINE I total() const { return kBits > 7 ? add_words(low, left<4>(high)) : low; }
#else
  // Single products add up in 16 bits: lanes 0 and 1 in one register, 2 and 3 in the other, for each nibble.
  static constexpr int kNarrow = kBits > 4 ? 4 : kBits;
  static constexpr uint32_t kUnits = 32767u / (((1u << kNarrow) - 1u) * 128u) / 4u;  // of 16 positions, before widen()
  struct Products {
    int16x8_t first = vdupq_n_s16(0), second = vdupq_n_s16(0);
    TIERKV_INLINE void add(uint8x16_t codes, int8x16_t f) {
      const int8x16_t c = vreinterpretq_s8_u8(codes);
      first = vmlal_s8(first, vget_low_s8(c), vget_low_s8(f));
      second = vmlal_high_s8(second, c, f);
    }
    TIERKV_INLINE I take() {
      const I sums = vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
      first = second = vdupq_n_s16(0);
      return sums;
    }
  };
  I sums = zero_words();
  Products low, high;
  TIERKV_INLINE void add(I codes, I factors) {
    const int8x16_t f = vreinterpretq_s8_s32(factors);
    if constexpr (kBits > 4) {
      low.add(vandq_u8(as_bytes(codes), vdupq_n_u8(15)), f);
      high.add(vshrq_n_u8(as_bytes(codes), 4), f);
    } else {
      low.add(as_bytes(codes), f);
    }
  }
  TIERKV_INLINE void widen() {
    sums = add_words(sums, low.take());
    if constexpr (kBits > 4) sums = add_words(sums, left<4>(high.take()));
  }
  TIERKV_INLINE I total() {
    widen();
    return sums;
  }
#endif
};

// sums + what each word's two 16-bit halves are, multiplied and added up. kFastPairs: faster than floats.
constexpr bool kFastPairs = false;
TIERKV_INLINE I add_pair_products(I sums, I a, I b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vaddq_s32(sums, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}

TIERKV_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace tierkv::quant
