#include "tiers/row_batch.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/f16.h"
#include "base/guarded.h"
#include "base/per_thread.h"
#include "quant/isa.h"
#include "tiers/summary.h"

namespace tierkv::tiers {
namespace {

bool consecutive(const std::vector<uint32_t>& positions) {
  for (size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[0] + i) return false;
  }
  return true;
}

void pad(RowBatch& batch, const StreamEnv& env, uint32_t tokens) {
  const uint32_t rows = batch.rows();
  const size_t d = env.head_dim;
  batch.keys.resize(tokens * d);
  batch.values.resize(tokens * d);
  for (uint32_t i = rows; i < tokens; ++i) {
    std::copy_n(batch.keys.begin() + static_cast<ptrdiff_t>((i % rows) * d), d, batch.keys.begin() + static_cast<ptrdiff_t>(i * d));
    std::copy_n(batch.values.begin() + static_cast<ptrdiff_t>((i % rows) * d), d,
                batch.values.begin() + static_cast<ptrdiff_t>(i * d));
  }
}

// Of a row that nobody looked at yet, as a part of the mean: among such rows the error decides.
constexpr float kUnseenMass = 1e-3f;

// What a codec is told of its rows: the mass they received, nothing for rows that only pad, and all alike when nothing is known.
void weigh_rows(RowBatch& batch, const StreamEnv& env, uint32_t tokens) {
  const uint32_t rows = batch.rows();
  batch.mass.assign(tokens, 0.0f);
  double total = 0.0;
  for (uint32_t i = 0; env.mass >= 0 && i < rows; ++i) {
    batch.mass[i] = batch.stats[static_cast<size_t>(i) * env.signals + static_cast<size_t>(env.mass)];
    total += batch.mass[i];
  }
  const float least = total > 0.0 ? kUnseenMass * static_cast<float>(total / rows) : 1.0f;
  for (uint32_t i = 0; i < rows; ++i) batch.mass[i] = std::max(batch.mass[i], least);
}

bool has_better_rows(const CodecEntry& codec) { return codec.pair.key.top != 0 || codec.pair.value.top != 0; }

enum class Encoded { done, refused, no_memory };

Encoded encode_with(const StreamEnv& env, const RowBatch& batch, const CodecEntry& codec, const quant::BlockContext& ctx,
                    const AllocatePayload& allocate) {
  Payload* payload = allocate(codec);
  if (!payload) return Encoded::no_memory;
  const attn::EncodeWork sides[] = {
      {codec.key.get(), batch.keys.data(), ctx, payload->keys()},
      {codec.value.get(), batch.values.data(), ctx, payload->values()},
  };
  return env.backend->encode(sides).ok() ? Encoded::done : Encoded::refused;
}

}  // namespace

void widen_row(const StreamEnv& env, const uint16_t* from, float* to) {
  if (const quant::Kernels* kernels = quant::active_kernels()) return kernels->widen(from, env.hot_bf16, env.head_dim, to);
  for (uint32_t c = 0; c < env.head_dim; ++c) to[c] = env.hot_bf16 ? bf16_to_f32(from[c]) : f16_to_f32(from[c]);
}

void RowBatch::clear() {
  keys.clear();
  values.clear();
  positions.clear();
  stats.clear();
  mass.clear();
}

void RowBatch::add_tail(const StreamEnv& env, const Tail& tail, uint32_t count) {
  const size_t d = env.head_dim;
  const size_t before = rows();
  keys.resize((before + count) * d);
  values.resize((before + count) * d);
  for (uint32_t i = 0; i < count; ++i) {
    widen_row(env, tail.key_row(i), keys.data() + (before + i) * d);
    widen_row(env, tail.value_row(i), values.data() + (before + i) * d);
    positions.push_back(tail.position(i));
    if (env.signals) stats.insert(stats.end(), tail.stats_row(i), tail.stats_row(i) + env.signals);
  }
}

