#include "bench/stage.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/tables.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kChunk = 256, kMostCopies = 256;

struct Probe {
  uint32_t query, head;
};

// The first and the last query, the first, a middle and the last head.
std::vector<Probe> probes(uint32_t queries, uint32_t heads) {
  std::vector<Probe> all;
  for (uint32_t q : {0u, queries - 1}) {
    for (uint32_t h : {0u, heads / 2, heads - 1}) all.push_back({q, h});
    if (queries == 1) break;
  }
  return all;
}

// softmax(q·K)·V in double precision, a few rows at a time.
struct ExactState {
  double top = -INFINITY, sum = 0;
  std::vector<double> out;

  void add(double score, const float* value) {
    if (score > top) {
      const double shrink = std::exp(top - score);
      sum *= shrink;
      for (double& x : out) x *= shrink;
      top = score;
    }
    const double weight = std::exp(score - top);
    sum += weight;
    for (size_t c = 0; c < out.size(); ++c) out[c] += weight * value[c];
  }
  void finish() {
    for (double& x : out) x /= sum;
  }
};

// NaN is larger than anything.
double larger(double a, double b) { return b <= a ? a : b; }

}  // namespace

Status append_source(AdaptiveKVCache& cache, SeqId seq, const SourceRows& rows, uint32_t first, uint32_t count, uint32_t chunk) {
  const AttentionShape& s = rows.shape;
  for (uint32_t done = 0; done < count;) {
    const uint32_t at = (first + done) % rows.period;
    const uint32_t n = std::min({chunk, count - done, rows.period - at});
    TIERKV_RETURN_IF_ERROR(cache.append(seq, 0, RowsView::f32(rows.key(at), n, s.kv_heads, s.head_dim),
                                        RowsView::f32(rows.value(at), n, s.kv_heads, s.head_dim)));
    done += n;
  }
  return {};
}

Status OurCache::attend(const std::vector<float>& queries, uint32_t count, std::vector<float>& out) {
  const CacheConfig& config = cache->config();
  AttentionOptions options;
  options.observe = false;
  const SeqId which = copies[turn];
  turn = (turn + 1) % copies.size();
  return cache->attention(which, 0, RowsView::f32(queries.data(), count, config.query_heads(), config.head_dim), out.data(),
                          options);
}

Stage::Stage(const AttentionShape& shape, uint32_t threads, bool quick)
    : threads_(threads),
      quick_(quick),
      rows_(make_source(shape, quick ? 256 : 2048)),
      ceiling_(quick ? size_t{16} << 20 : std::max(size_t{256} << 20, 2 * cold_bytes()), threads) {}

void Stage::move_to(uint32_t tokens) {
  if (tokens == tokens_) return;
  if (tokens < tokens_) ours_.clear();
  peers_.clear();
  tokens_ = tokens;
}

uint32_t Stage::copies_of(uint64_t bytes) const {
  if (quick_) return 2;
  return static_cast<uint32_t>(std::clamp<uint64_t>((cold_bytes() + bytes - 1) / bytes, 1, kMostCopies));
}

