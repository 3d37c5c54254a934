// Tests of rope.h: pairs and angles found at position 1 turn rows as ggml's own RoPE does at any other.
#include "llama/rope.h"

#include <ggml-backend.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "calib/rope.h"

namespace tierkv::llama {
namespace {

struct Case {
  const char* name;
  uint32_t head_dim;
  int dims, mode;
  float freq_base = 10000.0f, freq_scale = 1.0f, ext_factor = 0.0f, attn_factor = 1.0f;
  bool factors = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

RopeNode node_of(const Case& c) {
  RopeNode rope;
  rope.params[1] = c.dims;
  rope.params[2] = c.mode;
  rope.params[4] = 2048;  // the context it was made for
  const float numbers[] = {c.freq_base, c.freq_scale, c.ext_factor, c.attn_factor, 32.0f, 1.0f};
  std::memcpy(rope.params.data() + 5, numbers, sizeof(numbers));
  if ((c.mode & GGML_ROPE_TYPE_MROPE) != 0) {
    const int32_t sections[] = {c.dims / 4, c.dims / 8, c.dims / 8, 0};
    std::memcpy(rope.params.data() + 11, sections, sizeof(sections));
  }
  for (int i = 0; c.factors && i < c.dims / 2; ++i) rope.factors.push_back(1.0f + 0.25f * static_cast<float>(i));
  return rope;
}

class Rope : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { ggml_backend_load_all(); }
};

TEST_P(Rope, TurnsLikeGgmlAtEveryPosition) {
  const RopeNode rope = node_of(GetParam());
  const uint32_t dim = GetParam().head_dim, count = 5;
  const auto pairs = rope_of(rope, dim);
  ASSERT_TRUE(pairs.ok()) << pairs.status().to_string();
  EXPECT_EQ(pairs->size(), static_cast<size_t>(GetParam().dims) / 2);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(count * dim);
  for (float& x : rows) x = normal(random);
  // At position 0 nothing turns, and what is left is the constant factor.
  const auto still = apply_rope(rope, dim, rows, 0);
  ASSERT_TRUE(still.ok());
  const calib::Turner turner(*pairs, dim);
  for (const int32_t position : {1, 2, 77, 128, 1000, 5000}) {
    const auto turned = apply_rope(rope, dim, rows, position);
    ASSERT_TRUE(turned.ok());
    std::vector<float> ours(rows.size()), back(rows.size());
    turner.turn(still->data(), count, position, ours.data());
    turner.turn(turned->data(), count, -position, back.data());
    double worst = 0.0, moved = 0.0;
    for (size_t i = 0; i < rows.size(); ++i) {
      worst = std::max<double>(worst, std::fabs(ours[i] - (*turned)[i]));
      worst = std::max<double>(worst, std::fabs(back[i] - (*still)[i]));
      moved = std::max<double>(moved, std::fabs((*turned)[i] - (*still)[i]));
    }
    // ggml multiplies angles up in f32: a part in 1e6 of the angle.
    EXPECT_LT(worst, 1e-4 + 2e-6 * position) << "position " << position;
    EXPECT_GT(moved, 0.1) << "position " << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Rope,
                         testing::Values(Case{"interleaved", 64, 64, GGML_ROPE_TYPE_NORMAL},
                                         Case{"halves", 64, 64, GGML_ROPE_TYPE_NEOX},
                                         Case{"partial interleaved", 80, 32, GGML_ROPE_TYPE_NORMAL},
                                         Case{"partial halves", 96, 48, GGML_ROPE_TYPE_NEOX},
                                         Case{"wide", 256, 256, GGML_ROPE_TYPE_NEOX, 1e6f},
                                         Case{"linear scaling", 64, 64, GGML_ROPE_TYPE_NEOX, 10000.0f, 0.125f},
                                         Case{"yarn", 128, 128, GGML_ROPE_TYPE_NORMAL, 10000.0f, 0.25f, 1.0f, 1.2f},
                                         Case{"yarn halves", 64, 64, GGML_ROPE_TYPE_NEOX, 500000.0f, 0.25f, 1.0f, 1.0f},
                                         Case{"factors", 64, 64, GGML_ROPE_TYPE_NORMAL, 500000.0f, 1.0f, 0.0f, 1.0f, true},
                                         Case{"several positions", 64, 64, GGML_ROPE_TYPE_MROPE}));

TEST(RopePairs, AreNamedOnceInTheOrderOfTheModel) {
  ggml_backend_load_all();
  const auto halves = rope_of(node_of({"", 96, 48, GGML_ROPE_TYPE_NEOX}), 96);
  const auto interleaved = rope_of(node_of({"", 96, 48, GGML_ROPE_TYPE_NORMAL}), 96);
  ASSERT_TRUE(halves.ok() && interleaved.ok());
  for (uint16_t p = 0; p < 24; ++p) {
    const double angle = std::pow(10000.0, -2.0 * p / 48.0);
    EXPECT_EQ((*halves)[p].a, p);
    EXPECT_EQ((*halves)[p].b, p + 24);
    EXPECT_EQ((*interleaved)[p].a, 2 * p);
    EXPECT_EQ((*interleaved)[p].b, 2 * p + 1);
    EXPECT_NEAR((*halves)[p].angle, angle, 1e-5 * angle);
    EXPECT_NEAR((*interleaved)[p].angle, angle, 1e-5 * angle);
  }
}

TEST(RopePairs, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(rope_of(node_of({"", 64, 96, GGML_ROPE_TYPE_NEOX}), 64).ok());
  RopeNode rope = node_of({"", 64, 64, GGML_ROPE_TYPE_NEOX});
  rope.factors = {1.0f, 1.0f};
  EXPECT_FALSE(rope_of(rope, 64).ok());
}

}  // namespace
}  // namespace tierkv::llama
