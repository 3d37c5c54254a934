// Attention of the newest token of many short sequences: one call for all of them against one call for each.
//
// 32 sequences of 64 to 512 tokens, 8 KV heads of 128 channels with 32 query heads, two threads of the cache's own. Both sides must
// give the same bits.
//
// And appending: token by token to each of 8 sequences of one length, so that all of them have blocks to code in the same step.
#include <chrono>
#include <cstring>
#include <ctime>

#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "tierkv/cache.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kThreads = 2;

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Sequences {
  std::unique_ptr<AdaptiveKVCache> cache;
  std::vector<float> queries, out;
  std::vector<AttentionItem> items;
};

Result<Sequences> fill(const std::string& spec, uint32_t count) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.threads = kThreads;
  TIERKV_RETURN_IF_ERROR(apply_spec(spec, config));
  Sequences made;
  TIERKV_ASSIGN_OR_RETURN(made.cache, AdaptiveKVCache::create(config));
  const size_t row = static_cast<size_t>(kHeads) * kDim;
  made.queries = make_rows(Shape::gaussian, count * kHeads, kDim, 3);
  made.out.resize(made.queries.size());
  for (uint32_t i = 0; i < count; ++i) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId seq, made.cache->add_sequence());
    const uint32_t tokens = 64 + 448 * i / std::max(count - 1, 1u);
    const auto keys = make_rows(Shape::gaussian, tokens * kKvHeads, kDim, 10 + i);
    const auto values = make_rows(Shape::gaussian, tokens * kKvHeads, kDim, 1000 + i);
    TIERKV_RETURN_IF_ERROR(made.cache->append(seq, 0, RowsView::f32(keys.data(), tokens, kKvHeads, kDim),
                                              RowsView::f32(values.data(), tokens, kKvHeads, kDim)));
    made.items.push_back({seq, RowsView::f32(made.queries.data() + i * row, 1, kHeads, kDim), made.out.data() + i * row});
  }
  return made;
}

Status run_batch(const std::string& name, const std::string& spec, const Settings& settings, const Emit& emit) {
  TIERKV_ASSIGN_OR_RETURN(Sequences made, fill(spec, settings.quick ? 4 : 32));
  Status status;
  const auto one_by_one = [&] {
    for (const AttentionItem& item : made.items) {
      if (Status one = made.cache->attention(item.seq, 0, item.queries, item.out); !one.ok()) status = one;
    }
  };
  const auto together = [&] {
    if (Status all = made.cache->attention(0, made.items); !all.ok()) status = all;
  };
  one_by_one();
  const std::vector<float> expected = made.out;
  std::fill(made.out.begin(), made.out.end(), 0.0f);
  together();
  TIERKV_RETURN_IF_ERROR(status);
  if (std::memcmp(expected.data(), made.out.data(), expected.size() * sizeof(float)) != 0) {
    return error(StatusCode::internal, "one call for all sequences gives other outputs than one for each");
  }
  const Timing alone = measure(settings, one_by_one), all = measure(settings, together);
  TIERKV_RETURN_IF_ERROR(status);
  Row row(name);
  row.attention(kThreads, all).text("peer", "one by one").number("peer_ns", alone.median_ns);
  row.number("ratio", alone.median_ns / all.median_ns).number("ratio_of_best", alone.min_ns / all.min_ns);
  emit(row);
  return {};
}

// Two caches take turns of 128 tokens each: one gets its rows sequence by sequence, the other all in one call. The best turn of
// each counts, and the processor time of all.
Status run_append_batch(const std::string& name, const std::string& spec, const Settings& settings, const Emit& emit) {
  constexpr uint32_t kMany = 8, kTurn = 128;
  const uint32_t turns = settings.quick ? 1 : 16;
  CacheConfig config;
  config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  config.threads = kThreads;
  TIERKV_RETURN_IF_ERROR(apply_spec(spec, config));
  const size_t width = size_t{kKvHeads} * kDim;
  const std::vector<float> rows = make_rows(Shape::gaussian, (turns + kMany) * kTurn * kKvHeads, kDim, 5);
  std::unique_ptr<AdaptiveKVCache> caches[2];
  std::vector<AppendItem> items(kMany);
  for (auto& cache : caches) {
    TIERKV_ASSIGN_OR_RETURN(cache, AdaptiveKVCache::create(config));
    for (AppendItem& item : items) {
      TIERKV_ASSIGN_OR_RETURN(item.seq, cache->add_sequence());
      item.keys = item.values = RowsView::f32(rows.data(), 8 * kTurn, kKvHeads, kDim);
      TIERKV_RETURN_IF_ERROR(cache->append(item.seq, 0, item.keys, item.values));
    }
  }
  double best[2] = {}, processor[2] = {};
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (const int c : {0, 1}) {
      const auto begin = std::chrono::steady_clock::now();
      const double before = processor_seconds();
      for (uint32_t token = 0; token < kTurn; ++token) {
        for (uint32_t i = 0; i < kMany; ++i) {
          items[i].keys = items[i].values = RowsView::f32(rows.data() + ((turn + i) * kTurn + token) * width, 1, kKvHeads, kDim);
          if (c == 0) TIERKV_RETURN_IF_ERROR(caches[0]->append(items[i].seq, 0, items[i].keys, items[i].values));
        }
        if (c == 1) TIERKV_RETURN_IF_ERROR(caches[1]->append_many(0, items));
      }
      processor[c] += 1e6 * (processor_seconds() - before) / (turns * kTurn);
      const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kTurn;
      best[c] = turn == 0 ? us : std::min(best[c], us);
    }
  }
  for (const AppendItem& item : items) {
    TIERKV_ASSIGN_OR_RETURN(const auto alone, caches[0]->freeze(item.seq));
    TIERKV_ASSIGN_OR_RETURN(const auto together, caches[1]->freeze(item.seq));
    if (alone != together) return error(StatusCode::internal, "one call for all sequences makes other blocks than one for each");
  }
  Row row(name);
  row.number("threads", kThreads).number("step_us", best[1]).number("processor_us", processor[1]);
  row.text("peer", "one by one").number("peer_step_us", best[0]).number("peer_processor_us", processor[0]);
  row.number("ratio", best[0] / best[1]).number("ratio_processor", processor[0] / processor[1]);
  emit(row);
  return {};
}

}  // namespace

void add_batch_cases(std::vector<Case>& cases) {
  const std::pair<const char*, const char*> appended[] = {{"balanced", "balanced"},
                                                          {"even4_rot2", "hot=64,warm=448,warm_codec=even4,archive=rot2,sinks=4"},
                                                          {"kivi2", "hot=128,warm=0,archive=kivi2,sinks=4"}};
  for (const auto& [title, spec] : appended) {
    const std::string name = "cache/" + std::string(title) + "/append_batch/8seqs";
    cases.push_back({name, [name, spec = std::string(spec)](const Settings& settings, const Emit& emit) {
                       return run_append_batch(name, spec, settings, emit);
                     }});
  }
  for (const std::string spec : {"fp16", "balanced"}) {
    const std::string name = "cache/" + spec + "/attention_batch/32seqs_T64-512";
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run_batch(name, spec, settings, emit); }});
  }
}

}  // namespace tierkv::bench