Result<OurCache*> Stage::ours(const std::string& setting, uint32_t tokens) {
  move_to(tokens);
  OurCache& ours = ours_[setting];
  if (!ours.cache) {
    CacheConfig config;
    config.num_layers = 1;
    config.num_heads = shape().heads;
    config.num_kv_heads = shape().kv_heads;
    config.head_dim = shape().head_dim;
    config.threads = threads_;
    const bool calibrated = setting.starts_with("klt");
    const bool by_archive = calibrated || setting == "rot2";
    TIERKV_RETURN_IF_ERROR(apply_spec(by_archive ? "balanced" : setting, config));
    if (by_archive) config.tiers.archive_codec = setting == "klt" ? "klt1.875" : setting;
    CalibrationPtr tables;
    if (calibrated) {
      TIERKV_ASSIGN_OR_RETURN(tables, tables_of(rows_));
    }
    TIERKV_ASSIGN_OR_RETURN(ours.cache, AdaptiveKVCache::create(config, tables));
    TIERKV_ASSIGN_OR_RETURN(ours.seq, ours.cache->add_sequence());
  }
  if (ours.tokens == tokens) return &ours;

  for (size_t i = 1; i < ours.copies.size(); ++i) TIERKV_RETURN_IF_ERROR(ours.cache->remove(ours.copies[i]));
  TIERKV_RETURN_IF_ERROR(append_source(*ours.cache, ours.seq, rows_, ours.tokens, tokens - ours.tokens, kChunk));
  TIERKV_RETURN_IF_ERROR(ours.cache->flush());  // what the copies left behind is not this length's
  const MemoryStats memory = ours.cache->memory_usage();
  ours.tokens = tokens;
  ours.bits = 16.0 / memory.compression();
  ours.bytes = 0;
  for (const TierMemory& tier : memory.tier) ours.bytes += tier.payload_bytes;
  ours.copies = {ours.seq};
  ours.turn = 0;
  const uint32_t copies = copies_of(ours.bytes);
  if (copies == 1) return &ours;
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> frozen, ours.cache->freeze(ours.seq));
  while (ours.copies.size() < copies) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId copy, ours.cache->unfreeze(frozen));
    ours.copies.push_back(copy);
  }
  return &ours;
}

Result<Peer*> Stage::peer(const std::string& type, PeerLayout layout, uint32_t tokens) {
  move_to(tokens);
  std::unique_ptr<Peer>& peer = peers_[{type, layout}];
  if (!peer) {
    TIERKV_ASSIGN_OR_RETURN(peer, Peer::create(type, layout, rows_, tokens, quick_ ? 0 : cold_bytes(), threads_));
  }
  return peer.get();
}

Result<double> error_of_ours(const OurCache& ours, const AttentionShape& shape, const std::vector<float>& queries, uint32_t count,
                             const std::vector<float>& out) {
  const uint32_t dim = shape.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const std::vector<Probe> all = probes(count, shape.heads);
  std::vector<ExactState> states(all.size());
  for (ExactState& state : states) state.out.assign(dim, 0.0);

  constexpr uint32_t kRows = 1024;
  std::vector<float> keys(kRows * shape.row()), values(keys.size());
  std::vector<uint32_t> positions(kRows);
  for (uint32_t first = 0; first < ours.tokens; first += kRows) {
    positions.resize(std::min(kRows, ours.tokens - first));
    std::iota(positions.begin(), positions.end(), first);
    TIERKV_RETURN_IF_ERROR(ours.cache->get(ours.seq, 0, positions, keys.data(), values.data()));
    for (size_t i = 0; i < all.size(); ++i) {
      const float* query = queries.data() + (static_cast<size_t>(all[i].query) * shape.heads + all[i].head) * dim;
      const size_t at = static_cast<size_t>(all[i].head / shape.group()) * dim;
      for (uint32_t r = 0; r < positions.size() && first + r <= ours.tokens - count + all[i].query; ++r) {
        const float* key = keys.data() + r * shape.row() + at;
        double dot = 0;
        for (uint32_t c = 0; c < dim; ++c) dot += static_cast<double>(query[c]) * key[c];
        states[i].add(dot * scale, values.data() + r * shape.row() + at);
      }
    }
  }
  double worst = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    states[i].finish();
    const size_t row = static_cast<size_t>(all[i].query) * shape.heads + all[i].head;
    worst = larger(worst, relative_error(std::span(out).subspan(row * dim, dim), states[i].out));
  }
  return worst;
}

Result<double> error_of_peer(const Peer& peer, uint32_t tokens, const std::vector<float>& queries, uint32_t count) {
  const SourceRows& rows = peer.stored();
  const uint32_t dim = rows.shape.head_dim;
  const std::vector<float> out = peer.output();
  double worst = 0;
  for (const Probe& probe : probes(count, rows.shape.heads)) {
    const size_t at = (static_cast<size_t>(probe.query) * rows.shape.heads + probe.head) * dim;
    const std::vector<double> exact = exact_attention(rows, queries.data() + at, probe.head, tokens - count + probe.query + 1);
    worst = larger(worst, relative_error(std::span(out).subspan(at, dim), exact));
  }
  return worst;
}

}  // namespace tierkv::bench
