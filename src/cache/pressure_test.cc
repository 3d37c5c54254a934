// Calls that lack memory: refused without a handler, and tried again after a handler made room.
#include <gtest/gtest.h>

#include <algorithm>

#include "snapshot/deep_testing.h"

namespace tierkv::cache {
namespace {

using namespace tierkv::snapshot::testing;

constexpr uint32_t kLong = 1000;

Status append_text(AdaptiveKVCache& cache, SeqId seq, uint32_t tokens) {
  const made_up::Text text = made_up::model().text(tokens, 0);
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    const auto view = [&](const std::vector<float>& rows) {
      return RowsView::f32(rows.data(), tokens, made_up::kHeads, made_up::kDim);
    };
    const Status status = cache.append(seq, l, view(text.keys[l]), view(text.values[l]));
    if (!status.ok()) return status;
  }
  return {};
}

// A budget for two long sequences, not for three.
class Pressure : public ::testing::Test {
 protected:
  Pressure() {
    CacheConfig config = config_of("hot=32,warm=64,archive=rot4,sinks=4");
    auto probe = AdaptiveKVCache::create(config, calibration()).value();
    const SeqId seq = probe->add_sequence().value();
    EXPECT_TRUE(append_text(*probe, seq, kLong).ok());
    const uint64_t one = probe->memory_usage(seq).value().total_bytes;
    config.byte_budget = one * 27 / 10;
    cache = AdaptiveKVCache::create(config, calibration()).value();
    idle = cache->add_sequence().value();
    busy = cache->add_sequence().value();
    EXPECT_TRUE(append_text(*cache, idle, kLong).ok());
    EXPECT_TRUE(append_text(*cache, busy, kLong).ok());
  }
  void park_idle() {
    const Status kept = cache->set_pressure_handler([this](const MemoryPressure& pressure) {
      asked.push_back(pressure);
      return cache->park(idle, at_ratio(20.0)).ok();
    });
    ASSERT_TRUE(kept.ok()) << kept.to_string();
  }

  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId idle = 0, busy = 0;
  std::vector<MemoryPressure> asked;
};

TEST_F(Pressure, WithoutAHandlerAThirdSequenceIsRefused) {
  const SeqId third = cache->add_sequence().value();
  const Status status = append_text(*cache, third, kLong);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  EXPECT_NE(status.message().find("byte_budget"), std::string::npos) << status.message();
}

TEST_F(Pressure, AHandlerThatParksTheIdleOneMakesRoomForAThird) {
  park_idle();
  const SeqId third = cache->add_sequence().value();
  const Status status = append_text(*cache, third, kLong);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(cache->is_parked(idle).value());
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].seq, third);
  EXPECT_EQ(asked[0].attempt, 0u);
  EXPECT_EQ(asked[0].budget_bytes, cache->config().byte_budget);
  EXPECT_EQ(asked[0].needed_bytes, 4ull * kLong * made_up::kHeads * made_up::kDim);
  EXPECT_GT(asked[0].used_bytes, asked[0].budget_bytes / 2);
  EXPECT_LE(cache->memory_usage().peak_bytes, cache->config().byte_budget);
  for (const SeqId seq : {busy, third}) {
    EXPECT_TRUE(cache->verify(seq).ok());
    EXPECT_EQ(cache->positions(seq, 3, 1).value().size(), kLong);
  }
  // The idle one comes back when somebody makes room for it in turn.
  const Status kept = cache->set_pressure_handler([&](const MemoryPressure& pressure) {
    EXPECT_EQ(pressure.seq, idle);
    return cache->remove(third).ok();
  });
  ASSERT_TRUE(kept.ok()) << kept.to_string();
  ASSERT_TRUE(cache->wake(idle).ok());
  EXPECT_EQ(cache->positions(idle, 3, 1).value().size(), kLong);
}

TEST_F(Pressure, LoadingAsksToo) {
  const Bytes bytes = cache->freeze(busy).value();
  EXPECT_EQ(cache->unfreeze(bytes).status().code(), StatusCode::resource_exhausted);
  park_idle();
  const auto loaded = cache->unfreeze(bytes);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].seq, 0u);
  EXPECT_EQ(cache->freeze(*loaded).value(), bytes);
}

TEST_F(Pressure, AHandlerThatFreesNothingIsNotAskedForEver) {
  uint32_t calls = 0;
  const Status kept = cache->set_pressure_handler([&](const MemoryPressure& pressure) {
    EXPECT_EQ(pressure.attempt, calls);
    ++calls;
    return true;
  });
  ASSERT_TRUE(kept.ok()) << kept.to_string();
  const SeqId third = cache->add_sequence().value();
  const Bytes before = cache->freeze(third).value();
  constexpr uint32_t kTooMany = 20000;
  const std::vector<float> rows(size_t{kTooMany} * made_up::kHeads * made_up::kDim, 0.25f);
  const RowsView view = RowsView::f32(rows.data(), kTooMany, made_up::kHeads, made_up::kDim);
  EXPECT_EQ(cache->append(third, 0, view, view).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(calls, 16u);
  EXPECT_EQ(cache->freeze(third).value(), before);
  ASSERT_TRUE(cache->set_pressure_handler(nullptr).ok());
  EXPECT_EQ(cache->append(third, 0, view, view).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(calls, 16u);
}

TEST_F(Pressure, NewSequencesAndForksAsk) {
  park_idle();
  for (int i = 0; i < 10000 && asked.empty(); ++i) ASSERT_TRUE((i % 2 ? cache->fork(busy) : cache->add_sequence()).ok());
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_GT(asked[0].needed_bytes, 0u);
}

}  // namespace
}  // namespace tierkv::cache
