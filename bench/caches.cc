#include "bench/caches.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "bench/data.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kChunk = 256;

}  // namespace

Result<FilledCache> fill_cache(const std::string& spec, uint32_t tokens) {
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
  for (uint64_t i = 0; i < 8; ++i) {
    keys.push_back(make_rows(Shape::outlier, kChunk * kKvHeads, kDim, 30 + i));
    values.push_back(make_rows(Shape::gaussian, kChunk * kKvHeads, kDim, 40 + i));
  }
  for (uint32_t done = 0; done < tokens; done += kChunk) {
    const uint32_t n = std::min(kChunk, tokens - done);
    const size_t i = (done / kChunk) % keys.size();
    const auto start = std::chrono::steady_clock::now();
    TIERKV_RETURN_IF_ERROR(filled.cache->append(filled.seq, 0, RowsView::f32(keys[i].data(), n, kKvHeads, kDim),
                                                RowsView::f32(values[i].data(), n, kKvHeads, kDim)));
    filled.append_ns += std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }
  filled.queries = make_queries(keys[0], kHeads, kDim, 2.0, 60);
  return filled;
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
