#include "bench/caches.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>

#include "base/status_macros.h"
#include "bench/data.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kChunk = 256;
constexpr uint32_t kTopic = 512;  // tokens

// What the keys of a topic have in common, all KV heads, and its values.
std::vector<float> topic(uint32_t index) { return make_rows(Shape::gaussian, kKvHeads, kDim, 1000 + index); }
std::vector<float> topic_values(uint32_t index) { return make_rows(Shape::gaussian, kKvHeads, kDim, 100000 + index); }

std::vector<float> around(const std::vector<float>& mean, std::vector<float> noise) {
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = mean[i % mean.size()] + 0.3f * noise[i];
  return noise;
}

// Query heads look at topics all over the text, at one of two more than at the other.
std::vector<float> topic_queries(uint32_t tokens) {
  const uint32_t topics = std::max(tokens / kTopic, 1u);
  std::vector<float> queries(static_cast<size_t>(kHeads) * kDim);
  for (uint32_t h = 0; h < kHeads; ++h) {
    const std::vector<float> one = topic(5 * h % topics), other = topic((5 * h + topics / 2) % topics);
    const size_t at = static_cast<size_t>(h / (kHeads / kKvHeads)) * kDim;
    for (uint32_t c = 0; c < kDim; ++c) queries[static_cast<size_t>(h) * kDim + c] = 0.7f * one[at + c] + 0.6f * other[at + c];
  }
  return queries;
}

}  // namespace

Result<FilledCache> fill_cache(const std::string& spec, uint32_t tokens, Contents contents) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  TIERKV_RETURN_IF_ERROR(apply_spec(spec, config));

  FilledCache filled;
  TIERKV_ASSIGN_OR_RETURN(filled.cache, AdaptiveKVCache::create(config));
  TIERKV_ASSIGN_OR_RETURN(filled.seq, filled.cache->add_sequence());
  // Eight chunks in turn: the codecs see new groups all the time, and the generator stays out of the way.
  std::vector<std::vector<float>> keys, values;
  const bool topics = contents == Contents::topics;
  for (uint64_t i = 0; i < 8; ++i) {
    keys.push_back(make_rows(topics ? Shape::gaussian : Shape::outlier, kChunk * kKvHeads, kDim, 30 + i));
    values.push_back(make_rows(Shape::gaussian, kChunk * kKvHeads, kDim, 40 + i));
  }
  for (uint32_t done = 0; done < tokens; done += kChunk) {
    const uint32_t n = std::min(kChunk, tokens - done);
    const size_t i = (done / kChunk) % keys.size();
    std::vector<float> topic_rows[2];
    if (topics) {
      topic_rows[0] = around(topic(done / kTopic), keys[i]);
      topic_rows[1] = around(topic_values(done / kTopic), values[i]);
    }
    const float* key_rows = topics ? topic_rows[0].data() : keys[i].data();
    const float* value_rows = topics ? topic_rows[1].data() : values[i].data();
    const auto start = std::chrono::steady_clock::now();
    TIERKV_RETURN_IF_ERROR(filled.cache->append(filled.seq, 0, RowsView::f32(key_rows, n, kKvHeads, kDim),
                                                RowsView::f32(value_rows, n, kKvHeads, kDim)));
    filled.append_ns += std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }
  filled.queries = topics ? topic_queries(tokens) : make_queries(keys[0], kHeads, kDim, 2.0, 60);
  return filled;
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Status FilledCache::check_attention(double tolerance) const {
  TIERKV_ASSIGN_OR_RETURN(const uint32_t tokens, cache->length(seq));
  std::vector<uint32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0u);
  const size_t row = static_cast<size_t>(kKvHeads) * kDim;
  std::vector<float> keys(tokens * row), values(tokens * row), out(static_cast<size_t>(kHeads) * kDim);
  TIERKV_RETURN_IF_ERROR(cache->get(seq, 0, positions, keys.data(), values.data()));
  TIERKV_RETURN_IF_ERROR(cache->attention(seq, 0, RowsView::f32(queries.data(), 1, kHeads, kDim), out.data()));
  for (uint32_t h = 0; h < kHeads; ++h) {
    const size_t kv = static_cast<size_t>(h / (kHeads / kKvHeads)) * kDim;
    const std::vector<double> exact = attention_reference(queries.data() + static_cast<size_t>(h) * kDim, 1, keys.data() + kv,
                                                          values.data() + kv, tokens, kDim, row);
    const double e = relative_error(std::span<const float>(out).subspan(static_cast<size_t>(h) * kDim, kDim), exact);
    if (!(e <= tolerance)) {
      return error(StatusCode::internal, "attention of query head ", h, " is off by ", e,
                   " from double precision on the same rows, at most ", tolerance, " is allowed");
    }
  }
  return {};
}

}  // namespace tierkv::bench
