// The contract of policy.h over every row of the registry, then what each policy promises by itself.
#include "policy/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace tierkv::policy {
namespace {

// A plan's input with its own storage.
struct Tokens {
  std::vector<uint32_t> positions;
  std::vector<float> signal[kNumSignals];
  ChoiceInput in;

  explicit Tokens(std::vector<uint32_t> at) : positions(std::move(at)) {
    for (auto& l : signal) l.assign(positions.size(), 0.0f);
  }
  const ChoiceInput& input(uint32_t budget, uint32_t protect_first = 0, uint32_t protect_recent = 0) {
    in.budget = budget, in.protect_first = protect_first, in.protect_recent = protect_recent;
    in.positions = positions;
    for (int i = 0; i < kNumSignals; ++i) in.signal[i] = signal[i];
    return in;
  }
};

std::vector<uint32_t> iota(uint32_t n) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

std::unique_ptr<EvictionPolicy> make(const char* name, EvictionConfig config = {}) {
  config.policy = name;
  return make_policy(config).value();
}

std::vector<uint32_t> kept(const EvictionPolicy& policy, const ChoiceInput& in) {
  std::vector<uint8_t> keep(in.positions.size(), 7);  // stale bytes must be overwritten
  policy.choose(in, keep);
  std::vector<uint32_t> out;
  for (size_t i = 0; i < keep.size(); ++i) {
    EXPECT_LE(keep[i], 1);
    if (keep[i] == 1) out.push_back(in.positions[i]);
  }
  return out;
}

Tokens random_tokens(std::mt19937& rng, uint32_t n) {
  std::vector<uint32_t> at;
  for (uint32_t i = 0, p = 0; i < n; ++i) at.push_back(p), p += 1 + (rng() % 4 == 0 ? rng() % 9 : 0);
  Tokens t(at);
  for (auto& signal : t.signal)
    for (float& x : signal) x = static_cast<float>(rng() % 50) / 8.0f;  // ties on purpose
  t.in.window_queries = rng() % 33;
  return t;
}

class EveryPolicy : public testing::TestWithParam<PolicyRow> {
 protected:
  std::unique_ptr<EvictionPolicy> policy() const { return make(GetParam().name); }
  bool is_window() const {
    const std::string name = GetParam().name;
    return name == "sliding_window" || name == "streaming_llm";
  }
};

TEST_P(EveryPolicy, KeepsExactlyTheBudgetAndTheProtectedAndIsDeterministic) {
  const uint32_t seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const auto p = policy();
  for (int round = 0; round < 300; ++round) {
    const uint32_t n = rng() % 90;
    Tokens t = random_tokens(rng, n);
    const uint32_t first = rng() % 9, recent = rng() % 12;
    for (const uint32_t budget : {0u, 1u, n / 2, n ? n - 1 : 0u, n, n + 1, 0xFFFFFFFFu}) {
      const ChoiceInput& in = t.input(budget, first, recent);
      const auto stay = kept(*p, in);
      ASSERT_EQ(stay.size(), std::min(budget, n)) << GetParam().name << " n " << n << " budget " << budget;
      ASSERT_EQ(stay, kept(*p, in));
      uint32_t room = std::min(budget, n);
      for (uint32_t i = 0; i < n && t.positions[i] < first && room; ++i, --room)
        ASSERT_TRUE(std::binary_search(stay.begin(), stay.end(), t.positions[i])) << "sink " << t.positions[i];
      // StreamingLLM's own four sinks come before the recent ones too.
      if (std::string(GetParam().name) == "streaming_llm" && first < 4) continue;
      for (uint32_t i = 0; i < std::min(recent, n) && room && t.positions[n - 1 - i] >= first; ++i, --room)
        ASSERT_TRUE(std::binary_search(stay.begin(), stay.end(), t.positions[n - 1 - i])) << "recent " << i;
    }
  }
}

TEST_P(EveryPolicy, ExplicitWindowNeverKeepsMoreThanTheBudget) {
  EvictionConfig config;
  config.window = 5;
  const auto p = make(GetParam().name, config);
  Tokens t(iota(40));
  for (uint32_t budget = 0; budget <= 41; ++budget) {
    const size_t stay = kept(*p, t.input(budget, 2, 3)).size();
    EXPECT_LE(stay, std::min(budget, 40u));
    if (!is_window()) {
      EXPECT_EQ(stay, std::min(budget, 40u));
    }
  }
}

TEST_P(EveryPolicy, NaNAndInfinityAreSafe) {
  Tokens t(iota(64));
  for (auto& signal : t.signal)
    for (size_t i = 0; i < signal.size(); ++i) signal[i] = i % 3 == 0 ? std::nanf("") : i % 5 == 0 ? INFINITY : 1.0f;
  const auto p = policy();
  EXPECT_EQ(kept(*p, t.input(20, 4, 4)).size(), 20u);
  for (auto& signal : t.signal) std::fill(signal.begin(), signal.end(), std::nanf(""));
  EXPECT_EQ(kept(*p, t.input(20, 4, 4)).size(), 20u);
}

TEST_P(EveryPolicy, TiesKeepTheNewer) {
  const auto p = policy();
  Tokens t(iota(50));
  const auto stay = kept(*p, t.input(10, 2, 0));
  std::vector<uint32_t> expected = {0, 1, 42, 43, 44, 45, 46, 47, 48, 49};
  if (std::string(GetParam().name) == "streaming_llm") expected = {0, 1, 2, 3, 44, 45, 46, 47, 48, 49};
  EXPECT_EQ(stay, expected);
}

TEST_P(EveryPolicy, LayerBudgetsNeverGrowWithTheLayerAndAverageToTheBudget) {
  const auto p = policy();
  for (const uint32_t layers : {1u, 2u, 7u, 30u, 80u})
    for (const uint32_t budget : {1u, 2u, 33u, 40u, 512u, 4096u, 1u << 30}) {
      uint64_t sum = 0;
      uint32_t last = 0xFFFFFFFFu;
      for (uint32_t l = 0; l < layers; ++l) {
        const uint32_t b = p->layer_budget(l, layers, budget);
        EXPECT_GE(b, 1u);
        EXPECT_LE(b, 2ull * budget);
        EXPECT_LE(b, last);
        last = b, sum += b;
      }
      EXPECT_EQ(sum, static_cast<uint64_t>(layers) * budget) << GetParam().name << " layers " << layers << " budget " << budget;
    }
  EXPECT_EQ(p->layer_budget(3, 8, 0), 0u);
}

TEST_P(EveryPolicy, AsksForLanesThatExist) { EXPECT_EQ(policy()->signals() >> kNumSignals, 0u); }

INSTANTIATE_TEST_SUITE_P(Registry, EveryPolicy, testing::ValuesIn(policy_rows().begin(), policy_rows().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PolicyRegistry, NoneIsNullAndUnknownNamesAreRefusedWithTheKnownOnes) {
  EvictionConfig config;
  const auto none = make_policy(config);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value(), nullptr);
  config.policy = "h20";
  const auto bad = make_policy(config);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(bad.status().message().find("'h20'"), std::string::npos);
  for (const PolicyRow& row : policy_rows()) EXPECT_NE(bad.status().message().find(row.name), std::string::npos);
}

// --- ruvector-attention, by name

TEST(Eviction, H2OEvictsLowestScore) {
  Tokens t(iota(4));
  t.signal[kMassTotal] = {5.0f, 1.0f, 3.0f, 4.0f};
  EXPECT_EQ(kept(*make("h2o"), t.input(3)), (std::vector<uint32_t>{0, 2, 3}));
}

TEST(Eviction, SlidingWindowKeepsSinksAndRecent) {
  EvictionConfig config;
  config.window = 3;
  Tokens t(iota(10));
  EXPECT_EQ(kept(*make("sliding_window", config), t.input(5, 2)), (std::vector<uint32_t>{0, 1, 7, 8, 9}));
  // The window binds even where the budget would allow more, as in ruvector-attention.
  EXPECT_EQ(kept(*make("sliding_window", config), t.input(9, 2)), (std::vector<uint32_t>{0, 1, 7, 8, 9}));
}

TEST(Eviction, SingleEntrySurvivesABudgetOfOne) {
  for (const PolicyRow& row : policy_rows()) {
    Tokens t(iota(1));
    EXPECT_EQ(kept(*make(row.name), t.input(1)), (std::vector<uint32_t>{0})) << row.name;
  }
}

// --- one by one

TEST(H2O, RecentTokensStayWhateverTheirMass) {
  Tokens t(iota(8));
  t.signal[kMassTotal] = {9, 8, 7, 6, 5, 4, 0, 0};
  EXPECT_EQ(kept(*make("h2o"), t.input(4, 0, 2)), (std::vector<uint32_t>{0, 1, 6, 7}));
}

TEST(H2O, NaNCountsAsTheLowest) {
  Tokens t(iota(5));
  t.signal[kMassTotal] = {0, 1, std::nanf(""), 2, std::nanf("")};
  EXPECT_EQ(kept(*make("h2o"), t.input(3)), (std::vector<uint32_t>{0, 1, 3}));
}

TEST(SlidingWindow, ZeroWindowTakesWhatTheBudgetAllows) {
  Tokens t(iota(20));
  EXPECT_EQ(kept(*make("sliding_window"), t.input(6, 2)), (std::vector<uint32_t>{0, 1, 16, 17, 18, 19}));
}

TEST(SlidingWindow, IsWidenedToTheProtectedRecentTokens) {
  EvictionConfig config;
  config.window = 2;
  Tokens t(iota(20));
  EXPECT_EQ(kept(*make("sliding_window", config), t.input(10, 1, 4)), (std::vector<uint32_t>{0, 16, 17, 18, 19}));
}

TEST(StreamingLLM, HasFourSinksOfItsOwn) {
  EvictionConfig config;
  config.window = 3;
  Tokens t(iota(20));
  EXPECT_EQ(kept(*make("streaming_llm", config), t.input(12)), (std::vector<uint32_t>{0, 1, 2, 3, 17, 18, 19}));
}

TEST(Tova, FollowsTheNewestQueryAndDecidesForTheLayer) {
  const auto p = make("tova");
  EXPECT_EQ(p->scope(), Scope::layer);
  Tokens t(iota(5));
  t.signal[kMassLast] = {0.1f, 0.4f, 0.0f, 0.3f, 0.2f};
  t.signal[kMassTotal] = {0, 0, 100, 0, 0};
  EXPECT_EQ(kept(*p, t.input(3)), (std::vector<uint32_t>{1, 3, 4}));
}

TEST(Scissorhands, EvictsTheMostOftenUnattended) {
  Tokens t(iota(6));
  t.signal[kLowCount] = {3, 9, 0, 9, 2, 1};
  EXPECT_EQ(kept(*make("scissorhands"), t.input(5)), (std::vector<uint32_t>{0, 2, 3, 4, 5}));  // of two equals the older goes
  EXPECT_EQ(kept(*make("scissorhands"), t.input(4)), (std::vector<uint32_t>{0, 2, 4, 5}));
}

TEST(Akv, WeighsFadingMassAgainstRecency) {
  Tokens t(iota(12));
  t.signal[kMassFading] = {9.0f, 0.5f, 1.0f, 0, 0, 0, 0, 0, 0, 0, 8.0f, 8.0f};
  // Positions 0 and 10..11 are protected and do not set the measure; 2 has the most mass, 1 half of it, then the newest.
  EXPECT_EQ(kept(*make("akv"), t.input(6, 1, 2)), (std::vector<uint32_t>{0, 1, 2, 9, 10, 11}));
  // Half the mass is 0.35 more, the whole range of recency 0.3.
  t.signal[kMassFading][1] = 0.3f;
  EXPECT_EQ(kept(*make("akv"), t.input(5, 1, 2)), (std::vector<uint32_t>{0, 2, 9, 10, 11}));
}

EvictionConfig snap(uint32_t observation, uint32_t pool) {
  EvictionConfig config;
  config.observation = observation, config.pool = pool;
  return config;
}

TEST(SnapKV, PoolingKeepsTheNeighboursOfAPeak) {
  Tokens t(iota(100));
  t.signal[kMassWindow][50] = 1.0f;
  const auto stay = kept(*make("snapkv", snap(4, 7)), t.input(14, 0, 4));
  for (uint32_t p = 47; p <= 53; ++p) EXPECT_TRUE(std::binary_search(stay.begin(), stay.end(), p)) << p;
  const auto alone = kept(*make("snapkv", snap(4, 1)), t.input(14, 0, 4));
  EXPECT_TRUE(std::binary_search(alone.begin(), alone.end(), 50u));
  EXPECT_FALSE(std::binary_search(alone.begin(), alone.end(), 49u));
}

TEST(SnapKV, PoolingDoesNotReachAcrossAGap) {
  Tokens t({0, 1, 2, 3, 40, 41, 42, 43, 44, 45, 90, 91, 92, 93});
  t.signal[kMassWindow][3] = 1.0f;  // position 3; its list neighbour is 37 positions away
  const auto stay = kept(*make("snapkv", snap(1, 7)), t.input(6, 0, 2));
  EXPECT_EQ(stay, (std::vector<uint32_t>{0, 1, 2, 3, 92, 93}));
}

TEST(SnapKV, ProtectedTokensLendTheirNeighboursNothing) {
  Tokens t(iota(40));
  t.signal[kMassWindow][1] = 100.0f;  // a sink
  t.signal[kMassWindow][20] = 1.0f;
  const auto stay = kept(*make("snapkv", snap(2, 5)), t.input(9, 2, 2));
  EXPECT_EQ(stay, (std::vector<uint32_t>{0, 1, 18, 19, 20, 21, 22, 38, 39}));
}

TEST(SnapKV, FillsAYoungWindowFromTheOneBefore) {
  Tokens t(iota(40));
  t.signal[kMassBefore][10] = 4.0f;
  t.signal[kMassWindow][20] = 2.0f;
  const auto p = make("snapkv", snap(8, 1));
  const auto winner = [&](uint32_t queries) {
    t.in.window_queries = queries;
    return kept(*p, t.input(3, 0, 2)).front();
  };
  EXPECT_EQ(winner(0), 10u);  // 4 against 2
  EXPECT_EQ(winner(3), 10u);  // 2.5 against 2
  EXPECT_EQ(winner(5), 20u);  // 1.5 against 2
  EXPECT_EQ(winner(8), 20u);  // the window is full: what came before no longer counts
}

TEST(SnapKV, KeepsTheObservationWindowUpToHalfTheBudget) {
  Tokens t(iota(64));
  for (int i = 0; i < 32; ++i) t.signal[kMassWindow][i] = 1.0f;
  const auto stay = kept(*make("snapkv", snap(16, 1)), t.input(20));
  EXPECT_EQ(std::count_if(stay.begin(), stay.end(), [](uint32_t p) { return p >= 48; }), 10);
}

TEST(SnapKV, PoolingMatchesThePlainDefinition) {
  const uint32_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  for (int round = 0; round < 200; ++round) {
    Tokens t = random_tokens(rng, 30 + rng() % 40);
    const size_t n = t.positions.size();
    const uint32_t pool = 1 + 2 * (rng() % 5);
    t.in.window_queries = 1;
    // Observation 1 and a budget of 3: the last token and the two best of the others.
    const auto stay = kept(*make("snapkv", snap(1, pool)), t.input(3));
    std::vector<std::pair<float, size_t>> pooled;
    for (size_t i = 0; i + 1 < n; ++i) {
      float best = 0;
      for (size_t j = 0; j + 1 < n; ++j)
        if (std::max(t.positions[i], t.positions[j]) - std::min(t.positions[i], t.positions[j]) <= pool / 2)
          best = std::max(best, t.signal[kMassWindow][j]);
      pooled.push_back({best, i});
    }
    std::sort(pooled.rbegin(), pooled.rend());
    std::vector<uint32_t> expected = {t.positions[pooled[0].second], t.positions[pooled[1].second], t.positions[n - 1]};
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(stay, expected) << "round " << round;
  }
}

TEST(PyramidKV, ChoosesAsSnapKVUnderItsOwnBudget) {
  std::mt19937 rng(5);
  Tokens t = random_tokens(rng, 200);
  EvictionConfig config;
  EXPECT_EQ(kept(*make("pyramidkv", config), t.input(90, 4, 8)), kept(*make("snapkv", config), t.input(90, 4, 8)));
  EXPECT_GT(make("pyramidkv")->layer_budget(0, 4, 512), make("pyramidkv")->layer_budget(3, 4, 512));
}

}  // namespace
}  // namespace tierkv::policy
