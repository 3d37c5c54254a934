// pair_dot.h — Dot for instruction sets that multiply bytes into 16-bit pairs. Included last by avx2.h and avx512.h, whose words it
// uses.
#pragma once

namespace tierkv::quant {
namespace {

// Sums of four byte products in each lane: unsigned codes below 2^kBits times signed factors. Products of two bytes add up in
// 16 bits; wider codes go as two nibbles so that they always fit.
template <int kBits>
struct Dot {
  static constexpr int kNarrow = kBits > 4 ? 4 : kBits;
  static constexpr uint32_t kUnits = 32767u / (((1u << kNarrow) - 1u) * 128u * 2u) / 4u;  // of 16 positions, before widen()
  I low = zero_words(), high = zero_words(), pairs = zero_words(), high_pairs = zero_words();
  TIERKV_INLINE void add(I codes, I factors) {
    if constexpr (kBits > 4) {
      const I mask = splat_word(0x0F0F0F0F);
      pairs = add_pairs(pairs, byte_products(bit_and(codes, mask), factors));
      high_pairs = add_pairs(high_pairs, byte_products(bit_and(right<4>(codes), mask), factors));
    } else {
      pairs = add_pairs(pairs, byte_products(codes, factors));
    }
  }
  TIERKV_INLINE void widen() {
    low = add_words(low, join_pairs(pairs));
    pairs = zero_words();
    if constexpr (kBits > 4) {
      high = add_words(high, join_pairs(high_pairs));
      high_pairs = zero_words();
    }
  }
  TIERKV_INLINE I total() {
    widen();
    return kBits > 4 ? add_words(low, left<4>(high)) : low;
  }
};

}  // namespace
}  // namespace tierkv::quant
