// steps_testing.h — many steps of two caches that get the same calls, one of them on a device or on its twin: the same answers
// after everything that changes what a device keeps from call to call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attn/backend.h"
#include "tierkv/cache.h"

namespace tierkv::cuda::testing {

class Steps {
 public:
  static constexpr uint32_t kLayers = 2, kHeads = 8, kKvHeads = 2, kDim = 128;

  Steps(const std::string& spec, std::shared_ptr<const attn::Backend> backend, uint32_t seed) : rng_(seed) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(spec, config).ok());
    for (auto& cache : caches_) {
      auto made = AdaptiveKVCache::create(config);
      EXPECT_TRUE(made.ok()) << made.status().message();
      if (made.ok()) cache = std::move(made).value();
    }
    if (caches_[1]) caches_[1]->attend_with(std::move(backend));
  }

  // Both caches have the same ids: they get the same calls.
  SeqId add(uint32_t tokens) {
    const SeqId id = both([](AdaptiveKVCache& cache) { return cache.add_sequence(); });
    sequences_.push_back(id);
    append(id, tokens);
    return id;
  }
  SeqId fork(SeqId from) {
    sequences_.push_back(both([&](AdaptiveKVCache& cache) { return cache.fork(from); }));
    return sequences_.back();
  }
  void remove(SeqId id) {
    for (auto& cache : caches_) EXPECT_TRUE(cache->remove(id).ok());
    std::erase(sequences_, id);
  }
  void truncate(SeqId id, uint32_t length) {
    for (auto& cache : caches_) EXPECT_TRUE(cache->truncate(id, length).ok());
  }
  void append(SeqId id, uint32_t tokens) {
    for (uint32_t layer = 0; layer < kLayers && tokens != 0; ++layer) {
      const std::vector<float> keys = noise(size_t{tokens} * kKvHeads * kDim), values = noise(keys.size());
      for (auto& cache : caches_) {
        const Status status = cache->append(id, layer, RowsView::f32(keys.data(), tokens, kKvHeads, kDim),
                                            RowsView::f32(values.data(), tokens, kKvHeads, kDim));
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
  }

  // All sequences in one call, every layer, `count` queries each.
  void compare(double tolerance, uint32_t count = 1) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const size_t row = size_t{count} * kHeads * kDim;
      const std::vector<float> queries = noise(sequences_.size() * row);
      std::vector<float> out[2];
      for (int c = 0; c < 2; ++c) {
        out[c].assign(queries.size(), NAN);
        std::vector<AttentionItem> items;
        for (size_t s = 0; s < sequences_.size(); ++s) {
          items.push_back({sequences_[s], RowsView::f32(queries.data() + s * row, count, kHeads, kDim), out[c].data() + s * row});
        }
        const Status status = caches_[c]->attention(layer, items);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      double off = 0.0, size = 0.0;
      for (size_t i = 0; i < queries.size(); ++i) {
        const double difference = static_cast<double>(out[1][i]) - out[0][i];
        off += difference * difference, size += static_cast<double>(out[0][i]) * out[0][i];
      }
      ASSERT_LT(std::sqrt(off / size), tolerance) << "layer " << layer;
      worst_ = std::max(worst_, std::sqrt(off / size));
    }
  }

  uint32_t length(SeqId id) const { return *caches_[0]->length(id); }
  const std::vector<SeqId>& sequences() const { return sequences_; }
  AdaptiveKVCache& device_cache() { return *caches_[1]; }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  double worst() const { return worst_; }

 private:
  template <class F>
  SeqId both(const F& f) {
    const Result<SeqId> here = f(*caches_[0]), there = f(*caches_[1]);
    EXPECT_TRUE(here.ok() && there.ok() && *here == *there);
    return here.ok() ? *here : 0;
  }
  std::vector<float> noise(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& x : out) x = normal(rng_);
    return out;
  }

  std::mt19937 rng_;
  std::unique_ptr<AdaptiveKVCache> caches_[2];  // on the processor, on the device
  std::vector<SeqId> sequences_;
  double worst_ = 0.0;
};

// Random appends, forks, truncations and removals, and a call over all sequences after each.
inline void many_steps(Steps& steps, uint32_t count, double tolerance) {
  steps.add(700), steps.add(150);
  for (uint32_t step = 0; step < count; ++step) {
    const SeqId any = steps.sequences()[steps.below(static_cast<uint32_t>(steps.sequences().size()))];
    const uint32_t what = steps.below(20);
    std::string did;
    if (what == 0 && steps.sequences().size() < 4) did = "fork", steps.fork(any);
    else if (what == 1) did = "truncate", steps.truncate(any, 1 + steps.below(steps.length(any)));
    else if (what == 2 && steps.sequences().size() > 2) did = "remove", steps.remove(any);
    else if (what == 3) did = "append many", steps.append(any, 1 + steps.below(300));
    else if (what < 8) did = "append to one", steps.append(any, 1);
    else {
      did = "append to all";
      for (const SeqId id : steps.sequences()) steps.append(id, 1);
    }
    SCOPED_TRACE(did + " in step " + std::to_string(step));
    steps.compare(tolerance, step % 7 == 0 ? 3 : 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace tierkv::cuda::testing
