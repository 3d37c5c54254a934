// Choosing blocks by their summaries, against sums over all rows in double precision.
#include "cache/choose_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "quant/key_box.h"

namespace tierkv::cache {
namespace {

struct Scene {
  uint32_t d = 64, rows = 3, blocks = 40, block_rows = 32;
  std::vector<float> keys, queries, known;
  std::vector<std::vector<std::byte>> boxes;
  attn::AttendParams params;
  std::mt19937 rng;

  explicit Scene(uint32_t seed, float softcap = 0.0f) : rng(seed) {
    std::normal_distribution<float> normal;
    params.head_dim = d, params.scale = 0.125f, params.softcap = softcap;
    for (uint32_t b = 0; b < blocks; ++b) {
      std::vector<float> mean(d);
      for (float& x : mean) x = 2.0f * normal(rng);
      for (uint32_t i = 0; i < block_rows * d; ++i) keys.push_back(mean[i % d] + 0.1f * normal(rng));
      boxes.emplace_back(quant::box_bytes(d));
      quant::make_box(keys.data() + keys.size() - block_rows * d, block_rows, d, boxes.back().data());
    }
    for (uint32_t i = 0; i < rows * d; ++i) queries.push_back(2.0f * normal(rng));
    for (uint32_t r = 0; r < rows; ++r) known.push_back(14.0f + 3.0f * normal(rng));
  }

  // e^score summed over a block.
  double mass(uint32_t row, uint32_t block) const {
    double sum = 0.0;
    for (uint32_t t = 0; t < block_rows; ++t) {
      double score = 0.0;
      for (uint32_t c = 0; c < d; ++c) score += static_cast<double>(queries[row * d + c]) * keys[(block * block_rows + t) * d + c];
      score *= params.scale;
      sum += std::exp(params.softcap > 0.0f ? params.softcap * std::tanh(score / params.softcap) : score);
    }
    return sum;
  }

  // The largest part of a row's attention that lies in what is not read.
  double lost(const BlockChoice& choice) const {
    double most = 0.0;
    for (uint32_t r = 0; r < rows; ++r) {
      double all = std::exp(known[r]), out = 0.0;
      for (uint32_t b = 0; b < blocks; ++b) {
        all += mass(r, b);
        if (!choice.read[b]) out += mass(r, b);
      }
      most = std::max(most, out / all);
    }
    return most;
  }

  BlockChooser chooser() const {
    BlockChooser out(queries, known, params, blocks);
    for (const auto& box : boxes) out.add(box.data(), block_rows);
    return out;
  }
};

TEST(ChooseBlocks, WhatIsLeftOutHasNoMoreThanItSays) {
  size_t left_out = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Scene scene(seed, seed % 3 == 0 ? 8.0f : 0.0f);
    const BlockChooser chooser = scene.chooser();
    for (const BlockChoice& choice : {chooser.bounded(0.05), chooser.highest(7), chooser.likely(0.9), chooser.bounded(0.7)}) {
      ASSERT_EQ(choice.read.size(), scene.blocks);
      EXPECT_LE(scene.lost(choice), choice.left_out_mass + 1e-6) << seed;
      EXPECT_LE(choice.left_out_mass, 1.0);
    }
    EXPECT_LE(chooser.bounded(0.05).left_out_mass, 0.05);
    EXPECT_EQ(chooser.highest(7).left_out, scene.blocks - 7u);
    EXPECT_LT(scene.lost(chooser.likely(0.9)), 0.3) << "an estimate, and not far off for such rows";
    left_out += chooser.bounded(0.05).left_out;
  }
  EXPECT_GT(left_out, 1000u);
}

TEST(ChooseBlocks, EverythingIsReadWhenThatIsAsked) {
  const Scene scene(1);
  const BlockChooser chooser = scene.chooser();
  for (const BlockChoice& choice : {chooser.bounded(0.0), chooser.highest(scene.blocks), chooser.likely(1.0)}) {
    EXPECT_EQ(choice.left_out, 0u);
    EXPECT_EQ(choice.left_out_mass, 0.0);
  }
  const BlockChooser none(scene.queries, scene.known, scene.params, 0);
  for (const BlockChoice& choice : {none.bounded(0.5), none.highest(3), none.likely(0.5)}) EXPECT_TRUE(choice.read.empty());
}

TEST(ChooseBlocks, WithNothingKnownNothingIsBounded) {
  Scene scene(2);
  scene.known[1] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(scene.chooser().bounded(0.9).left_out, 0u);
  EXPECT_EQ(scene.chooser().highest(3).left_out_mass, 1.0);
}

TEST(ChooseBlocks, ABlockWithoutABoxIsRead) {
  Scene scene(3);
  std::fill(scene.boxes[17].begin(), scene.boxes[17].end(), std::byte{0});
  const BlockChooser chooser = scene.chooser();
  for (const BlockChoice& choice : {chooser.bounded(0.9), chooser.highest(1), chooser.likely(0.5)}) EXPECT_TRUE(choice.read[17]);
}

}  // namespace
}  // namespace tierkv::cache
