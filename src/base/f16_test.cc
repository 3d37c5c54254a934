#include "base/f16.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <random>

namespace tierkv {
namespace {

// The value of a half by the definition of the format.
double half_by_definition(uint16_t h) {
  const double sign = h & 0x8000u ? -1.0 : 1.0;
  const int exponent = (h >> 10) & 31;
  const int fraction = h & 1023;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// The nearest half, ties to even, found by comparing distances to the two neighbours.
uint16_t nearest_half(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000u : 0;
  const double m = std::fabs(x);
  if (m >= 65520.0) return static_cast<uint16_t>(sign | 0x7C00u);
  uint16_t low = 0, high = 0x7BFF;
  while (low < high) {  // the largest half not above m
    const uint16_t mid = static_cast<uint16_t>((low + high + 1) / 2);
    if (half_by_definition(mid) <= m) low = mid;
    else high = static_cast<uint16_t>(mid - 1);
  }
  if (low == 0x7BFF) return static_cast<uint16_t>(sign | low);  // below 65520: rounds down to 65504
  const double below = m - half_by_definition(low), above = half_by_definition(static_cast<uint16_t>(low + 1)) - m;
  const bool up = above < below || (above == below && (low & 1u));
  return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
}

TEST(F16, EveryHalfWidensToItsValue) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const double expected = half_by_definition(static_cast<uint16_t>(h));
    const float got = f16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << h;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << h;
      ASSERT_EQ(std::signbit(got), (h & 0x8000u) != 0) << h;
    }
  }
}

TEST(F16, EveryHalfComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float wide = f16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(wide))));
    } else {
      ASSERT_EQ(f32_to_f16(wide), h);
    }
  }
}

TEST(F16, RoundsToTheNearestAndTiesToEven) {
  // Around every half: itself, the middle to the next one, and one float on either side of the middle.
  for (uint32_t h = 0; h < 0x7C00; ++h) {
    const double here = half_by_definition(static_cast<uint16_t>(h));
    const double next = h == 0x7BFF ? 65536.0 : half_by_definition(static_cast<uint16_t>(h + 1));
    const float middle = static_cast<float>((here + next) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ASSERT_EQ(f32_to_f16(x), nearest_half(x)) << x;
      ASSERT_EQ(f32_to_f16(-x), nearest_half(-x)) << -x;
    }
  }
  std::mt19937 rng(3);
  for (int i = 0; i < 300000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f32_to_f16(x), nearest_half(x)) << x;
  }
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(INFINITY), 0x7C00);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(NAN))));
}

TEST(BF16, EveryValueComesBackAndRoundingIsToEven) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float wide = bf16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(wide))));
    } else {
      ASSERT_EQ(f32_to_bf16(wide), h);
    }
  }
  std::mt19937 rng(4);
  for (int i = 0; i < 300000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(rng());
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x)) continue;
    const uint32_t low = bits >> 16, rest = bits & 0xFFFFu;
    const uint32_t expected = rest > 0x8000u || (rest == 0x8000u && (low & 1u)) ? low + 1 : low;
    ASSERT_EQ(f32_to_bf16(x), expected);
  }
}

TEST(RoundHalfEven, IgnoresTheRoundingMode) {
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const float in[] = {0.5f, 1.5f, 2.5f, 3.5f, -0.5f, -1.5f, -2.5f, 1.3f, 1.7f, -1.7f, 4194303.5f};
    const float expected[] = {0.0f, 2.0f, 2.0f, 4.0f, 0.0f, -2.0f, -2.0f, 1.0f, 2.0f, -2.0f, 4194304.0f};
    for (size_t i = 0; i < std::size(in); ++i) EXPECT_EQ(round_half_even(in[i]), expected[i]) << in[i] << " in mode " << mode;
  }
  std::fesetround(FE_TONEAREST);
}

}  // namespace
}  // namespace tierkv
