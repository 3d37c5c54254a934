#include "tiers/row_batch.h"

#include <algorithm>
#include <new>

#include "attn/rows.h"
#include "base/per_thread.h"

namespace tierkv::tiers {

void widen_row(const StreamEnv& env, const uint16_t* from, float* to) { attn::widen_halves(from, env.hot_bf16, env.head_dim, to); }

void RowBatch::clear() {
  keys.clear();
  values.clear();
  blocks.clear();
  positions.clear();
  stats.clear();
  mass.clear();
  loaded.clear();
  tail_keys = tail_values = {};
}

void RowBatch::add_positions(const StreamEnv& env, const Tail& tail, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    positions.push_back(tail.position(i));
    if (env.signals) stats.insert(stats.end(), tail.stats_row(i), tail.stats_row(i) + env.signals);
  }
}

void RowBatch::refer_to_tail(const StreamEnv& env, const Tail& tail, uint32_t count, const void* owner, uint32_t head) {
  Tail::Run runs[2];
  tail.runs(runs);
  if (runs[0].positions) owner = nullptr;  // with gaps nobody else has them
  tail_keys = {tail.key_row(0), env.hot_bf16, owner, tail.version(), head, false};
  tail_values = {tail.value_row(0), env.hot_bf16, owner, tail.version(), head, true};
  add_positions(env, tail, count);
}

void RowBatch::add_tail(const StreamEnv& env, const Tail& tail, uint32_t count) {
  const size_t d = env.head_dim;
  const size_t before = rows();
  keys.resize((before + count) * d);
  values.resize((before + count) * d);
  for (uint32_t i = 0; i < count; ++i) {
    widen_row(env, tail.key_row(i), keys.data() + (before + i) * d);
    widen_row(env, tail.value_row(i), values.data() + (before + i) * d);
  }
  add_positions(env, tail, count);
}

void RowBatch::refer_to_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head) {
  attn::BlockView block = view_of(env, ref, layer, head);
  if (block.away()) {
    // What cannot be read stays as it is, as if there were no memory for it.
    if (!env.store->load(ref.block, loaded.emplace_back()).ok()) throw std::bad_alloc();
    const store::BlockBytes bytes = split(loaded.back(), *ref.block.codec());
    block.keys = bytes.keys, block.values = bytes.values, block.sealed = 0;
  }
  for (uint32_t row = 0; row < ref.rows;) {
    if (!ref.alive(row)) {
      ++row;
      continue;
    }
    uint32_t run = row;
    while (run < ref.rows && ref.alive(run)) ++run;
    blocks.push_back({block, row, run - row});
    for (uint32_t i = row; i < run; ++i) {
      positions.push_back(ref.position(i));
      if (ref.stats) stats.insert(stats.end(), ref.stats + i * env.signals, ref.stats + (i + 1) * env.signals);
      else stats.resize(stats.size() + env.signals, 0.0f);
    }
    row = run;
  }
}

void RowBatch::list_decodes(const StreamEnv& env, std::vector<attn::DecodeWork>& works) {
  size_t at = keys.size();
  keys.resize(rows() * size_t{env.head_dim});
  values.resize(keys.size());
  for (const attn::BlockRows& from : blocks) {
    const attn::BlockView& block = from.block;
    works.push_back({block.key_codec, block.keys, block.ctx, from.first, from.count, keys.data() + at});
    works.push_back({block.value_codec, block.values, block.ctx, from.first, from.count, values.data() + at});
    at += size_t{from.count} * env.head_dim;
  }
  blocks.clear();
}

void RowBatch::add_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head) {
  std::vector<attn::DecodeWork> works;
  refer_to_live_rows(env, ref, layer, head);
  list_decodes(env, works);
  env.backend->decode(works, attn::in_turn());
}

void RowBatch::add_rows(const StreamEnv& env, const RowBatch& from, uint32_t first, uint32_t count) {
  const auto copy = [&](const auto& source, auto& target, size_t width) {
    const auto begin = source.begin() + static_cast<ptrdiff_t>(first * width);
    target.insert(target.end(), begin, begin + static_cast<ptrdiff_t>(count * width));
  };
  copy(from.keys, keys, env.head_dim);
  copy(from.values, values, env.head_dim);
  copy(from.positions, positions, 1);
  copy(from.stats, stats, env.signals);
}

RowBatch& scratch_batch() {
  RowBatch& batch = per_thread<RowBatch>();
  batch.clear();
  return batch;
}

}  // namespace tierkv::tiers
