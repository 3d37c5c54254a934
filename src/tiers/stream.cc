#include "tiers/stream.h"

#include <algorithm>
#include <cstring>

#include "tiers/row_batch.h"

namespace tierkv::tiers {
namespace {

bool has_sinks(const HeadStream& s) { return !s.blocks.empty() && s.blocks[0].block->tier == Tier::sink; }

bool push_block(const StreamEnv& env, HeadStream& s, BlockRef ref, Arena::Use use) {
  if (s.blocks.push_back(*env.arena, ref, use)) return true;
  release_ref(env, ref);
  return false;
}

// The first tokens of the sequence leave the tail for good, in the tail's own precision.
bool extract_sinks(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  RowBatch& batch = scratch_batch();
  batch.add_tail(env, s.tail, plan.sinks);
  auto ref = seal(env, batch, *plan.sink_codec, *plan.sink_codec, Tier::sink, nullptr, s.layer, s.head, use);
  if (!ref || !push_block(env, s, *ref, use)) return false;
  s.tail.drop_front(plan.sinks);
  return true;
}

bool graduate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  const uint32_t block = plan.first_block();
  if (plan.ring || plan.hot == kAll || block == 0) return true;
  const Tier tier = plan.warm ? Tier::warm : Tier::archive;
  const bool wants_sinks = plan.sinks && s.blocks.empty() && s.tail.rows() && s.tail.position(0) == 0;
  if (wants_sinks) {
    if (s.tail.rows() < static_cast<uint64_t>(plan.hot) + block + plan.sinks) return true;
    if (!extract_sinks(env, s, plan, use)) return false;
  }
  while (s.tail.rows() >= static_cast<uint64_t>(plan.hot) + block) {
    RowBatch& batch = scratch_batch();
    batch.add_tail(env, s.tail, block);
    const CodecEntry& raw = plan.warm ? *plan.raw_warm : *plan.raw_archive;
    auto ref = seal(env, batch, *plan.first_codec(s.head), raw, tier, nullptr, s.layer, s.head, use);
    if (!ref || !push_block(env, s, *ref, use)) return false;
    s.tail.drop_front(block);
  }
  return true;
}

// The oldest warm blocks that together fill one archive block become it. Blocks that eviction or truncation left short may make it
// short.
bool demote(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  if (plan.warm == kAll || plan.warm == 0) return true;
  const uint32_t target = plan.archive_codec->tokens;
  for (;;) {
    size_t first = 0;
    while (first < s.blocks.size() && s.blocks[first].block->tier != Tier::warm) ++first;
    uint64_t warm = 0;
    for (size_t i = first; i < s.blocks.size(); ++i) warm += s.blocks[i].live;
    if (warm < static_cast<uint64_t>(plan.warm) + target) return true;
    RowBatch& batch = scratch_batch();
    size_t last = first;
    while (last < s.blocks.size() && batch.rows() + s.blocks[last].live <= target) {
      batch.add_live_rows(env, s.blocks[last++], s.layer, s.head);
    }
    if (last == first) return true;  // a warm block larger than an archive block (an older configuration's): it stays
    if (batch.rows()) {
      auto ref = seal(env, batch, *plan.archive(s.head), *plan.raw_archive, Tier::archive, s.blocks[first].block->codec, s.layer,
                      s.head, use);
      if (!ref) return false;
      release_ref(env, s.blocks[first]);
      s.blocks[first++] = *ref;
    }
    for (size_t i = first; i < last; ++i) release_ref(env, s.blocks[i]);
    s.blocks.erase(first, last - first);
  }
}

void kill_rows(BlockRef& ref, const uint8_t* keep) {
  for (uint32_t row = 0, i = 0; row < ref.rows; ++row) {
    if (!ref.alive(row)) continue;
    if (!keep[i++]) {
      ref.positions[row] = kDeadPosition;
      --ref.live;
    }
  }
  while (ref.rows && !ref.alive(ref.rows - 1u)) --ref.rows;
}

// Rewrites the live rows of `count` neighbours as one block less. False: they do not fit, or there is no memory: then they just
// keep theirs.
bool merge_run(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, size_t first, size_t count) {
  if (first + count > s.blocks.size()) return false;
  const Tier tier = s.blocks[first].block->tier;
  const CodecEntry* codec = tier == Tier::warm ? plan.warm_of(s.head) : plan.archive(s.head);
  const CodecEntry* raw = tier == Tier::warm ? plan.raw_warm : plan.raw_archive;
  if (tier == Tier::sink || !codec) return false;
  uint64_t live = 0;
  for (size_t i = first; i < first + count; ++i) {
    if (s.blocks[i].block->tier != tier) return false;
    live += s.blocks[i].live;
  }
  if (live > (count - 1) * codec->tokens) return false;

  RowBatch all;
  for (size_t i = first; i < first + count; ++i) all.add_live_rows(env, s.blocks[i], s.layer, s.head);
  BlockRef fresh[2];
  size_t made = 0;
  for (uint32_t from = 0; from < all.rows(); from += codec->tokens) {
    RowBatch& batch = scratch_batch();
    batch.add_rows(env, all, from, std::min(codec->tokens, all.rows() - from));
    auto ref = seal(env, batch, *codec, *raw, tier, s.blocks[first].block->codec, s.layer, s.head, Arena::Use::relief);
    if (!ref) {
      while (made) release_ref(env, fresh[--made]);
      return false;
    }
    fresh[made++] = *ref;
  }
  for (size_t i = first; i < first + count; ++i) release_ref(env, s.blocks[i]);
  std::copy_n(fresh, made, s.blocks.begin() + first);
  s.blocks.erase(first + made, count - made);
  return true;
}

// Two neighbours that fit one block, or three that fit two, are rewritten: eviction that drops a few rows everywhere would
// otherwise free nothing until every block is half dead. Each rewrite re-encodes rows, so it is not done for less.
void merge_neighbours(const StreamEnv& env, HeadStream& s, const LayerPlan& plan) {
  for (size_t i = 0; i + 1 < s.blocks.size();) {
    if (!merge_run(env, s, plan, i, 2) && !merge_run(env, s, plan, i, 3)) ++i;
  }
}

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

bool settle(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  return graduate(env, s, plan, use) && demote(env, s, plan, use);
}

void expire(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t position) {
  const uint64_t reach = static_cast<uint64_t>(plan.window) - 1 + plan.slack;
  if (position <= reach) return;
  const uint32_t oldest = static_cast<uint32_t>(position - reach);
  size_t gone = 0;
  while (gone < s.blocks.size() && s.blocks[gone].position(s.blocks[gone].rows - 1u) < oldest) release_ref(env, s.blocks[gone++]);
  s.blocks.erase(0, gone);
  if (!plan.ring) return;
  uint32_t rows = 0;
  while (rows < s.tail.rows() && s.tail.position(rows) < oldest) ++rows;
  if (rows) s.tail.drop_front(rows);
}

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

bool evict_rows(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, std::span<const uint8_t> keep) {
  const auto all_kept = [&](size_t from, size_t count) {
    return std::all_of(keep.begin() + static_cast<ptrdiff_t>(from), keep.begin() + static_cast<ptrdiff_t>(from + count),
                       [](uint8_t k) { return k; });
  };
  // First everything that can fail: lists for the blocks and the tail that lose rows.
  size_t at = 0;
  for (BlockRef& ref : s.blocks) {
    if (!ref.positions && !all_kept(at, ref.live)) {
      const uint32_t tokens = ref.block->codec->tokens;
      ref.positions =
          static_cast<uint32_t*>(env.arena->allocate(tokens * sizeof(uint32_t), MemoryTag::bookkeeping, Arena::Use::relief));
      if (!ref.positions) return false;
      for (uint32_t row = 0; row < tokens; ++row) ref.positions[row] = row < ref.rows ? ref.first_position + row : kDeadPosition;
    }
    at += ref.live;
  }
  const bool tail_loses = !all_kept(at, s.tail.rows());
  if (tail_loses && !(s.tail.reserve(*env.arena, 0, plan.tail_bound(), Arena::Use::relief) && s.tail.reserve_positions(*env.arena)))
    return false;

  at = 0;
  size_t to = 0;
  for (size_t i = 0; i < s.blocks.size(); ++i) {
    BlockRef ref = s.blocks[i];
    const size_t live = ref.live;
    if (!all_kept(at, live)) kill_rows(ref, keep.data() + at);
    at += live;
    if (ref.live == 0) {
      release_ref(env, ref);
    } else {
      s.blocks[to++] = ref;
    }
  }
  s.blocks.resize_down(to);
  if (tail_loses) s.tail.keep(keep.subspan(at));
  merge_neighbours(env, s, plan);
  return true;
}

bool prepare_truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length) {
  if (!has_sinks(s) || length >= plan.sinks) return true;
  return s.tail.reserve(*env.arena, plan.sinks, plan.tail_bound());
}

void truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length) {
  s.tail.truncate(length);
  while (!s.blocks.empty() && s.blocks.back().first_live_position() >= length) {
    release_ref(env, s.blocks.back());
    s.blocks.resize_down(s.blocks.size() - 1);
  }
  if (!s.blocks.empty()) {
    BlockRef& ref = s.blocks.back();
    while (ref.rows && (!ref.alive(ref.rows - 1u) || ref.position(ref.rows - 1u) >= length)) {
      if (ref.alive(ref.rows - 1u)) --ref.live;
      --ref.rows;
    }
  }
  if (has_sinks(s) && length < plan.sinks && s.tail.can_push_front(s.blocks[0].rows) && s.blocks.size() == 1 &&
      !s.blocks[0].positions && s.tail.first_position() == s.blocks[0].rows) {
    // Fewer tokens than sinks are left: back to the tail, so that the tokens that come next can become sinks too. A sequence that
    // was loaded from a cache with other sinks may have a gap or blocks in between; its sinks stay as they are.
    BlockRef ref = s.blocks[0];
    const auto* keys = reinterpret_cast<const uint16_t*>(ref.block->keys().data());
    const auto* values = reinterpret_cast<const uint16_t*>(ref.block->values().data());
    s.tail.push_front(ref.rows, keys, values, ref.stats);
    release_ref(env, ref);
    s.blocks.resize_down(0);
  }
}

