// A long prompt through the cache, layer by layer as a model would: what coding its blocks costs, by threads.
//
// prompt: 8,192 tokens of one layer of 8 KV heads of 128 channels in one append. Checked first: the sequence is the same bits
// whatever the number of threads.
#include <algorithm>
#include <chrono>

#include "base/status_macros.h"
#include "bench/harness.h"
#include "bench/shapes.h"
#include "bench/tables.h"
#include "tierkv/cache.h"

namespace tierkv::bench {
namespace {

constexpr AttentionShape kShape{32, 8, 128};

struct Prompt {
  std::string spec;
  bool tables = false;
  uint32_t tokens = 0;
};

struct Read {
  double ns = 0;
  std::vector<std::byte> image;
};

Result<Read> read_prompt(const Prompt& prompt, const SourceRows& rows, const CalibrationPtr& tables, uint32_t threads) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_heads = kShape.heads;
  config.num_kv_heads = kShape.kv_heads;
  config.head_dim = kShape.head_dim;
  config.threads = threads;
  TIERKV_RETURN_IF_ERROR(apply_spec(prompt.spec, config));
  TIERKV_ASSIGN_OR_RETURN(const auto cache, AdaptiveKVCache::create(config));
  if (tables) TIERKV_RETURN_IF_ERROR(cache->set_calibration(tables));
  TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache->add_sequence());
  const auto view = [&](const std::vector<float>& from) {
    return RowsView::f32(from.data(), prompt.tokens, kShape.kv_heads, kShape.head_dim);
  };
  const auto start = std::chrono::steady_clock::now();
  TIERKV_RETURN_IF_ERROR(cache->append(seq, 0, view(rows.keys), view(rows.values)));
  Read read;
  read.ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  TIERKV_ASSIGN_OR_RETURN(read.image, cache->freeze(seq));
  return read;
}

Status run_prompt(const Prompt& prompt, const std::vector<std::string>& names, const Settings& settings, const Emit& emit) {
  Prompt asked = prompt;
  if (settings.quick) asked.tokens = 1024;
  const SourceRows rows = make_source(kShape, asked.tokens);
  CalibrationPtr tables;
  if (prompt.tables) {
    TIERKV_ASSIGN_OR_RETURN(tables, tables_of(rows));
  }
  std::vector<std::byte> image;
  for (uint32_t i = 0; i < names.size(); ++i) {
    const uint32_t threads = 1u << i;
    if (!settings.wants(names[i])) continue;
    Timing timing;
    std::vector<double> times;
    for (timing.samples = 0; timing.samples < (settings.quick ? 1 : 5); ++timing.samples) {
      TIERKV_ASSIGN_OR_RETURN(Read read, read_prompt(asked, rows, tables, threads));
      if (image.empty()) image = std::move(read.image);
      else if (read.image != image) return error(StatusCode::internal, "the sequence depends on the number of threads");
      times.push_back(read.ns);
    }
    std::sort(times.begin(), times.end());
    timing.min_ns = times[0];
    timing.median_ns = times[times.size() / 2];
    Row row(names[i]);
    row.attention(threads, timing).number("us_per_token", timing.median_ns / 1e3 / asked.tokens).text("peer", "");
    emit(row);
  }
  return {};
}

}  // namespace

void add_prompt_cases(std::vector<Case>& cases) {
  for (const Prompt& prompt : {Prompt{"balanced", false, 8192}, Prompt{"balanced", true, 8192}, Prompt{"kivi2", false, 8192}}) {
    const std::string setting = prompt.tables ? prompt.spec + "_tables" : prompt.spec;
    std::vector<std::string> names;
    for (const char* threads : {"1", "2"}) names.push_back("cache/" + setting + "/prompt/8Kx8x128_threads" + threads);
    cases.push_back({names[0], [=](const Settings& s, const Emit& emit) { return run_prompt(prompt, names, s, emit); }, names});
  }
}

}  // namespace tierkv::bench
