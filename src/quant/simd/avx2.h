// avx2.h — eight lanes in a 256-bit register: the vocabulary that body_*.h are written in. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tierkv::quant {
namespace {

#define TIERKV_INLINE inline __attribute__((always_inline))

constexpr uint32_t kLanes = 8;
using F = __m256;
using I = __m256i;

TIERKV_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
TIERKV_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
TIERKV_INLINE void store_first(float* p, F v, uint32_t n) {
  const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane), v);
}
TIERKV_INLINE F splat(float x) { return _mm256_set1_ps(x); }
TIERKV_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
TIERKV_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
TIERKV_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
TIERKV_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
TIERKV_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
TIERKV_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
TIERKV_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
TIERKV_INLINE F sqrt(F a) { return _mm256_sqrt_ps(a); }
TIERKV_INLINE F nearest(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }  // half to even
TIERKV_INLINE F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
TIERKV_INLINE float sum(F v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// out[0..3] = the sums of four vectors.
TIERKV_INLINE void sum_four(F a, F b, F c, F d, float* out) {
  const F all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
TIERKV_INLINE float top(F v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
TIERKV_INLINE F keep_above(F v, F x, float limit) { return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ), v); }

// a < b ? x : y (a NaN gives y).
TIERKV_INLINE F pick_less(F a, F b, F x, F y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

TIERKV_INLINE I load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
TIERKV_INLINE void store_words(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
TIERKV_INLINE I splat_word(int32_t x) { return _mm256_set1_epi32(x); }
TIERKV_INLINE I zero_words() { return _mm256_setzero_si256(); }
TIERKV_INLINE I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
TIERKV_INLINE I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
template <int N>
TIERKV_INLINE I right(I v) {
  return N == 0 ? v : _mm256_srli_epi32(v, N);
}
template <int N>
TIERKV_INLINE I left(I v) {
  return N == 0 ? v : _mm256_slli_epi32(v, N);
}
TIERKV_INLINE I right_by(I v, uint32_t n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128(static_cast<int>(n))); }
TIERKV_INLINE I add_words(I a, I b) { return _mm256_add_epi32(a, b); }
TIERKV_INLINE I sub_words(I a, I b) { return _mm256_sub_epi32(a, b); }
template <int N>
TIERKV_INLINE I right_signed(I v) {
  return _mm256_srai_epi32(v, N);
}
TIERKV_INLINE F to_floats(I v) { return _mm256_cvtepi32_ps(v); }
TIERKV_INLINE I to_words(F v) { return _mm256_cvtps_epi32(v); }  // to nearest
TIERKV_INLINE F as_floats(I v) { return _mm256_castsi256_ps(v); }
TIERKV_INLINE I as_words(F v) { return _mm256_castps_si256(v); }
TIERKV_INLINE int32_t sum_words(I v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

// n + (x > limit ? 1 : 0)
TIERKV_INLINE I count_above(I n, F x, F limit) {
  return _mm256_sub_epi32(n, _mm256_castps_si256(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)));
}

TIERKV_INLINE I load_bytes(const void* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
TIERKV_INLINE void store_bytes(void* p, I v) {
  const I low = _mm256_shuffle_epi8(v, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
// What codes of 3 bits of channels c.. of a row stand for, code - 3.5: eight in three bytes; c % kLanes == 0. Reads a byte before
// them. A permutation looks at three bits and no more.
TIERKV_INLINE F load_threes(const uint8_t* row, uint32_t c) {
  int32_t word;
  __builtin_memcpy(&word, row + c / 8 * 3 - 1, sizeof word);
  const I shifts = _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29);
  const F values = _mm256_setr_ps(-3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f);
  return _mm256_permutevar8x32_ps(values, _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts));
}
TIERKV_INLINE F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
TIERKV_INLINE F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}

TIERKV_INLINE void store_f16(uint16_t* p, F v) {  // nearest even, infinity past the range
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TIERKV_INLINE void store_halves(uint16_t* p, I v) {  // the low sixteen bits of each word
  const I low = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

// Lane r of vector c becomes lane c of vector r.
TIERKV_INLINE void transpose(F (&v)[kLanes]) {
  const auto low2 = [](F a, F b) { return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))); };
  const auto high2 = [](F a, F b) { return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))); };
  F q[8];  // q[4·i + j]: columns j, 4+j of rows 4i..4i+3
  for (int i = 0; i < 8; i += 4) {
    const F a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpackhi_ps(v[i], v[i + 1]);
    const F c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
    q[i] = low2(a, c), q[i + 1] = high2(a, c), q[i + 2] = low2(b, d), q[i + 3] = high2(b, d);
  }
  for (int j = 0; j < 4; ++j) {
    v[j] = _mm256_permute2f128_ps(q[j], q[4 + j], 0x20);
    v[4 + j] = _mm256_permute2f128_ps(q[j], q[4 + j], 0x31);
  }
}

// table[index] for sixteen floats.
struct Table16 {
  F lo, hi;
  explicit TIERKV_INLINE Table16(const float* p) : lo(load(p)), hi(load(p + 8)) {}
  TIERKV_INLINE F at(I index) const {
    const F upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));  // bit 3 becomes the sign
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lo, index), _mm256_permutevar8x32_ps(hi, index), upper);
  }
};
TIERKV_INLINE F gather(const float* table, I index) { return _mm256_i32gather_ps(table, index, 4); }

// Sixteen byte levels, looked up by every byte of a vector (all below 16).
struct ByteTable {
  I t;
  explicit TIERKV_INLINE ByteTable(const uint8_t* p)
      : t(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))) {}
  TIERKV_INLINE I at(I codes) const { return _mm256_shuffle_epi8(t, codes); }
};

TIERKV_INLINE F swap_neighbours(F v) { return _mm256_permute_ps(v, 0xB1); }  // lane i and lane i^1
// Lane i and lane i^kHalf: lower: other + v; upper: other - v. The product with ±1 is exact, so the fused form rounds as the plain
// one does.
template <int kHalf>
TIERKV_INLINE F butterfly(F v) {
  constexpr auto s = [](int lane) { return (lane & kHalf) != 0 ? -1.0f : 1.0f; };
  F other;
  if constexpr (kHalf == 4) other = _mm256_permute2f128_ps(v, v, 0x01);
  if constexpr (kHalf == 2) other = _mm256_permute_ps(v, 0x4E);
  if constexpr (kHalf == 1) other = _mm256_permute_ps(v, 0xB1);
  return _mm256_fmadd_ps(v, _mm256_setr_ps(s(0), s(1), s(2), s(3), s(4), s(5), s(6), s(7)), other);
}

// Of 16-bit pairs: products of unsigned and signed bytes added in twos, their sum, and neighbours added into a word.
TIERKV_INLINE I byte_products(I codes, I factors) { return _mm256_maddubs_epi16(codes, factors); }
TIERKV_INLINE I add_pairs(I a, I b) { return _mm256_add_epi16(a, b); }
TIERKV_INLINE I join_pairs(I v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// sums + what each word's two 16-bit halves are, multiplied and added up. kFastPairs: faster than floats.
constexpr bool kFastPairs = false;
TIERKV_INLINE I add_pair_products(I sums, I a, I b) { return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)); }

TIERKV_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace tierkv::quant

#include "quant/simd/pair_dot.h"