bool read_row(const StreamEnv& env, const HeadStream& s, uint32_t position, float* key, float* value) {
  const size_t b = find_block(s, position);
  if (b < s.blocks.size()) {
    const BlockRef& ref = s.blocks[b];
    const quant::BlockContext ctx{s.layer, s.head, ref.first_position, ref.positions};
    for (uint32_t row = 0; row < ref.rows; ++row) {
      if (ref.position(row) != position) continue;
      if (key) ref.block->codec->key->decode(ref.block->keys(), ctx, row, 1, key);
      if (value) ref.block->codec->value->decode(ref.block->values(), ctx, row, 1, value);
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

void collect_views(const StreamEnv& env, HeadStream& s, const CodecEntry& hot_codec, StreamViews& out) {
  out.views.clear();
  out.stats.clear();
  out.tiers.clear();
  for (const BlockRef& ref : s.blocks) {
    const CodecEntry& codec = *ref.block->codec;
    out.views.push_back({codec.key.get(),
                         codec.value.get(),
                         ref.block->keys(),
                         ref.block->values(),
                         {s.layer, s.head, ref.first_position, ref.positions},
                         ref.rows});
    out.stats.push_back(ref.stats);
    out.tiers.push_back(ref.block->tier);
  }
  Tail::Run runs[2];
  s.tail.runs(runs);
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
      row += n;
    }
  }
}

bool clone(const StreamEnv& env, const HeadStream& from, HeadStream& to) {
  to.layer = from.layer;
  to.head = from.head;
  bool ok = to.tail.clone_from(*env.arena, from.tail) && to.blocks.reserve(*env.arena, from.blocks.size());
  for (size_t i = 0; ok && i < from.blocks.size(); ++i) {
    const BlockRef& source = from.blocks[i];
    const uint32_t tokens = source.block->codec->tokens;
    BlockRef ref = source;
    ref.positions = nullptr;
    ref.stats = nullptr;
    ok = allocate_ref_arrays(env, ref, tokens, source.positions != nullptr, Arena::Use::normal);
    if (!ok) break;
    if (ref.positions) std::copy_n(source.positions, tokens, ref.positions);
    if (ref.stats) std::copy_n(source.stats, static_cast<size_t>(tokens) * env.signals, ref.stats);
    ref.block->retain();
    to.blocks.push_reserved(ref);
  }
  if (!ok) destroy(env, to);
  return ok;
}

void destroy(const StreamEnv& env, HeadStream& s) {
  for (BlockRef& ref : s.blocks) release_ref(env, ref);
  s.blocks.reset(*env.arena);
  s.tail.reset(*env.arena);
}

bool allocate_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens, bool with_positions, Arena::Use use) {
  if (with_positions) {
    ref.positions = static_cast<uint32_t*>(env.arena->allocate(tokens * sizeof(uint32_t), MemoryTag::bookkeeping, use));
    if (!ref.positions) return false;
    std::fill_n(ref.positions, tokens, kDeadPosition);
  }
  if (env.signals) {
    ref.stats = static_cast<float*>(
        env.arena->allocate(static_cast<size_t>(tokens) * env.signals * sizeof(float), MemoryTag::bookkeeping, use));
    if (!ref.stats) {
      release_ref_arrays(env, ref, tokens);
      return false;
    }
    std::fill_n(ref.stats, static_cast<size_t>(tokens) * env.signals, 0.0f);
  }
  return true;
}

void release_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens) {
  env.arena->release(ref.positions, tokens * sizeof(uint32_t), MemoryTag::bookkeeping);
  env.arena->release(ref.stats, static_cast<size_t>(tokens) * env.signals * sizeof(float), MemoryTag::bookkeeping);
  ref.positions = nullptr;
  ref.stats = nullptr;
}

void release_ref(const StreamEnv& env, BlockRef& ref) {
  release_ref_arrays(env, ref, ref.block->codec->tokens);
  Block::release(*env.arena, ref.block);
  ref.block = nullptr;
}

}  // namespace tierkv::tiers
