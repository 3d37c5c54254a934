// What rows that are kept better cost a decoding step: caches that differ in their archive alone, the same rows and queries, in
// turns, in one process, on one thread, in processor time. Attention of all layers is what is counted: a model's other work only
// makes the share smaller.
#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "bench/shapes.h"
#include "solve/testing.h"
#include "tierkv/cache.h"

namespace tierkv::bench {
namespace {

constexpr const char* kBeside = "klt1.875";  // what the others are compared with
constexpr const char* kArchives[] = {kBeside, "klt1.25", "klt1.25+top4", "klt1.5+top4"};
constexpr uint32_t kPeriod = 1024, kChunk = 256;

struct Model {
  std::string name;
  AttentionShape shape;
  uint32_t layers;
  std::string tables;  // a file, or empty: learnt from the rows
};

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Result<CalibrationPtr> tables_for(const Model& model, const SourceRows& rows) {
  if (!model.tables.empty()) return load_calibration(model.tables);
  solve::SampleRows sample;
  sample.tokens = kPeriod, sample.heads = model.shape.heads, sample.kv_heads = model.shape.kv_heads;
  sample.head_dim = model.shape.head_dim, sample.keys = rows.keys, sample.values = rows.values;
  return solve::klt_calibration(solve::statistics_of(sample, solve::usual_rope(model.shape.head_dim), model.layers));
}

struct Contender {
  std::string archive;
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  double append = 0;                  // seconds a token
  std::vector<double> times[2] = {};  // of a step, with observe off and on

  Status step(const Model& model, const std::vector<float>& queries, bool observe, std::vector<float>& out) {
    AttentionOptions options;
    options.observe = observe;
    out.resize(queries.size());
    const double start = processor_seconds();
    for (uint32_t l = 0; l < model.layers; ++l) {
      const auto view = RowsView::f32(queries.data(), 1, model.shape.heads, model.shape.head_dim);
      TIERKV_RETURN_IF_ERROR(cache->attention(seq, l, view, out.data(), options));
    }
    times[observe].push_back(processor_seconds() - start);
    return {};
  }

  double median(bool observe) {
    std::vector<double>& t = times[observe];
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
  }
};

Result<Contender> fill(const Model& model, const CalibrationPtr& tables, const SourceRows& rows, const std::vector<float>& queries,
                       const std::string& archive, uint32_t tokens) {
  CacheConfig config;
  config.num_layers = model.layers, config.num_heads = model.shape.heads;
  config.num_kv_heads = model.shape.kv_heads, config.head_dim = model.shape.head_dim;
  TIERKV_RETURN_IF_ERROR(apply_spec("balanced,threads=1,archive=" + archive, config));
  Contender c;
  c.archive = archive;
  TIERKV_ASSIGN_OR_RETURN(c.cache, AdaptiveKVCache::create(config, tables));
  TIERKV_ASSIGN_OR_RETURN(c.seq, c.cache->add_sequence());
  std::vector<float> out;
  for (uint32_t done = 0; done < tokens; done += kChunk) {
    const uint32_t n = std::min(kChunk, tokens - done);
    for (uint32_t l = 0; l < model.layers; ++l) {
      const auto view = [&](const float* at) { return RowsView::f32(at, n, model.shape.kv_heads, model.shape.head_dim); };
      const double start = processor_seconds();
      TIERKV_RETURN_IF_ERROR(c.cache->append(c.seq, l, view(rows.key(done)), view(rows.value(done))));
      c.append += (processor_seconds() - start) / tokens;
    }
    TIERKV_RETURN_IF_ERROR(c.step(model, queries, true, out));  // rows are archived when queries have looked at them
  }
  c.times[true].clear();
  return c;
}

Status run(const Model& model, uint32_t tokens, const std::string& name, const Settings& settings, const Emit& emit) {
  const SourceRows rows = make_source(model.shape, kPeriod);
  TIERKV_ASSIGN_OR_RETURN(const CalibrationPtr tables, tables_for(model, rows));
  const std::vector<float> queries = make_source_queries(rows, 1);
  std::vector<Contender> contenders;
  for (const char* archive : kArchives) {
    TIERKV_ASSIGN_OR_RETURN(Contender c, fill(model, tables, rows, queries, archive, tokens));
    contenders.push_back(std::move(c));
  }
  std::vector<float> out;
  const uint32_t rounds = settings.quick ? 2 : 40;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (const bool observe : {false, true}) {
      for (size_t k = 0; k < contenders.size(); ++k) {
        TIERKV_RETURN_IF_ERROR(contenders[(k + round) % contenders.size()].step(model, queries, observe, out));
      }
    }
  }
  const double beside = contenders[0].median(true);
  for (Contender& c : contenders) {
    Row row(name + "/" + c.archive);
    row.number("step_ms", 1e3 * c.median(true)).number("unheard_ms", 1e3 * c.median(false));
    row.number("added_percent", 100.0 * (c.median(true) / beside - 1.0));
    row.number("append_us_per_token", 1e6 * c.append);
    row.number("mib", static_cast<double>(c.cache->memory_usage().total_bytes) / (1024.0 * 1024.0));
    emit(row);
  }
  return {};
}

void add_case(std::vector<Case>& cases, const Model& model, uint32_t tokens) {
  const std::string name = "cache/better/" + model.name + "/" + std::to_string(tokens / 1024) + "K";
  cases.push_back({name, [=](const Settings& settings, const Emit& emit) -> Status {
                     return run(model, settings.quick ? 1024 : tokens, name, settings, emit);
                   }});
}

}  // namespace

void add_better_cases(std::vector<Case>& cases) {
  for (const uint32_t tokens : {4096u, 32768u}) {
    add_case(cases, {"smollm2", {9, 3, 64}, 30, TIERKV_SHIPPED_TABLES "/smollm2-135m.tkc"}, tokens);
    add_case(cases, {"32x8x128", {32, 8, 128}, 2, ""}, tokens);
  }
}

}  // namespace tierkv::bench