void RowBatch::add_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head) {
  const size_t d = env.head_dim;
  const quant::BlockContext ctx{layer, head, ref.first_position, ref.positions};
  const Pin pin(*env.store, ref.block);
  size_t at = rows();
  keys.resize((at + ref.rows) * d);
  values.resize((at + ref.rows) * d);
  for (uint32_t row = 0; row < ref.rows;) {
    if (!ref.alive(row)) {
      ++row;
      continue;
    }
    uint32_t run = row;
    while (run < ref.rows && ref.alive(run)) ++run;
    const attn::DecodeWork sides[] = {
        {ref.block.codec()->key.get(), pin.keys(), ctx, row, run - row, keys.data() + at * d},
        {ref.block.codec()->value.get(), pin.values(), ctx, row, run - row, values.data() + at * d},
    };
    env.backend->decode(sides);
    for (uint32_t i = row; i < run; ++i) {
      positions.push_back(ref.position(i));
      if (ref.stats) stats.insert(stats.end(), ref.stats + i * env.signals, ref.stats + (i + 1) * env.signals);
      else stats.resize(stats.size() + env.signals, 0.0f);
    }
    at += run - row;
    row = run;
  }
  keys.resize(at * d);
  values.resize(at * d);
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

const CodecEntry* encode_rows(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, const CodecEntry& raw,
                              const quant::BlockContext& ctx, const AllocatePayload& allocate) {
  const CodecEntry* took = nullptr;
  const auto encode = [&] {
    if (batch.rows() < codec.tokens) pad(batch, env, codec.tokens);
    quant::BlockContext known = ctx;
    if (has_better_rows(codec)) {
      weigh_rows(batch, env, codec.tokens);
      known.mass = batch.mass.data();
    }
    for (const CodecEntry* entry : {&codec, codec.fallback, &raw}) {
      if (!entry) continue;
      const Encoded result = encode_with(env, batch, *entry, known, allocate);
      if (result == Encoded::done) took = entry;
      if (result != Encoded::refused) break;
    }
    return took != nullptr;
  };
  return with_memory(encode) ? took : nullptr;
}

std::optional<BlockRef> seal(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, const CodecEntry& raw, Tier tier,
                             const CodecEntry* source, uint32_t layer, uint32_t head, Arena::Use use, const quant::Codec* guide) {
  BlockRef ref;
  ref.first_position = batch.positions[0];
  ref.rows = ref.live = static_cast<uint16_t>(batch.rows());
  if (!allocate_ref_arrays(env, ref, codec.tokens, !consecutive(batch.positions), env.keeps_stats(tier), use)) return std::nullopt;
  if (ref.positions) std::copy(batch.positions.begin(), batch.positions.end(), ref.positions);
  if (ref.stats) std::copy(batch.stats.begin(), batch.stats.end(), ref.stats);
  quant::BlockContext ctx{layer, head, ref.first_position, ref.positions};
  ctx.guide = guide;
  Payload payload;
  const auto allocate = [&](const CodecEntry& entry) {
    payload = Payload();  // what a codec refused goes first
    payload = env.store->allocate(entry, tier, use);
    return payload ? &payload : nullptr;
  };
  const CodecEntry* took = encode_rows(env, batch, codec, raw, ctx, std::ref(allocate));  // a reference: no memory
  if (took) {
    const uint64_t checksum = payload.compute_checksum();
    ref.block = env.store->seal(std::move(payload), checksum, *took, tier, source, use);
  }
  if (ref.block) {
    summarise(env, ref.block, ref, layer, head);
    return ref;
  }
  release_ref_arrays(env, ref, codec.tokens);
  return std::nullopt;
}

void copy_behind(const StreamEnv& env, const RowBatch& batch, const BlockRef& ref) noexcept {
  store::ColdFile* cold = env.store->cold();
  if (!cold || !env.cold_codec || ref.tokens() != env.cold_codec->tokens) return;
  struct Image {
    std::vector<std::byte> bytes;
  };
  (void)with_memory([&] {
    std::vector<std::byte>& image = per_thread<Image>().bytes;
    const quant::BlockContext ctx{0, 0, ref.first_position, ref.positions};
    for (const CodecEntry* codec : {env.cold_codec, env.cold_raw}) {
      const store::PayloadSizes sizes = payload_sizes(*codec);
      image.assign(sizes.total(), std::byte{0});
      const attn::EncodeWork sides[] = {
          {codec->key.get(), batch.keys.data(), ctx, std::span(image).first(sizes.keys)},
          {codec->value.get(), batch.values.data(), ctx, std::span(image).subspan(sizes.value_offset())},
      };
      if (!env.backend->encode(sides).ok()) continue;
      if (store::ColdCopy* copy = cold->add(*codec, sizes, store::payload_checksum(sizes, image), image))
        env.store->attach(ref.block, copy);
      break;
    }
    return true;
  });
}

}  // namespace tierkv::tiers
