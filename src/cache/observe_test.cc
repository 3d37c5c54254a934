#include "cache/observe.h"

#include <gtest/gtest.h>

#include <random>

#include "quant/registry.h"

namespace tierkv::cache {

using namespace quant;
using namespace tiers;
namespace {

// A stream of 10 tokens in its tail, every signal kept.
class ObserveTest : public ::testing::Test {
 protected:
  ObserveTest() {
    env.arena = &arena;
    env.store = &store;
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
    ObserveSettings s;
    s.signals = env.signals, s.signal_slot = slots, s.wanted = ~0u;
    s.observation = observation, s.window_queries = window_queries, s.group = 2;
    return s;
  }

  // One call: what each query gave each token goes the way the backend takes, into the sums that the observer asked for.
  static void tell(StreamObserver& observer, std::span<const uint32_t> positions, std::span<const std::vector<float>> mass) {
    std::vector<float> sums(observer.num_sums(), 0.0f);
    observer.put_sums_at(sums.data());
    const attn::HeadMass wanted = observer.wanted();
    const attn::MassLane plain[1];
    for (size_t l = 0; wanted.rows != 0 && l < wanted.num_lanes(); ++l) {
      const attn::MassLane& lane = wanted.lanes.empty() ? plain[0] : wanted.lanes[l];
      for (size_t q = 0; q < mass.size(); ++q) {
        const float weight = lane.weight ? lane.weight[q] : 1.0f;
        for (uint32_t t = 0; t < kTokens; ++t) {
          const float given = lane.below ? (t <= positions[q] && mass[q][t] < lane.below[q] ? 1.0f : 0.0f) : mass[q][t];
          wanted.sums[l * wanted.rows + t] += weight * given;
        }
      }
    }
    observer.fold();
  }
  float stat(uint32_t token, policy::Signal signal) const { return stream.tail.stats_row(token)[signal]; }

