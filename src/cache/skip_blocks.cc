#include "cache/skip_blocks.h"

#include <algorithm>

#include "attn/rows.h"
#include "base/guarded.h"
#include "base/per_thread.h"
#include "quant/key_box.h"

namespace tierkv::cache {
namespace {

using attn::BlockView;
using tiers::StreamViews;
using SkipKind = config::SkipMode::Kind;

// Summaries lie behind their blocks, far apart: each is asked for while those before it are looked at.
constexpr size_t kAhead = 4;
void prefetch(const std::byte* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

struct SkipScratch {
  attn::Scratch attn;
  std::vector<float> queries, known;
  std::vector<BlockView> anchors;
  std::vector<uint32_t> candidates;  // views
};

// Archive blocks that every query can see: of others a choice would mean something else to each of them.
void find_candidates(const SkipQuery& query, const StreamViews& views, std::vector<uint32_t>& out) {
  const uint32_t first = *std::min_element(query.positions, query.positions + query.queries.tokens);
  out.clear();
  for (uint32_t v = 0; v < views.views.size(); ++v) {
    if (!views.summaries[v] || (query.params.causal && views.views[v].ctx.first_position > first)) continue;
    out.push_back(v);
  }
}

// What the first tokens and the tail give each row, in logs.
void find_known(const SkipQuery& query, uint32_t head, const StreamViews& views, SkipScratch& s) {
  const uint32_t group = static_cast<uint32_t>(s.known.size()) / query.queries.tokens;
  s.anchors.clear();
  for (size_t v = 0; v < views.views.size(); ++v) {
    if (views.tiers[v] == Tier::sink || views.tiers[v] == Tier::hot) s.anchors.push_back(views.views[v]);
  }
  const float* sinks = query.sink_logits ? query.sink_logits + head * group : nullptr;
  const attn::QueryTile tile{s.queries.data(), query.queries.tokens, group, query.positions, sinks, 0};
  attn::log_sums(s.anchors, tile, query.params, s.known.data(), s.attn);
}

BlockChoice choose(const config::SkipMode& mode, const SkipQuery& query, const StreamViews& views, const SkipScratch& s) {
  BlockChooser chooser(s.queries, s.known, query.params, s.candidates.size());
  const size_t bytes = quant::box_bytes(query.params.head_dim);
  for (size_t i = 0; i < s.candidates.size(); ++i) {
    if (i + kAhead < s.candidates.size()) prefetch(views.summaries[s.candidates[i + kAhead]], bytes);
    chooser.add(views.summaries[s.candidates[i]], views.views[s.candidates[i]].rows);
  }
  if (mode.kind == SkipKind::top) return chooser.highest(mode.top);
  return mode.kind == SkipKind::bounded ? chooser.bounded(mode.share) : chooser.likely(mode.share);
}

// Keeps the elements that `gone` does not mark.
template <class T>
void drop(std::vector<T>& list, const std::vector<uint8_t>& gone) {
  size_t kept = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!gone[i]) list[kept++] = list[i];
  }
  list.resize(kept);
}

}  // namespace

bool may_skip(const AdaptiveKVCache::Impl& impl, const SkipQuery& query) {
  if (impl.skip.kind == SkipKind::off || query.params.window != 0 || query.queries.place != MemoryPlace::host) return false;
  return query.queries.tokens * (query.queries.heads / impl.config.num_kv_heads) <= kMostDecodingRows;
}

void skip_blocks(const AdaptiveKVCache::Impl& impl, const SkipQuery& query, uint32_t head, StreamViews& views) noexcept {
  (void)with_memory([&] {
    SkipScratch& s = per_thread<SkipScratch>();
    find_candidates(query, views, s.candidates);
    impl.skip_counts.read += s.candidates.size();
    if (s.candidates.empty() || (impl.skip.kind == SkipKind::top && s.candidates.size() <= impl.skip.top)) return true;
    const uint32_t d = query.params.head_dim, group = query.queries.heads / impl.config.num_kv_heads;
    const uint32_t rows = query.queries.tokens * group;
    s.queries.resize(static_cast<size_t>(rows) * d);
    s.known.resize(rows);
    for (uint32_t r = 0; r < rows; ++r)
      attn::widen_row(query.queries, r / group, head * group + r % group, s.queries.data() + static_cast<size_t>(r) * d);
    find_known(query, head, views, s);
    const BlockChoice choice = choose(impl.skip, query, views, s);
    if (choice.left_out == 0) return true;
    std::vector<uint8_t> gone(views.views.size(), 0);
    for (size_t i = 0; i < s.candidates.size(); ++i) gone[s.candidates[i]] = !choice.read[i];
    views.forget();
    drop(views.views, gone);
    drop(views.stats, gone);
    drop(views.tiers, gone);
    drop(views.summaries, gone);
    impl.skip_counts.read -= choice.left_out;
    impl.skip_counts.left_out += choice.left_out;
    impl.skip_counts.add_mass(choice.left_out_mass);
    return true;
  });
}

}  // namespace tierkv::cache
