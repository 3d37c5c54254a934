// views.cc — looking at a stream: what is live, one row, and the views that attention reads.
#include <algorithm>

#include "tiers/row_batch.h"
#include "tiers/stream.h"

namespace tierkv::tiers {

attn::BlockView view_of(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head) {
  const CodecEntry& codec = *ref.block.codec();
  const quant::BlockContext ctx{layer, head, ref.first_position, ref.positions};
  const store::PayloadSizes sizes = payload_sizes(codec);
  const std::byte* const nowhere = nullptr;
  const store::BlockBytes bytes =
      ref.block.away() ? store::BlockBytes{{nowhere, sizes.keys}, {nowhere, sizes.values}} : env.store->bytes(ref.block);
  return {codec.key.get(), codec.value.get(), bytes.keys, bytes.values, ctx, ref.rows, ref.block.checksum()};
}

namespace {

// Index of the block that may hold `position`, or blocks.size().
size_t find_block(const HeadStream& s, uint32_t position) {
  size_t found = s.blocks.size();
  for (size_t low = 0, high = s.blocks.size(); low < high;) {
    const size_t mid = (low + high) / 2;
    if (s.blocks[mid].first_position <= position) {
      found = mid;
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return found;
}

}  // namespace

uint32_t oldest_position(const HeadStream& s, uint32_t length) {
  if (!s.blocks.empty()) return s.blocks[0].first_live_position();
  return s.tail.rows() ? s.tail.position(0) : length;
}

uint32_t live_rows(const HeadStream& s) {
  uint32_t n = s.tail.rows();
  for (const BlockRef& ref : s.blocks) n += ref.live;
  return n;
}

void live_positions(const HeadStream& s, std::vector<uint32_t>& out) {
  out.clear();
  for (const BlockRef& ref : s.blocks) {
    for (uint32_t row = 0; row < ref.rows; ++row) {
      if (ref.alive(row)) out.push_back(ref.position(row));
    }
  }
  for (uint32_t row = 0; row < s.tail.rows(); ++row) out.push_back(s.tail.position(row));
}

void live_stats(const StreamEnv& env, const HeadStream& s, std::vector<float>& out) {
  out.clear();
  if (!env.signals) return;
  for (const BlockRef& ref : s.blocks) {
    for (uint32_t row = 0; row < ref.rows; ++row) {
      if (ref.alive(row)) out.insert(out.end(), ref.stats + row * env.signals, ref.stats + (row + 1) * env.signals);
    }
  }
  for (uint32_t row = 0; row < s.tail.rows(); ++row)
    out.insert(out.end(), s.tail.stats_row(row), s.tail.stats_row(row) + env.signals);
}

bool read_row(const StreamEnv& env, const HeadStream& s, uint32_t position, float* key, float* value) {
  const size_t b = find_block(s, position);
  if (b < s.blocks.size()) {
    const BlockRef& ref = s.blocks[b];
    const quant::BlockContext ctx{s.layer, s.head, ref.first_position, ref.positions};
    for (uint32_t row = 0; row < ref.rows; ++row) {
      if (ref.position(row) != position) continue;
      if (!key && !value) return true;
      std::vector<std::byte> loaded;
      if (ref.block.elsewhere() && !env.store->load(ref.block, loaded).ok()) return false;
      const store::BlockBytes bytes = loaded.empty() ? env.store->bytes(ref.block) : split(loaded, *ref.block.codec());
      const attn::DecodeWork sides[] = {
          {ref.block.codec()->key.get(), bytes.keys, ctx, row, 1, key},
          {ref.block.codec()->value.get(), bytes.values, ctx, row, 1, value},
      };
      if (key) env.backend->decode({&sides[0], 1}, attn::in_turn());
      if (value) env.backend->decode({&sides[1], 1}, attn::in_turn());
      return true;
    }
  }
  for (uint32_t row = 0; row < s.tail.rows(); ++row) {
    if (s.tail.position(row) != position) continue;
    if (key) widen_row(env, s.tail.key_row(row), key);
    if (value) widen_row(env, s.tail.value_row(row), value);
    return true;
  }
  return false;
}

namespace {

// Headers lie apart, and a long sequence has more of them than caches hold: so many are asked for before they are read.
constexpr size_t kHeadersAhead = 16;

// Views of the first so many blocks stay as they were collected; as many rows they have.
uint32_t keep_views(uint32_t count, StreamViews& out) {
  uint32_t rows = out.settled_rows;
  for (size_t v = count; v < out.settled; ++v) rows -= out.views[v].rows;
  out.views.resize(count);
  out.stats.resize(count);
  out.tiers.resize(count);
  out.summaries.resize(std::min<size_t>(count, out.summaries.size()));
  out.spilled.clear();
  return count == 0 ? 0 : rows;
}

void collect_blocks(const StreamEnv& env, const HeadStream& s, const Version::Step& step, StreamViews& out) {
  // Without spilled blocks a view is a block. Those that a device has alone may be lost by now.
  const bool known = step.before != 0 && out.version == step.before && out.spilled.empty() && !out.away && out.settled >= step.same;
  const uint32_t same = known ? step.same : 0;
  uint32_t rows = keep_views(same, out);
  out.forget();
  out.away = out.lost = false;
  // Most calls have few rows in the tail: two views of it. Growing step by step would copy the list again and again.
  out.views.reserve(s.blocks.size() + 2);
  out.stats.reserve(s.blocks.size() + 2);
  out.tiers.reserve(s.blocks.size() + 2);
  const bool summaries = env.store->keeps_summaries();
  if (summaries) out.summaries.reserve(s.blocks.size() + 2);
  for (size_t i = same; i < s.blocks.size(); ++i) {
    const BlockRef& ref = s.blocks[i];
    if (i + kHeadersAhead < s.blocks.size()) __builtin_prefetch(s.blocks[i + kHeadersAhead].block.identity());
    if (ref.block.spilled()) {
      out.spilled.push_back(&ref);
      continue;
    }
    out.views.push_back(view_of(env, ref, s.layer, s.head));
    out.away |= ref.block.away(), out.lost |= env.store->lost(ref.block);
    out.stats.push_back(ref.stats);
    out.tiers.push_back(ref.block.tier());
    rows += ref.rows;
    if (summaries) out.summaries.push_back(env.store->summary(ref.block).data());  // looked at by whoever chooses
  }
  out.settled = static_cast<uint32_t>(out.views.size());
  out.settled_rows = rows;
  out.version = step.number, out.before = known ? step.before : 0, out.same = same;
}

}  // namespace

void collect_views(const StreamEnv& env, HeadStream& s, const CodecEntry& hot_codec, StreamViews& out) {
  const HeadStream& now = s;
  const Version::Step step = now.blocks.step();
  if (out.version == 0 || out.version != step.number) collect_blocks(env, now, step, out);
  const bool summaries = env.store->keeps_summaries();
  out.views.resize(out.settled);
  out.stats.resize(out.settled);
  out.tiers.resize(out.settled);
  if (summaries) out.summaries.resize(out.settled);
  out.tail_version = 0;
  Tail::Run runs[2];
  now.tail.runs(runs);
  uint32_t row = 0;
  for (const Tail::Run& run : runs) {
    for (uint32_t i = 0; i < run.rows; i += attn::kMaxViewRows) {
      const uint32_t n = std::min(attn::kMaxViewRows, run.rows - i);
      const size_t offset = static_cast<size_t>(i) * env.head_dim;
      const size_t bytes = static_cast<size_t>(n) * env.head_dim * sizeof(uint16_t);
      const auto as_span = [&](const uint16_t* p) { return std::span(reinterpret_cast<const std::byte*>(p + offset), bytes); };
      out.views.push_back({hot_codec.key.get(),
                           hot_codec.value.get(),
                           as_span(run.keys),
                           as_span(run.values),
                           {s.layer, s.head, run.first_position + i, run.positions ? run.positions + i : nullptr},
                           n});
      out.stats.push_back(env.signals ? s.tail.stats_row(row) : nullptr);
      out.tiers.push_back(Tier::hot);
      if (summaries) out.summaries.push_back(nullptr);
      row += n;
    }
  }
  if (row != 0 && !runs[0].positions) out.tail_version = now.tail.version();
}

}  // namespace tierkv::tiers
