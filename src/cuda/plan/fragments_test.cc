// The order of operands: a product over fragments is the product over components.
#include "cuda/plan/fragments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/f16.h"
#include "cuda/launch/reading.h"

namespace tierkv::cuda {
namespace {

struct Words {
  uint32_t two, four, eight;
};

class KltFragments : public ::testing::TestWithParam<Words> {
 protected:
  void SetUp() override {
    key_.kind = quant::LayoutKind::words;
    key_.tokens = key_.head_dim = 128;
    key_.words[0] = GetParam().two, key_.words[1] = GetParam().four, key_.words[2] = GetParam().eight;
    key_.components = 16 * key_.words[0] + 8 * key_.words[1] + 4 * key_.words[2];
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    for (uint32_t i = 0; i < key_.components * 128; ++i) rows_.push_back(f32_to_f16(0.1f * normal(rng)));
    for (uint32_t i = 0; i < 128; ++i) mean_.push_back(normal(rng)), query_.push_back(normal(rng));
    const uint32_t words = key_.words[0] + key_.words[1] + key_.words[2];
    for (uint32_t i = 0; i < words * 16; ++i) tile_.push_back(static_cast<uint32_t>(rng()));
    key_.rows = rows_.data(), key_.mean = mean_.data();
  }

  // Row `row`, column c of tile `tile`, as a warp's lanes hold them.
  float operand(const std::vector<uint32_t>& fragments, uint32_t tile, uint32_t row, uint32_t c) const {
    const uint32_t lane = row % 8 * 4 + c % 8 / 2, part = row / 8 + c % 16 / 8 * 2;
    const uint32_t word = fragments[((static_cast<size_t>(tile) * 8 + c / 16) * 32 + lane) * 4 + part];
    return half_value(static_cast<uint16_t>(c % 2 ? word >> 16 : word));
  }

  quant::SideLayout key_;
  std::vector<uint16_t> rows_;
  std::vector<float> mean_, query_;
  std::vector<uint32_t> tile_;
};

TEST_P(KltFragments, EveryComponentIsInOneRow) {
  std::set<uint32_t> seen;
  for (uint32_t step = 0; step < klt_steps(key_); ++step) {
    for (uint32_t row = 0; row < 16; ++row) {
      const uint32_t j = component_of(key_, step, row);
      if (j == UINT32_MAX) continue;
      EXPECT_LT(j, key_.components);
      EXPECT_TRUE(seen.insert(j).second);
    }
  }
  EXPECT_EQ(seen.size(), key_.components);
}

// What the kernel does with one tile of 16 tokens, lane by lane.
TEST_P(KltFragments, ScoresAreThoseOfTheCodes) {
  const std::vector<uint32_t> fragments = klt_fragments(key_);
  ASSERT_FALSE(fragments.empty());
  const std::vector<StepEntry> table = klt_step_table(key_);
  const uint32_t steps = klt_steps(key_);
  for (uint32_t token = 0; token < 16; ++token) {
    double score = 0.0;
    for (uint32_t row = 0; row < 2; ++row) {
      for (uint32_t c = 0; c < 128; ++c) score += operand(fragments, steps, row, c) * query_[c];
    }
    for (uint32_t step = 0; step < steps; ++step) {
      for (uint32_t row = 0; row < 16; ++row) {
        double factor = 0.0;
        for (uint32_t c = 0; c < 128; ++c) factor += operand(fragments, step, row, c) * query_[c];
        const StepEntry& entry = table[step * 4 + row / 2 % 4];
        const uint32_t word = tile_[entry.offset / 4 + token];
        const uint32_t halves = (row < 8 ? word : word >> 8) & entry.mask;
        score += factor * half_value(static_cast<uint16_t>(row % 2 ? halves >> 16 : halves)) * (1 << 18);
      }
    }
    double want = 0.0;
    std::vector<double> sum(mean_.begin(), mean_.end());
    for (uint32_t quad = 0; quad * kQuad < key_.components; ++quad) {
      float codes[kQuad];
      unpack_components(key_, reinterpret_cast<const uint8_t*>(tile_.data()), token, quad, codes);
      for (uint32_t k = 0; k < kQuad; ++k) {
        const uint32_t j = quad * kQuad + k;
        for (uint32_t c = 0; c < 128; ++c) sum[c] += (codes[k] - middle_of(key_, j)) * half_value(rows_[j * 128 + c]);
      }
    }
    for (uint32_t c = 0; c < 128; ++c) want += sum[c] * query_[c];
    EXPECT_NEAR(score, want, 2e-3 * (1.0 + std::fabs(want))) << token;
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, KltFragments,
                         ::testing::Values(Words{8, 0, 0}, Words{4, 2, 1}, Words{5, 1, 0}, Words{0, 3, 2}, Words{1, 0, 5},
                                           Words{3, 3, 2}));

}  // namespace
}  // namespace tierkv::cuda
