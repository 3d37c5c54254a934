// Attention of the newest token of many short sequences: one call for all of them against one call for each.
//
// 32 sequences of 64 to 512 tokens, 8 KV heads of 128 channels with 32 query heads, two threads of the cache's own. Both sides must
// give the same bits.
//
// And appending: a warm block's tokens to each of 8 sequences of one length, token by token, so that in each round all of them have
// a block to code in the same step.
#include <chrono>
#include <cstring>

#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "tierkv/cache.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kThreads = 2;

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

// Two caches take turns: one gets its rows sequence by sequence, the other all in one call.
Status run_append_batch(const std::string& name, const std::string& spec, const Settings& settings, const Emit& emit) {
  constexpr uint32_t kMany = 8, kRound = 64;
  const uint32_t rounds = settings.quick ? 1 : 24;
  CacheConfig config;
  config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  config.threads = kThreads;
  TIERKV_RETURN_IF_ERROR(apply_spec(spec, config));
  const size_t width = size_t{kKvHeads} * kDim;
  const std::vector<float> rows = make_rows(Shape::gaussian, (rounds + 20) * kRound * kKvHeads, kDim, 5);
  std::unique_ptr<AdaptiveKVCache> caches[2];
  std::vector<AppendItem> items(kMany);
  double step[2] = {}, coding[2] = {};  // a round's steps, and the slowest of them
  for (auto& cache : caches) {
    TIERKV_ASSIGN_OR_RETURN(cache, AdaptiveKVCache::create(config));
    for (AppendItem& item : items) {
      TIERKV_ASSIGN_OR_RETURN(item.seq, cache->add_sequence());
      item.keys = item.values = RowsView::f32(rows.data(), 16 * kRound, kKvHeads, kDim);
      TIERKV_RETURN_IF_ERROR(cache->append(item.seq, 0, item.keys, item.values));
    }
  }
  for (uint32_t round = 0; round < rounds; ++round) {
    for (const int c : {0, 1}) {
      double slowest = 0;
      for (uint32_t token = 0; token < kRound; ++token) {
        for (uint32_t i = 0; i < kMany; ++i) {
          items[i].keys = items[i].values = RowsView::f32(rows.data() + ((round + i) * kRound + token) * width, 1, kKvHeads, kDim);
        }
        const auto begin = std::chrono::steady_clock::now();
        if (c == 0) {
          for (AppendItem& item : items) TIERKV_RETURN_IF_ERROR(caches[0]->append(item.seq, 0, item.keys, item.values));
        } else {
          TIERKV_RETURN_IF_ERROR(caches[1]->append_many(0, items));
        }
        const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
        slowest = std::max(slowest, ns);
        step[c] += ns / (rounds * kRound);
      }
      coding[c] += slowest / rounds;
    }
  }
  for (const AppendItem& item : items) {
    TIERKV_ASSIGN_OR_RETURN(const auto alone, caches[0]->freeze(item.seq));
    TIERKV_ASSIGN_OR_RETURN(const auto together, caches[1]->freeze(item.seq));
    if (alone != together) return error(StatusCode::internal, "one call for all sequences makes other blocks than one for each");
  }
  Row row(name);
  row.number("threads", kThreads).number("step_us", step[1] / 1e3).number("step_with_blocks_us", coding[1] / 1e3);
  row.text("peer", "one by one").number("peer_step_us", step[0] / 1e3).number("peer_step_with_blocks_us", coding[0] / 1e3);
  row.number("ratio", step[0] / step[1]).number("ratio_with_blocks", coding[0] / coding[1]);
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
