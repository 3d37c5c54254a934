// test_model.h — for tests: tiny models (tools/tiny_gguf.py), stock logits, and the same logits through the cache.
//
// Threads: one test at a time.
#pragma once

#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tierkv/llama.h"

namespace tierkv::llama {

using ModelPtr = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using ContextPtr = std::unique_ptr<llama_context, decltype(&llama_free)>;
using Logits = std::vector<std::vector<float>>;  // of each token

inline void quiet_log(ggml_log_level, const char*, void*) {}

inline ModelPtr load_model(const std::string& path) {
  static const bool once = [] {
    llama_log_set(quiet_log, nullptr);
    ggml_backend_load_all();
    return true;
  }();
  (void)once;
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  return ModelPtr(llama_model_load_from_file(path.c_str(), params), llama_model_free);
}

inline ModelPtr load_tiny(const std::string& kind) { return load_model(std::string(TIERKV_TINY_MODELS) + "/" + kind + ".gguf"); }

inline std::vector<llama_token> some_tokens(size_t count, uint32_t seed, uint32_t vocabulary = 384) {
  std::vector<llama_token> tokens;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<llama_token>((state >> 10) % vocabulary));
  }
  return tokens;
}

// A batch that owns its arrays.
struct TestBatch {
  llama_batch batch;
  explicit TestBatch(int32_t capacity) : batch(llama_batch_init(capacity, 0, 2)) {}
  ~TestBatch() { llama_batch_free(batch); }
  void clear() { batch.n_tokens = 0; }
  void add(llama_token token, llama_pos position, llama_seq_id seq, bool logits = true) {
    const int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = seq;
    batch.logits[i] = logits;
  }
};

inline llama_context_params test_params(uint32_t context) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = context;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  return params;
}

inline void take_logits(llama_context* context, int32_t vocabulary, int32_t count, Logits& out) {
  for (int32_t i = 0; i < count; ++i) {
    const float* row = llama_get_logits_ith(context, i);
    ASSERT_NE(row, nullptr);
    out.emplace_back(row, row + vocabulary);
  }
}

// Logits of every token, fed `step` tokens at a time by decode(batch).
template <class Decode>
Logits all_logits(llama_context* context, const std::vector<llama_token>& tokens, size_t step, const Decode& decode,
                  llama_pos first = 0) {
  const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  Logits result;
  TestBatch batch(static_cast<int32_t>(step));
  for (size_t at = 0; at < tokens.size(); at += step) {
    const size_t count = std::min(step, tokens.size() - at);
    batch.clear();
    for (size_t i = 0; i < count; ++i) batch.add(tokens[at + i], first + static_cast<llama_pos>(at + i), 0);
    decode(batch.batch);
    take_logits(context, vocabulary, static_cast<int32_t>(count), result);
  }
  return result;
}

// libllama's own logits. Without flash attention it keeps queries and sums in f32, which makes it the better reference: the two
// differ by 1e-3 on tiny models.
inline Logits stock_logits(llama_model* model, const std::vector<llama_token>& tokens, size_t step, bool flash = false) {
  llama_context_params params = test_params(static_cast<uint32_t>(tokens.size()));
  params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const ContextPtr context(llama_init_from_model(model, params), llama_free);
  return all_logits(context.get(), tokens, step,
                    [&](const llama_batch& batch) { ASSERT_EQ(llama_decode(context.get(), batch), 0); });
}

// Everything between a model and its logits.
struct Hosted {
  ModelShape shape;
  std::unique_ptr<AdaptiveKVCache> cache;
  std::unique_ptr<Host> host;
  ContextPtr context{nullptr, llama_free};

  Hosted() = default;
  ~Hosted() { context.reset(); }

  Status open(llama_model* model, CacheConfig config, llama_context_params params, const HostOptions& options) {
    auto inspected = inspect(model);
    if (!inspected.ok()) return inspected.status();
    shape = inspected.value();
    shape.apply(config);
    auto made = AdaptiveKVCache::create(config);
    if (!made.ok()) return made.status();
    cache = std::move(made).value();
    auto attached = Host::attach(params, shape, *cache, options);
    if (!attached.ok()) return attached.status();
    host = std::move(attached).value();
    context.reset(llama_init_from_model(model, params));
    return context ? Status() : Status(StatusCode::internal, "no context");
  }
};

inline CacheConfig fp16_config() {
  CacheConfig config;
  EXPECT_TRUE(apply_preset("fp16", config).ok());
  return config;
}

// The largest difference of a logit, as a part of the largest logit.
inline double worst_difference(const Logits& a, const Logits& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e9, size = 0.0;
  for (size_t t = 0; t < a.size() && t < b.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      const double difference = std::fabs(static_cast<double>(a[t][i]) - b[t][i]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : 1e9;
      size = std::max(size, std::fabs(static_cast<double>(b[t][i])));
    }
  }
  return worst / size;
}

}  // namespace tierkv::llama
