// avx512.h — sixteen lanes in one 512-bit register: the vocabulary that body_*.h are written in. Needs AVX-512 F, BW, DQ and VL.
//
// With TIERKV_SIMD_VNNI defined (and AVX-512 VNNI switched on for the file) four bytes are multiplied and added in one instruction.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tierkv::quant {
namespace {

#define TIERKV_INLINE inline __attribute__((always_inline))

constexpr uint32_t kLanes = 16;
using F = __m512;
using I = __m512i;

TIERKV_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
TIERKV_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
TIERKV_INLINE void store_first(float* p, F v, uint32_t n) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v); }
TIERKV_INLINE F splat(float x) { return _mm512_set1_ps(x); }
TIERKV_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
TIERKV_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
TIERKV_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
TIERKV_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
TIERKV_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
TIERKV_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
TIERKV_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
TIERKV_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
TIERKV_INLINE F nearest(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }  // half to even
TIERKV_INLINE F abs(F a) { return _mm512_abs_ps(a); }
TIERKV_INLINE float sum(F v) { return _mm512_reduce_add_ps(v); }
// out[0..3] = the sums of four vectors.
TIERKV_INLINE void sum_four(F a, F b, F c, F d, float* out) {
  const F ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));  // in fours of lanes: a b a b
  const F cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const F all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));  // a b c d
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
TIERKV_INLINE float top(F v) { return _mm512_reduce_max_ps(v); }
TIERKV_INLINE F keep_above(F v, F x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), v);
}

// a < b ? x : y (a NaN gives y).
TIERKV_INLINE F pick_less(F a, F b, F x, F y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }

TIERKV_INLINE I load_words(const void* p) { return _mm512_loadu_si512(p); }
TIERKV_INLINE void store_words(void* p, I v) { _mm512_storeu_si512(p, v); }
TIERKV_INLINE I splat_word(int32_t x) { return _mm512_set1_epi32(x); }
TIERKV_INLINE I zero_words() { return _mm512_setzero_si512(); }
TIERKV_INLINE I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
TIERKV_INLINE I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
template <int N>
TIERKV_INLINE I right(I v) {
  return N == 0 ? v : _mm512_srli_epi32(v, N);
}
template <int N>
TIERKV_INLINE I left(I v) {
  return N == 0 ? v : _mm512_slli_epi32(v, N);
}
TIERKV_INLINE I right_by(I v, uint32_t n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(static_cast<int>(n))); }
TIERKV_INLINE I add_words(I a, I b) { return _mm512_add_epi32(a, b); }
TIERKV_INLINE I sub_words(I a, I b) { return _mm512_sub_epi32(a, b); }
template <int N>
TIERKV_INLINE I right_signed(I v) {
  return _mm512_srai_epi32(v, N);
}
TIERKV_INLINE F to_floats(I v) { return _mm512_cvtepi32_ps(v); }
TIERKV_INLINE I to_words(F v) { return _mm512_cvtps_epi32(v); }  // to nearest
TIERKV_INLINE F as_floats(I v) { return _mm512_castsi512_ps(v); }
TIERKV_INLINE I as_words(F v) { return _mm512_castps_si512(v); }
TIERKV_INLINE int32_t sum_words(I v) { return _mm512_reduce_add_epi32(v); }

// n + (x > limit ? 1 : 0)
TIERKV_INLINE I count_above(I n, F x, F limit) {
  return _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ), n, _mm512_set1_epi32(1));
}

TIERKV_INLINE I load_bytes(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
TIERKV_INLINE void store_bytes(void* p, I v) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }
// What codes of 3 bits of channels c.. of a row stand for, code - 3.5: eight in three bytes; c % kLanes == 0. Reads a byte before
// them. The table has every value twice: a permutation looks at four bits, and the fourth belongs to the next code.
TIERKV_INLINE F load_threes(const uint8_t* row, uint32_t c) {
  int32_t low, high;
  __builtin_memcpy(&low, row + c / 8 * 3 - 1, sizeof low);
  __builtin_memcpy(&high, row + c / 8 * 3 + 2, sizeof high);
  const I shifts = _mm512_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29, 8, 11, 14, 17, 20, 23, 26, 29);
  const I both = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xFF00, high);
  const F values =
      _mm512_setr_ps(-3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f, -3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shifts), values);
}
TIERKV_INLINE F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
TIERKV_INLINE F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

