#include "quant/turbo.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/registry.h"

namespace tierkv::quant {
namespace {

// Every level is the mean of the normal between the midpoints to its neighbours: a fixed point of Lloyd's iteration.
TEST(Turbo, CodebookIsLloydMaxForTheNormal) {
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); };
  const auto above = [](double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); };
  for (uint32_t bits : {2u, 3u, 4u}) {
    const float* levels = lloyd_max_levels(bits);
    const uint32_t n = 1u << bits;
    for (uint32_t i = 0; i < n; ++i) {
      const double lo = i == 0 ? -40.0 : 0.5 * (static_cast<double>(levels[i - 1]) + levels[i]);
      const double hi = i + 1 == n ? 40.0 : 0.5 * (static_cast<double>(levels[i]) + levels[i + 1]);
      EXPECT_NEAR(levels[i], (density(lo) - density(hi)) / (above(lo) - above(hi)), 1e-6);
      EXPECT_EQ(levels[i], -levels[n - 1 - i]);
    }
  }
  EXPECT_NEAR(lloyd_max_levels(2)[2], 0.453, 5e-4);
  EXPECT_NEAR(lloyd_max_levels(2)[3], 1.51, 5e-4);
}

TEST(Turbo, ErrorIsTheQuantizersDistortion) {
  std::mt19937 rng(17);
  std::normal_distribution<float> normal;
  std::vector<float> rows(128 * 128), back(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = normal(rng) * (i % 128 == 5 ? 3.0f : 1.0f) * static_cast<float>(1 + i / 128 % 7);
  const double want[] = {0.3428, 0.1859, 0.0975};  // square roots of 0.1175, 0.03454, 0.009497
  for (uint32_t bits : {2u, 3u, 4u}) {
    const auto codec = make_codec(*parse_codec("turbo" + std::to_string(bits)), Side::value, {128, 128});
    std::vector<std::byte> bytes((*codec)->bytes());
    ASSERT_TRUE((*codec)->encode(rows.data(), {}, bytes).ok());
    (*codec)->decode(bytes, {}, 0, 128, back.data());
    double e = 0, x = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      e += std::pow(back[i] - rows[i], 2);
      x += static_cast<double>(rows[i]) * rows[i];
    }
    EXPECT_NEAR(std::sqrt(e / x), want[bits - 2], 0.05 * want[bits - 2]) << bits;
    EXPECT_EQ((*codec)->frame(), Frame::hadamard);
  }
}

}  // namespace
}  // namespace tierkv::quant
