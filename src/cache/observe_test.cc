#include "cache/observe.h"

#include <gtest/gtest.h>

#include "quant/registry.h"

namespace tierkv::cache {

using namespace quant;
using namespace tiers;
namespace {

// A stream of 10 tokens in its tail, all five signals kept.
class ObserveTest : public ::testing::Test {
 protected:
  ObserveTest() {
    env.arena = &arena;
    env.head_dim = 32;
    env.signals = policy::kNumSignals;
    stream.head = 1;
    stream.tail.configure(32, env.signals, false);
    EXPECT_TRUE(stream.tail.reserve(arena, kTokens, 0));
    for (uint32_t p = 0; p < kTokens; ++p) {
      uint16_t* row;
      stream.tail.push(p, row, row);
      std::fill_n(row, 32, uint16_t{0});
    }
    const quant::CodecSpec fp16 = quant::parse_codec("fp16").value();
    hot = codecs.get({fp16, fp16}, attn::kMaxViewRows).value();
    collect_views(env, stream, *hot, views);
    for (int l = 0; l < policy::kNumSignals; ++l) slots[l] = l;
  }
  ~ObserveTest() override { destroy(env, stream); }

  ObserveSettings settings(uint32_t observation, uint32_t window_queries = 0) const {
    return {env.signals, slots, observation, window_queries, /*group=*/2};
  }
  float stat(uint32_t token, policy::Signal signal) const { return stream.tail.stats_row(token)[signal]; }

  static constexpr uint32_t kTokens = 10;
  Arena arena;
  StreamEnv env;
  CodecSet codecs{32};
  const CodecEntry* hot = nullptr;
  HeadStream stream;
  StreamViews views;
  int slots[policy::kNumSignals];
};

TEST_F(ObserveTest, LanesSumWhatTheyPromise) {
  const uint32_t positions[] = {7, 8, 9, 9};
  StreamObserver observer(settings(3), stream, views, positions, nullptr, kTokens);
  std::vector<float> mass(kTokens, 0.0f);
  for (uint32_t q = 0; q < 4; ++q) {
    std::fill(mass.begin(), mass.end(), 0.0f);
    mass[q] = 1.5f;
    mass[5] = 0.5f;
    observer.add(q, 0, mass.data(), kTokens);
    observer.end_query(q);
  }
  EXPECT_FLOAT_EQ(stat(5, policy::kMassTotal), 2.0f);
  EXPECT_FLOAT_EQ(stat(0, policy::kMassTotal), 1.5f);
  EXPECT_FLOAT_EQ(stat(3, policy::kMassLast), 1.5f) << "the newest query's";
  EXPECT_FLOAT_EQ(stat(0, policy::kMassLast), 0.0f);
  // After three queries the window turned; the fourth is alone in the new one.
  EXPECT_FLOAT_EQ(stat(5, policy::kMassBefore), 1.5f);
  EXPECT_FLOAT_EQ(stat(5, policy::kMassWindow), 0.5f);
  EXPECT_FLOAT_EQ(stat(0, policy::kMassWindow), 0.0f);
  EXPECT_FLOAT_EQ(stat(3, policy::kMassWindow), 1.5f);
}

TEST_F(ObserveTest, LowCountAsksOnlyTokensTheQuerySaw) {
  const uint32_t positions[] = {4};
  StreamObserver observer(settings(100), stream, views, positions, nullptr, kTokens);
  std::vector<float> mass(kTokens, 0.0f);
  mass[2] = 2.0f;  // all the mass of a group of two
  observer.add(0, 0, mass.data(), kTokens);
  observer.end_query(0);
  for (uint32_t t = 0; t < kTokens; ++t) EXPECT_EQ(stat(t, policy::kLowCount), t <= 4 && t != 2 ? 1.0f : 0.0f) << t;
}

TEST_F(ObserveTest, AWindowGoesOnAcrossCalls) {
  const uint32_t positions[] = {9};
  std::vector<float> mass(kTokens, 0.2f);
  for (uint32_t call = 0; call < 4; ++call) {
    StreamObserver observer(settings(4, call), stream, views, positions, nullptr, kTokens);
    observer.add(0, 0, mass.data(), kTokens);
    observer.end_query(0);
    EXPECT_NEAR(stat(0, policy::kMassWindow), call == 3 ? 0.0f : 0.2f * static_cast<float>(call + 1), 1e-6) << call;
  }
  EXPECT_NEAR(stat(0, policy::kMassBefore), 0.8f, 1e-6);
}

TEST_F(ObserveTest, ReportsBlocksAndTokensOfItsHead) {
  MassReport report;
  report.want_tokens = true;
  report.tokens.assign(2 * kTokens, 0.0f);
  ObserveSettings nothing = settings(4);
  nothing.signals = 0;
  const uint32_t positions[] = {9, 9};
  StreamObserver observer(nothing, stream, views, positions, &report, kTokens);
  std::vector<float> mass(kTokens, 0.1f);
  for (uint32_t q = 0; q < 2; ++q) {
    observer.add(q, 0, mass.data(), kTokens);
    observer.end_query(q);
  }
  const auto blocks = observer.take_blocks();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].kv_head, 1u);
  EXPECT_EQ(blocks[0].rows, kTokens);
  EXPECT_EQ(blocks[0].tier, Tier::hot);
  EXPECT_NEAR(blocks[0].mass, 2.0, 1e-6);
  EXPECT_EQ(report.tokens[0], 0.0f) << "another head's";
  for (uint32_t t = 0; t < kTokens; ++t) EXPECT_NEAR(report.tokens[kTokens + t], 0.2f, 1e-6);
  EXPECT_EQ(stat(3, policy::kMassTotal), 0.0f) << "no signals, no learning";
}

}  // namespace
}  // namespace tierkv::cache