TIERKV_INLINE void store_f16(uint16_t* p, F v) {  // nearest even, infinity past the range
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TIERKV_INLINE void store_halves(uint16_t* p, I v) {  // the low sixteen bits of each word
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}

// Lane r of vector c becomes lane c of vector r.
TIERKV_INLINE void transpose(F (&v)[kLanes]) {
  const auto low2 = [](F a, F b) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); };
  const auto high2 = [](F a, F b) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); };
  F q[16];  // q[4·i + j]: columns j, 4+j, 8+j, 12+j of rows 4i..4i+3
  for (int i = 0; i < 16; i += 4) {
    const F a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
    const F c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    q[i] = low2(a, c), q[i + 1] = high2(a, c), q[i + 2] = low2(b, d), q[i + 3] = high2(b, d);
  }
  for (int j = 0; j < 4; ++j) {
    const F a = _mm512_shuffle_f32x4(q[j], q[4 + j], 0x88), b = _mm512_shuffle_f32x4(q[8 + j], q[12 + j], 0x88);
    const F c = _mm512_shuffle_f32x4(q[j], q[4 + j], 0xDD), d = _mm512_shuffle_f32x4(q[8 + j], q[12 + j], 0xDD);
    v[j] = _mm512_shuffle_f32x4(a, b, 0x88), v[8 + j] = _mm512_shuffle_f32x4(a, b, 0xDD);
    v[4 + j] = _mm512_shuffle_f32x4(c, d, 0x88), v[12 + j] = _mm512_shuffle_f32x4(c, d, 0xDD);
  }
}

// table[index] for sixteen floats.
struct Table16 {
  F t;
  explicit TIERKV_INLINE Table16(const float* p) : t(load(p)) {}
  TIERKV_INLINE F at(I index) const { return _mm512_permutexvar_ps(index, t); }
};
TIERKV_INLINE F gather(const float* table, I index) { return _mm512_i32gather_ps(index, table, 4); }

// Sixteen byte levels, looked up by every byte of a vector (all below 16).
struct ByteTable {
  I t;
  explicit TIERKV_INLINE ByteTable(const uint8_t* p)
      : t(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))) {}
  TIERKV_INLINE I at(I codes) const { return _mm512_shuffle_epi8(t, codes); }
};

// Lane i and lane i^kHalf change places.
template <int kHalf>
TIERKV_INLINE F swap_lanes(F v) {
  if constexpr (kHalf == 8) return _mm512_shuffle_f32x4(v, v, 0x4E);
  if constexpr (kHalf == 4) return _mm512_shuffle_f32x4(v, v, 0xB1);
  if constexpr (kHalf == 2) return _mm512_permute_ps(v, 0x4E);
  return _mm512_permute_ps(v, 0xB1);
}
TIERKV_INLINE F swap_neighbours(F v) { return swap_lanes<1>(v); }
// Lower lane: other + v; upper: other - v. The product with ±1 is exact, so the fused form rounds as the plain one does.
template <int kHalf>
TIERKV_INLINE F butterfly(F v) {
  constexpr auto s = [](int lane) { return (lane & kHalf) != 0 ? -1.0f : 1.0f; };
  const F sign =
      _mm512_setr_ps(s(0), s(1), s(2), s(3), s(4), s(5), s(6), s(7), s(8), s(9), s(10), s(11), s(12), s(13), s(14), s(15));
  return _mm512_fmadd_ps(v, sign, swap_lanes<kHalf>(v));
}

#ifdef TIERKV_SIMD_VNNI
// Sums of four byte products in each lane: unsigned codes times signed factors, whatever the width of the codes.
template <int kBits>
struct Dot {
  static constexpr uint32_t kUnits = ~0u;  // units of 16 positions that may be added before widen()
  I sums = zero_words();
  TIERKV_INLINE void add(I codes, I factors) { sums = _mm512_dpbusd_epi32(sums, codes, factors); }
  TIERKV_INLINE void widen() {}
  TIERKV_INLINE I total() const { return sums; }
};
#else
// Of 16-bit pairs: products of unsigned and signed bytes added in twos, their sum, and neighbours added into a word.
TIERKV_INLINE I byte_products(I codes, I factors) { return _mm512_maddubs_epi16(codes, factors); }
TIERKV_INLINE I add_pairs(I a, I b) { return _mm512_add_epi16(a, b); }
TIERKV_INLINE I join_pairs(I v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
#endif

// sums + what each word's two 16-bit halves are, multiplied and added up. kFastPairs: faster than floats.
#ifdef TIERKV_SIMD_VNNI
constexpr bool kFastPairs = true;
TIERKV_INLINE I add_pair_products(I sums, I a, I b) { return _mm512_dpwssd_epi32(sums, a, b); }
#else
constexpr bool kFastPairs = false;
TIERKV_INLINE I add_pair_products(I sums, I a, I b) { return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)); }
#endif

TIERKV_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace tierkv::quant

#ifndef TIERKV_SIMD_VNNI
#include "quant/simd/pair_dot.h"
#endif
