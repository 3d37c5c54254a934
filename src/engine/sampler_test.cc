#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <set>

namespace tierkv::engine {
namespace {

const std::vector<float> kLogits = {1.5f, 2.0f, 1.9f, -1.0f};

TEST(Sampler, TemperatureZeroTakesTheLikeliest) {
  Sampler sampler(SamplerOptions{}, 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sampler.pick(kLogits), 1);
}

TEST(Sampler, APenaltyCountsWhatWasSaidAndThePrompt) {
  SamplerOptions options;
  options.repeat_penalty = 2.0f;
  Sampler sampler(options, 1);
  EXPECT_EQ(sampler.pick(kLogits), 1);
  EXPECT_EQ(sampler.pick(kLogits), 2);  // 1 was said: 2.0 counts as 1.0
  Sampler other(options, 1);
  other.accept(1);
  EXPECT_EQ(other.pick(kLogits), 2);
}

TEST(Sampler, ThePenaltyForgets) {
  SamplerOptions options;
  options.repeat_penalty = 2.0f;
  options.repeat_last = 1;
  Sampler sampler(options, 1);
  EXPECT_EQ(sampler.pick(kLogits), 1);
  EXPECT_EQ(sampler.pick(kLogits), 2);
  EXPECT_EQ(sampler.pick(kLogits), 1);
}

TEST(Sampler, FrequencyCountsEachTimeAndPresenceOnce) {
  SamplerOptions options;
  options.frequency_penalty = 0.06f;
  Sampler often(options, 1);
  EXPECT_EQ(often.pick(kLogits), 1);  // 2.00
  EXPECT_EQ(often.pick(kLogits), 1);  // 1.94
  EXPECT_EQ(often.pick(kLogits), 2);  // 1.88 against 1.90
  options.frequency_penalty = 0.0f;
  options.presence_penalty = 0.06f;
  Sampler once(options, 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(once.pick(kLogits), 1);
}

TEST(Sampler, TheSeedDecides) {
  SamplerOptions options;
  options.temperature = 2.0f;
  auto draw = [&](uint32_t seed) {
    Sampler sampler(options, seed);
    std::vector<llama_token> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(sampler.pick(kLogits));
    return tokens;
  };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
  const auto tokens = draw(5);
  EXPECT_GT(std::set<llama_token>(tokens.begin(), tokens.end()).size(), 1u);
}

}  // namespace
}  // namespace tierkv::engine
