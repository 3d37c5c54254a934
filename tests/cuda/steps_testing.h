// steps_testing.h — many steps of two caches that get the same calls, one of them on a device or on its twin: the same answers
// after everything that changes what a device keeps from call to call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attn/backend.h"
#include "base/f16.h"
#include "tierkv/cache.h"

namespace tierkv::cuda::testing {

// Memory of a device, for callers that have their rows there.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Copies of bytes, and room for results (what is in it is not known): there until forget().
  virtual void* send(const void* from, size_t bytes) = 0;
  virtual void* make(size_t bytes) = 0;
  // After everything that was asked for on stream().
  virtual void fetch(void* to, const void* from, size_t bytes) = 0;
  virtual void forget() = 0;
  virtual void* stream() = 0;
};

// Rows of one type as models have them, [heads][tokens][head_dim].
struct TypedRows {
  TypedRows(const std::vector<float>& from, DType type, uint32_t tokens, uint32_t heads, uint32_t dim)
      : view(RowsView::dense(nullptr, type, tokens, heads, dim)) {
    view.token_stride = dim, view.head_stride = static_cast<ptrdiff_t>(tokens) * dim;
    if (type == DType::f32) floats = from;
    else
      for (const float x : from) halves.push_back(type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
    view.data = type == DType::f32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
  RowsView in(RemoteMemory* memory) const {
    if (!memory) return view;
    RowsView there = view;
    there.data = memory->send(view.data, floats.size() * 4 + halves.size() * 2);
    there.place = MemoryPlace::device, there.ready = memory->stream();
    return there;
  }
  std::vector<float> floats;
  std::vector<uint16_t> halves;
  RowsView view;
};

class Steps {
 public:
  static constexpr uint32_t kLayers = 2, kHeads = 8, kKvHeads = 2, kDim = 128;

  // `memory`: rows, queries and results of the second cache are there; null: in host memory.
  Steps(const std::string& spec, std::shared_ptr<const attn::Backend> backend, uint32_t seed, RemoteMemory* memory = nullptr,
        uint32_t dim = kDim)
      : rng_(seed), memory_(memory), dim_(dim) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = dim;
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
  void append(SeqId id, uint32_t tokens) { append(std::vector<SeqId>{id}, tokens); }
  void append(const std::vector<SeqId>& ids, uint32_t tokens) {
    for (uint32_t layer = 0; layer < kLayers && tokens != 0; ++layer) {
      std::vector<TypedRows> keys, values;
      for (size_t i = 0; i < ids.size(); ++i) {
        keys.emplace_back(noise(size_t{tokens} * kKvHeads * dim_), next_type(), tokens, kKvHeads, dim_);
        values.emplace_back(noise(size_t{tokens} * kKvHeads * dim_), next_type(), tokens, kKvHeads, dim_);
      }
      for (int c = 0; c < 2; ++c) {
        RemoteMemory* const memory = c == 1 ? memory_ : nullptr;
        std::vector<AppendItem> items;
        for (size_t i = 0; i < ids.size(); ++i) items.push_back({ids[i], keys[i].in(memory), values[i].in(memory), {}});
        const Status status = memory ? caches_[c]->append_many(layer, items) : append_each(*caches_[c], layer, items);
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
  }

  // All sequences in one call, every layer, `count` queries each, or as many as the shortest has tokens.
  void compare(double tolerance, uint32_t count = 1) {
    for (const SeqId id : sequences_) count = std::min(count, length(id));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const size_t row = size_t{count} * kHeads * dim_;
      const DType type = next_type();
      std::vector<TypedRows> queries;
      for (size_t s = 0; s < sequences_.size(); ++s) queries.emplace_back(noise(row), type, count, kHeads, dim_);
      std::vector<float> out[2];
      for (int c = 0; c < 2; ++c) {
        const DType results = c == 1 ? next_type() : DType::f32;
        const size_t size = sequences_.size() * row, bytes = results == DType::f32 ? 4 : 2;
        std::vector<uint8_t> got(size * bytes, 0xFF);
        RemoteMemory* const memory = c == 1 ? memory_ : nullptr;
        auto* const to = memory ? static_cast<uint8_t*>(memory->make(got.size())) : got.data();
        std::vector<AttentionItem> items;
        for (size_t s = 0; s < sequences_.size(); ++s) {
          auto* const own = reinterpret_cast<float*>(to + s * row * bytes);
          items.push_back({sequences_[s], queries[s].in(memory), own, -1, nullptr, {}, results});
        }
        const Status status = caches_[c]->attention(layer, items, options);
        ASSERT_TRUE(status.ok()) << status.message();
        if (memory) memory->fetch(got.data(), to, got.size());
        out[c] = widened(got, results);
      }
      double off = 0.0, size = 0.0;
      for (size_t i = 0; i < out[0].size(); ++i) {
        const double difference = static_cast<double>(out[1][i]) - out[0][i];
        off += difference * difference, size += static_cast<double>(out[0][i]) * out[0][i];
      }
      ASSERT_LT(std::sqrt(off / size), tolerance) << "layer " << layer;
      worst_ = std::max(worst_, std::sqrt(off / size));
    }
    if (memory_) memory_->forget();
  }

  uint32_t length(SeqId id) const { return *caches_[0]->length(id); }
  const std::vector<SeqId>& sequences() const { return sequences_; }
  AdaptiveKVCache& host_cache() { return *caches_[0]; }
  AdaptiveKVCache& device_cache() { return *caches_[1]; }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  double worst() const { return worst_; }

  AttentionOptions options;

 private:
  static std::vector<float> widened(const std::vector<uint8_t>& from, DType type) {
    std::vector<float> out(from.size() / (type == DType::f32 ? 4 : 2));
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t half = 0;
      if (type == DType::f32) std::memcpy(&out[i], from.data() + 4 * i, 4);
      else std::memcpy(&half, from.data() + 2 * i, 2), out[i] = type == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
    return out;
  }
  static Status append_each(AdaptiveKVCache& cache, uint32_t layer, const std::vector<AppendItem>& items) {
    for (const AppendItem& item : items) {
      if (Status status = cache.append(item.seq, layer, item.keys, item.values); !status.ok()) return status;
    }
    return {};
  }
  DType next_type() { return memory_ ? static_cast<DType>(rng_() % 3) : DType::f32; }
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
  RemoteMemory* const memory_;
  const uint32_t dim_;
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
    else if (what == 4 || what == 5) {  // a guess of several tokens, of which some stay
      const uint32_t guessed = 2 + steps.below(7), right = steps.below(guessed + 1);
      did = "guess " + std::to_string(guessed) + ", keep " + std::to_string(right);
      steps.append(any, guessed);
      steps.compare(tolerance, guessed);
      steps.truncate(any, steps.length(any) - guessed + right);
      if (right == 0 || what == 5) steps.append(any, 1);
    } else if (what < 8) did = "append to one", steps.append(any, 1);
    else {
      did = "append to all";
      steps.append(steps.sequences(), 1);
    }
    SCOPED_TRACE(did + " in step " + std::to_string(step));
    steps.compare(tolerance, step % 7 == 0 ? 3 : 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace tierkv::cuda::testing
