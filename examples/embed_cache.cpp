// A program with an attention of its own that keeps its keys and values in tierkv: create, append, attend, ask what it costs.
// Queries, keys and values are made up here; a real host has them from its model's projections, after RoPE.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <tierkv/cache.h>

namespace {

constexpr uint32_t kLayers = 2, kHeads = 8, kKvHeads = 2, kDim = 64;

std::vector<float> made_up(size_t size, float step) {
  std::vector<float> rows(size);
  for (size_t i = 0; i < size; ++i) rows[i] = std::sin(step * static_cast<float>(i));
  return rows;
}

// [create]
tierkv::Result<std::unique_ptr<tierkv::AdaptiveKVCache>> make_cache() {
  tierkv::CacheConfig config;
  config.model = "my-model v1";  // goes into snapshots: another model's are refused
  config.num_layers = kLayers;
  config.num_heads = kHeads;  // query heads
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.threads = 2;
  // A preset, a .toml or .json file, or one line such as "balanced,hot=128".
  if (tierkv::Status status = tierkv::apply_spec("balanced", config); !status.ok()) return status;
  return tierkv::AdaptiveKVCache::create(config);
}
// [/create]

// [step]
// One forward step of any number of tokens; out is [tokens][query heads][head_dim].
tierkv::Status step(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq, uint32_t tokens, std::vector<float>& out) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<float> keys = made_up(tokens * kKvHeads * kDim, 0.37f), values = made_up(tokens * kKvHeads * kDim, 0.71f);
    const std::vector<float> queries = made_up(tokens * kHeads * kDim, 0.11f);
    // Rows are [tokens][heads][head_dim], f32, f16 or bf16; RowsView has strides for other layouts.
    tierkv::Status status = cache.append(seq, layer, tierkv::RowsView::f32(keys.data(), tokens, kKvHeads, kDim),
                                         tierkv::RowsView::f32(values.data(), tokens, kKvHeads, kDim));
    if (!status.ok()) return status;
    out.resize(queries.size());
    // Causal, and the queries are the newest tokens; AttentionOptions says otherwise.
    status = cache.attention(seq, layer, tierkv::RowsView::f32(queries.data(), tokens, kHeads, kDim), out.data());
    if (!status.ok()) return status;
  }
  return {};
}
// [/step]

// [many]
// One layer's attention for the newest token of many sequences: their work is shared out together.
tierkv::Status attend_many(tierkv::AdaptiveKVCache& cache, const std::vector<tierkv::SeqId>& seqs, uint32_t layer,
                           std::vector<std::vector<float>>& out) {
  const std::vector<float> queries = made_up(kHeads * kDim, 0.11f);
  std::vector<tierkv::AttentionItem> items;
  out.assign(seqs.size(), std::vector<float>(queries.size()));
  for (size_t i = 0; i < seqs.size(); ++i) {
    items.push_back({seqs[i], tierkv::RowsView::f32(queries.data(), 1, kHeads, kDim), out[i].data()});
  }
  return cache.attention(layer, items);  // the first failure; items[i].status is each one's own
}
// [/many]

// [memory]
void report(const tierkv::AdaptiveKVCache& cache) {
  const tierkv::MemoryStats memory = cache.memory_usage();
  std::printf("%.1f KiB resident, %.1f KiB as FP16\n", static_cast<double>(memory.resident_bytes()) / 1024,
              static_cast<double>(memory.fp16_bytes) / 1024);
  for (int t = 0; t < tierkv::kNumTiers; ++t) {
    const tierkv::TierMemory& tier = memory.tier[t];
    std::printf("  %-8s %6llu rows, %.2f bits a value\n", tierkv::tier_name(static_cast<tierkv::Tier>(t)),
                static_cast<unsigned long long>(tier.tokens), tier.bits_per_value(kDim));
  }
}
// [/memory]

