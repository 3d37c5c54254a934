#include "tiers/seal.h"

#include <algorithm>
#include <utility>

#include "base/guarded.h"
#include "tiers/summary.h"

namespace tierkv::tiers {
namespace {

bool consecutive(const std::vector<uint32_t>& positions) {
  for (size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[0] + i) return false;
  }
  return true;
}

// REQUIRES: not the rows of a tail.
void pad(RowBatch& batch, const StreamEnv& env, uint32_t tokens) {
  const uint32_t rows = batch.rows();
  const size_t d = env.head_dim;
  if (batch.keys.empty()) {
    for (size_t i = 0, left = tokens - rows; left != 0; ++i) {
      attn::BlockRows again = batch.blocks[i];  // round and round: what is repeated lies behind what was there
      again.count = static_cast<uint32_t>(std::min<size_t>(again.count, left));
      batch.blocks.push_back(again);
      left -= again.count;
    }
    return;
  }
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

bool no_memory(const attn::EncodeWork& side) { return side.status.code() == StatusCode::resource_exhausted; }

// The codings that are left, in the codec that comes next for each. `open`: which of them are.
void try_next(const StreamEnv& env, std::span<Coding> codings, size_t attempt, std::vector<uint8_t>& open,
              std::vector<attn::EncodeWork>& sides, const Executor& run) {
  sides.clear();
  for (size_t i = 0; i < codings.size(); ++i) {
    Coding& coding = codings[i];
    const CodecEntry* entry = coding.tries[attempt];
    if (!open[i] || !entry) continue;
    const BlockRoom room = coding.allocate(*entry);
    if (!room) {
      open[i] = 0;
      continue;
    }
    const RowBatch& rows = *coding.batch;
    const bool wide = !rows.keys.empty();
    const auto add = [&](const quant::Codec* codec, const float* floats, std::span<std::byte> out, const attn::TailRows& tail) {
      sides.push_back({codec, wide ? floats : nullptr, coding.ctx, out, {}, tail, rows.blocks});
    };
    add(entry->key.get(), rows.keys.data(), room.keys, rows.tail_keys);
    add(entry->value.get(), rows.values.data(), room.values, rows.tail_values);
  }
  if (!sides.empty()) env.backend->encode(sides, run);
  size_t at = 0;
  for (size_t i = 0; i < codings.size(); ++i) {
    Coding& coding = codings[i];
    if (!open[i] || !coding.tries[attempt]) continue;
    const attn::EncodeWork &keys = sides[at], &values = sides[at + 1];
    at += 2;
    const bool took = keys.status.ok() && values.status.ok();
    if (took) coding.took = coding.tries[attempt];
    if (took || no_memory(keys) || no_memory(values)) open[i] = 0;
  }
}

// A block that has its lists, and gets its bytes.
struct Sealing {
  const StreamEnv* env = nullptr;
  Tier tier = Tier::warm;
  Arena::Use use = Arena::Use::normal;
  BlockRef ref;
  Payload payload;

  BlockRoom allocate(const CodecEntry& codec) {
    payload = Payload();  // what a codec refused goes first
    payload = env->store->allocate(codec, tier, use);
    return room_of(payload);
  }
};

bool begin(const StreamEnv& env, const Making& block, Arena::Use use, Sealing& to, Coding& coding) {
  RowBatch& batch = *block.batch;
  to.env = &env;
  to.tier = block.tier;
  to.use = use;
  to.ref.first_position = batch.positions[0];
  to.ref.rows = to.ref.live = static_cast<uint16_t>(batch.rows());
  coding.ctx = {block.layer, block.head, to.ref.first_position, nullptr};
  coding.ctx.guide = block.guide;
  if (!pad_rows(env, batch, *block.codec, coding.ctx)) return false;
  const bool positions = !consecutive(batch.positions);
  if (!allocate_ref_arrays(env, to.ref, block.codec->tokens, positions, env.keeps_stats(block.tier), use)) return false;
  if (to.ref.positions) std::copy(batch.positions.begin(), batch.positions.end(), to.ref.positions);
  if (to.ref.stats) std::copy(batch.stats.begin(), batch.stats.end(), to.ref.stats);
  coding.ctx.positions = to.ref.positions;
  coding.batch = &batch;
  coding.tries[0] = block.codec;
  coding.tries[1] = block.codec->fallback;
  coding.tries[2] = block.raw;
  coding.allocate = [&to](const CodecEntry& codec) { return to.allocate(codec); };
  return true;
}

// What is begun and not made goes back.
void finish(const StreamEnv& env, Making& block, Sealing& from, const CodecEntry* took, Arena::Use use) {
  if (took) {
    const uint64_t checksum = from.payload.compute_checksum();
    from.ref.block = env.store->seal(std::move(from.payload), checksum, *took, block.tier, block.source, use);
  }
  if (from.ref.block) block.made = from.ref;
  else release_ref_arrays(env, from.ref, block.codec->tokens);
}

struct Image {
  std::vector<std::byte> bytes;
  BlockRoom allocate(const CodecEntry& codec) {
    const store::PayloadSizes sizes = payload_sizes(codec);
    bytes.assign(sizes.total(), std::byte{0});
    return {std::span(bytes).first(sizes.keys), std::span(bytes).subspan(sizes.value_offset())};
  }
};

}  // namespace

void encode_rows(const StreamEnv& env, std::span<Coding> codings, const Executor& run) noexcept {
  (void)with_memory([&] {
    std::vector<uint8_t> open(codings.size(), 1);
    for (size_t i = 0; i < codings.size(); ++i) open[i] = codings[i].batch != nullptr;
    std::vector<attn::EncodeWork> sides;
    sides.reserve(2 * codings.size());
    for (size_t attempt = 0; attempt < std::size(Coding{}.tries); ++attempt) try_next(env, codings, attempt, open, sides, run);
    return true;
  });
}

bool pad_rows(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, quant::BlockContext& ctx) {
  return with_memory([&] {
    if (batch.rows() < codec.tokens) pad(batch, env, codec.tokens);
    if (!has_better_rows(codec)) return true;
    weigh_rows(batch, env, codec.tokens);
    ctx.mass = batch.mass.data();
    return true;
  });
}

void seal(const StreamEnv& env, std::span<Making> blocks, Arena::Use use, const Executor& run) noexcept {
  (void)with_memory([&] {
    std::vector<Sealing> sealings(blocks.size());
    std::vector<Coding> codings(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!begin(env, blocks[i], use, sealings[i], codings[i])) codings[i] = {};
    }
    encode_rows(env, codings, run);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (codings[i].batch) finish(env, blocks[i], sealings[i], codings[i].took, use);
    }
    return true;
  });
  if (!env.store->keeps_summaries()) return;
  run(static_cast<uint32_t>(blocks.size()), [&](uint32_t i) {
    if (blocks[i].made) summarise(env, blocks[i].made->block, *blocks[i].made, blocks[i].layer, blocks[i].head);
  });
}