  static constexpr uint32_t kTokens = 10;
  Arena arena;
  store::BlockStore store{arena, payload_sizes};
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
  std::vector<std::vector<float>> mass(4, std::vector<float>(kTokens, 0.0f));
  for (uint32_t q = 0; q < 4; ++q) mass[q][q] = 1.5f, mass[q][5] = 0.5f;
  tell(observer, positions, mass);
  EXPECT_FLOAT_EQ(stat(5, policy::kMassTotal), 2.0f);
  EXPECT_FLOAT_EQ(stat(0, policy::kMassTotal), 1.5f);
  EXPECT_FLOAT_EQ(stat(3, policy::kMassLast), 1.5f) << "the newest query's";
  EXPECT_FLOAT_EQ(stat(0, policy::kMassLast), 0.0f);
  // After three queries the window turned; the fourth is alone in the new one.
  EXPECT_FLOAT_EQ(stat(5, policy::kMassBefore), 1.5f);
  EXPECT_FLOAT_EQ(stat(5, policy::kMassWindow), 0.5f);
  EXPECT_FLOAT_EQ(stat(0, policy::kMassWindow), 0.0f);
  EXPECT_FLOAT_EQ(stat(3, policy::kMassWindow), 1.5f);
  EXPECT_FLOAT_EQ(stat(2, policy::kMassFading), 1.5f * policy::kFading);
}

// Queries in one call, in calls of their own, and in anything between are the same statistics.
TEST_F(ObserveTest, HowQueriesAreSharedOutOverCallsDoesNotMatter) {
  constexpr uint32_t kQueries = 23;
  std::mt19937 rng(11);
  std::vector<std::vector<float>> mass(kQueries, std::vector<float>(kTokens));
  std::vector<uint32_t> positions(kQueries);
  for (uint32_t q = 0; q < kQueries; ++q) {
    positions[q] = std::min(q, kTokens - 1);
    for (float& x : mass[q]) x = static_cast<float>(rng() % 100) / 200.0f;
  }
  std::vector<std::vector<float>> results;
  for (const uint32_t step : {1u, 2u, 5u, 7u, 23u}) {
    for (uint32_t t = 0; t < kTokens; ++t) std::fill_n(stream.tail.stats_row(t), env.signals, 0.0f);
    uint32_t in_window = 0;
    for (uint32_t q = 0; q < kQueries; q += step) {
      const uint32_t count = std::min(step, kQueries - q);
      const std::span<const uint32_t> at = std::span(positions).subspan(q, count);
      StreamObserver observer(settings(6, in_window), stream, views, at, nullptr, kTokens);
      tell(observer, at, std::span(mass).subspan(q, count));
      in_window = (in_window + count) % 6;
    }
    results.emplace_back();
    for (uint32_t t = 0; t < kTokens; ++t)
      results.back().insert(results.back().end(), stream.tail.stats_row(t), stream.tail.stats_row(t) + env.signals);
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_NEAR(results.back()[i], results[0][i], 1e-4)
          << "calls of " << step << ", token " << i / env.signals << ", signal " << i % env.signals;
  }
}

TEST_F(ObserveTest, LowCountAsksOnlyTokensTheQuerySaw) {
  const uint32_t positions[] = {4};
  StreamObserver observer(settings(100), stream, views, positions, nullptr, kTokens);
  std::vector<float> mass(kTokens, 0.0f);
  mass[2] = 2.0f;  // all the mass of a group of two
  tell(observer, positions, {&mass, 1});
  for (uint32_t t = 0; t < kTokens; ++t) EXPECT_EQ(stat(t, policy::kLowCount), t <= 4 && t != 2 ? 1.0f : 0.0f) << t;
}

TEST_F(ObserveTest, AWindowGoesOnAcrossCalls) {
  const uint32_t positions[] = {9};
  const std::vector<float> mass(kTokens, 0.2f);
  for (uint32_t call = 0; call < 4; ++call) {
    StreamObserver observer(settings(4, call), stream, views, positions, nullptr, kTokens);
    tell(observer, positions, {&mass, 1});
    EXPECT_NEAR(stat(0, policy::kMassWindow), call == 3 ? 0.0f : 0.2f * static_cast<float>(call + 1), 1e-6) << call;
  }
  EXPECT_NEAR(stat(0, policy::kMassBefore), 0.8f, 1e-6);
}

TEST_F(ObserveTest, OneQueryIsOneSumForAllButTheCounts) {
  const uint32_t positions[] = {9};
  StreamObserver observer(settings(4), stream, views, positions, nullptr, kTokens);
  EXPECT_EQ(observer.num_sums(), 2 * kTokens);
  ObserveSettings total = settings(4);
  total.wanted = 1u << policy::kMassTotal;
  StreamObserver plain(total, stream, views, positions, nullptr, kTokens);
  EXPECT_TRUE(plain.wanted().lanes.empty()) << "the backend has a shorter way for it";
}

TEST_F(ObserveTest, AQueryMayCountForOthersInTheTotalAlone) {
  const uint32_t positions[] = {9};
  const std::vector<float> mass(kTokens, 0.2f);
  ObserveSettings twice = settings(4);
  twice.total_times = 2.0f;
  StreamObserver observer(twice, stream, views, positions, nullptr, kTokens);
  tell(observer, positions, {&mass, 1});
  EXPECT_NEAR(stat(3, policy::kMassTotal), 0.4f, 1e-6);
  EXPECT_NEAR(stat(3, policy::kMassLast), 0.2f, 1e-6);
  EXPECT_NEAR(stat(3, policy::kMassWindow), 0.2f, 1e-6);
  for (uint32_t p = 0; p < 6; ++p) EXPECT_NE(hears_totals(p, 3), hears_totals(p + 1, 3));
  EXPECT_NE(hears_totals(5, 0), hears_totals(5, 1)) << "layers take turns";
}

TEST_F(ObserveTest, ReportsBlocksAndTokensOfItsHead) {
  MassReport report;
  report.want_tokens = true;
  report.tokens.assign(2 * kTokens, 0.0f);
  ObserveSettings nothing = settings(4);
  nothing.signals = 0;
  const uint32_t positions[] = {9, 9};
  StreamObserver observer(nothing, stream, views, positions, &report, kTokens);
  const std::vector<std::vector<float>> mass(2, std::vector<float>(kTokens, 0.1f));
  tell(observer, positions, mass);
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