// [sequences]
// A second sequence that goes on from the first one's prompt, sharing its blocks, and a file to resume from.
tierkv::Status branch_and_save(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq, const std::string& path) {
  tierkv::Result<tierkv::SeqId> branch = cache.fork(seq);
  if (!branch.ok()) return branch.status();
  std::vector<float> out;
  if (tierkv::Status status = step(cache, *branch, 1, out); !status.ok()) return status;
  if (tierkv::Status status = cache.save(*branch, path); !status.ok()) return status;
  if (tierkv::Status status = cache.remove(*branch); !status.ok()) return status;
  tierkv::Result<tierkv::SeqId> resumed = cache.load(path);  // bit for bit what was saved
  if (!resumed.ok()) return resumed.status();
  return cache.remove(*resumed);
}
// [/sequences]

// [idle]
// A conversation that waits for its user: its older tokens are packed 20 to 30 times smaller than FP16 until the next turn.
tierkv::Status wait_for_next_turn(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq) {
  tierkv::DeepReport report;
  tierkv::Status status = cache.park(seq, {}, &report);  // as deep.ratio or deep.quality of the configuration say
  if (status.code() == tierkv::StatusCode::failed_precondition)
    return {};  // no calibration for it, or too short: it stays as it is
  if (!status.ok()) return status;
  std::printf("parked %u tokens in %llu bytes\n", report.tokens, static_cast<unsigned long long>(report.bytes));
  // ... the user comes back ...
  return cache.wake(seq);  // resource_exhausted: byte_budget is full; park or remove another one and try again, nothing is lost
}
// [/idle]

// [cold]
// A question about some older tokens: as they were before they were archived, for as long as it takes to answer.
tierkv::Status answer_about(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq, uint32_t first, uint32_t count) {
  tierkv::PromotionReport report;
  tierkv::Status status = cache.promote(seq, first, count, &report);
  if (status.code() == tierkv::StatusCode::failed_precondition) return {};  // no cold file: the archive answers
  if (!status.ok()) return status;                                          // and nothing has changed
  std::printf("promoted %llu blocks\n", static_cast<unsigned long long>(report.blocks));
  // ... attention() ...
  return cache.demote(seq, first, count);
}
// [/cold]

int fail(const tierkv::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  auto created = make_cache();
  if (!created.ok()) return fail(created.status());
  tierkv::AdaptiveKVCache& cache = **created;
  const auto seq = cache.add_sequence();
  if (!seq.ok()) return fail(seq.status());

  std::vector<float> out;
  if (tierkv::Status status = step(cache, *seq, 1500, out); !status.ok()) return fail(status);  // the prompt
  for (int i = 0; i < 50; ++i) {
    if (tierkv::Status status = step(cache, *seq, 1, out); !status.ok()) return fail(status);  // one token after the other
  }
  const auto twin = cache.fork(*seq);
  if (!twin.ok()) return fail(twin.status());
  std::vector<std::vector<float>> outs;
  if (tierkv::Status status = attend_many(cache, {*seq, *twin}, 0, outs); !status.ok()) return fail(status);
  if (outs[0] != outs[1]) return std::fprintf(stderr, "twins differ\n"), 1;
  if (tierkv::Status status = cache.remove(*twin); !status.ok()) return fail(status);
  report(cache);
  if (tierkv::Status status = branch_and_save(cache, *seq, argc > 1 ? argv[1] : "embed_cache.tkv"); !status.ok())
    return fail(status);

  if (tierkv::Status status = wait_for_next_turn(cache, *seq); !status.ok()) return fail(status);

  if (tierkv::Status status = answer_about(cache, *seq, 400, 100); !status.ok()) return fail(status);

  // [errors]
  const tierkv::Status refused = cache.truncate(*seq + 1000, 10);
  if (refused.code() == tierkv::StatusCode::not_found) std::printf("refused: %s\n", refused.message().c_str());
  // [/errors]
  const tierkv::MemoryStats memory = cache.memory_usage();
  return memory.resident_bytes() < memory.fp16_bytes && !refused.ok() ? 0 : 1;
}