std::optional<BlockRef> seal(const StreamEnv& env, Making block, Arena::Use use) {
  seal(env, {&block, 1}, use, attn::in_turn());
  return block.made;
}

void copy_behind(const StreamEnv& env, std::span<const Making> blocks, const Executor& run) noexcept {
  store::ColdFile* cold = env.store->cold();
  if (!cold || !env.cold_codec) return;
  (void)with_memory([&] {
    std::vector<Image> images(blocks.size());
    std::vector<Coding> codings(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Making& block = blocks[i];
      if (!block.copied || !block.made || block.tier != Tier::archive || block.made->tokens() != env.cold_codec->tokens) continue;
      codings[i].batch = block.batch;
      codings[i].tries[0] = env.cold_codec;
      codings[i].tries[1] = env.cold_raw;
      codings[i].ctx = {0, 0, block.made->first_position, block.made->positions};
      codings[i].allocate = [&image = images[i]](const CodecEntry& codec) { return image.allocate(codec); };
    }
    encode_rows(env, codings, run);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const CodecEntry* took = codings[i].took;
      if (!took) continue;
      const store::PayloadSizes sizes = payload_sizes(*took);
      const std::vector<std::byte>& bytes = images[i].bytes;
      if (store::ColdCopy* copy = cold->add(*took, sizes, store::payload_checksum(sizes, bytes), bytes))
        env.store->attach(blocks[i].made->block, copy);
    }
    return true;
  });
}

}  // namespace tierkv::tiers
