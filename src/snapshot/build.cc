// build.cc — the checked picture of a file becomes a sequence, whole or not at all.
#include "snapshot/snapshot.h"

#include <cstring>
#include <unordered_map>

#include "base/status_macros.h"
#include "policy/policy.h"
#include "tiers/summary.h"

namespace tierkv::snapshot {
namespace {

// Which of the file's statistics goes where: to[i] is the cache's slot for the file's i-th signal, -1 when the cache does not keep
// it.
struct SignalMap {
  std::vector<int> to;
  uint32_t signals = 0;  // the cache's

  SignalMap(uint32_t file_mask, const int* signal_slot, uint32_t cache_signals) : signals(cache_signals) {
    for (int signal = 0; signal < policy::kNumSignals; ++signal) {
      if (file_mask >> signal & 1u) to.push_back(signal_slot[signal]);
    }
  }
  void copy(std::span<const std::byte> from, size_t rows, float* out) const {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < to.size(); ++i) {
        if (to[i] < 0) continue;
        std::memcpy(out + row * signals + static_cast<size_t>(to[i]), from.data() + (row * to.size() + i) * sizeof(float),
                    sizeof(float));
      }
    }
  }
};

struct Building {
  const StreamEnv& env;
  const Snapshot& snapshot;
  SignalMap signals;
  std::unordered_map<const CodecEntry*, const CodecEntry*> codecs;  // the file's -> the cache's
};

bool build_block(const Building& b, const SnapshotBlock& from, BlockRef& ref) {
  const CodecEntry& codec = *b.codecs.at(from.codec);
  if (!allocate_ref_arrays(b.env, ref, codec.tokens, !from.positions.empty(), b.env.keeps_stats(from.tier), Arena::Use::normal))
    return false;
  store::Payload payload = b.env.store->allocate(codec, from.tier, Arena::Use::normal);
  if (payload) {
    std::memcpy(payload.keys().data(), from.keys.data(), from.keys.size());
    std::memcpy(payload.values().data(), from.values.data(), from.values.size());
    const CodecEntry* source = from.source ? b.codecs.at(from.source) : nullptr;
    ref.block = b.env.store->seal(std::move(payload), from.checksum, codec, from.tier, source, Arena::Use::normal);
  }
  if (!ref.block) {
    release_ref_arrays(b.env, ref, codec.tokens);
    return false;
  }
  ref.first_position = from.first_position;
  ref.rows = from.rows;
  ref.live = from.live;
  if (ref.positions) std::memcpy(ref.positions, from.positions.data(), from.positions.size());
  if (ref.stats && !from.stats.empty()) b.signals.copy(from.stats, from.rows, ref.stats);
  return true;
}

bool build_tail(const Building& b, const SnapshotStream& from, Tail& tail) {
  std::vector<uint32_t> positions(from.positions.size() / sizeof(uint32_t));
  if (!positions.empty()) std::memcpy(positions.data(), from.positions.data(), from.positions.size());
  const uint32_t* list = positions.empty() ? nullptr : positions.data();
  if (!tail.restore(*b.env.arena, from.tail_rows, from.tail_first_position, list, from.ring_capacity)) return false;
  const size_t row_bytes = b.env.head_dim * sizeof(uint16_t);
  for (uint32_t i = 0; i < from.tail_rows; ++i) {
    std::memcpy(tail.key_row(i), from.keys.data() + i * row_bytes, row_bytes);
    std::memcpy(tail.value_row(i), from.values.data() + i * row_bytes, row_bytes);
  }
  if (b.env.signals && from.tail_rows) b.signals.copy(from.stats, from.tail_rows, tail.stats_row(0));
  return true;
}

bool build_stream(const Building& b, const SnapshotStream& from, HeadStream& s) {
  if (!s.blocks.reserve(*b.env.arena, from.blocks)) return false;
  for (uint32_t i = 0; i < from.blocks; ++i) {
    BlockRef ref;
    if (!build_block(b, b.snapshot.blocks[from.first_block + i], ref)) return false;
    tiers::summarise(b.env, ref.block, ref, s.layer, s.head);
    s.blocks.push_reserved(ref);
  }
  return build_tail(b, from, s.tail);
}

}  // namespace

Result<std::shared_ptr<Sequence>> build_sequence(const StreamEnv& env, CodecSet& codecs, const int* signal_slot,
                                                 const Snapshot& snapshot) {
  Building b{env, snapshot, SignalMap(snapshot.header.signal_mask, signal_slot, env.signals), {}};
  for (const SnapshotBlock& block : snapshot.blocks) {
    for (const CodecEntry* entry : {block.codec, block.source}) {
      if (!entry || b.codecs.contains(entry)) continue;
      TIERKV_ASSIGN_OR_RETURN(b.codecs[entry], codecs.get(entry->pair, entry->tokens, entry->layer, entry->head));
    }
  }
  std::shared_ptr<Sequence> sequence = Sequence::create(env, snapshot.header.layers, snapshot.header.kv_heads);
  if (!sequence) return sequence;
  for (uint32_t l = 0; l < snapshot.header.layers; ++l) {
    const SnapshotLayer& from = snapshot.layers[l];
    LayerState& state = sequence->layer(l);
    state.length = from.length;
    state.unobserved = from.unobserved;
    state.window_queries = from.window_queries;
    for (uint32_t h = 0; h < snapshot.header.kv_heads; ++h) {
      HeadStream& s = sequence->heads(l)[h];
      s.tail.configure(env.head_dim, env.signals, from.ring);
      if (!build_stream(b, snapshot.streams[static_cast<size_t>(l) * snapshot.header.kv_heads + h], s))
        return std::shared_ptr<Sequence>();
    }
  }
  return sequence;
}

static uint64_t header_bytes(const StreamEnv& env, size_t blocks) {
  return env.store ? env.store->header_bytes_for(blocks) : blocks * sizeof(store::BlockHeader);
}

uint64_t needed_bytes(const StreamEnv& env, const Snapshot& snapshot) {
  const auto list = [](uint64_t count, size_t size) { return Arena::rounded(count * size); };
  const uint64_t stat_bytes = env.signals * sizeof(float);
  uint64_t total = Arena::rounded(snapshot.layers.size() * sizeof(LayerState) + snapshot.streams.size() * sizeof(HeadStream));
  for (const SnapshotBlock& b : snapshot.blocks) {
    total += env.store ? env.store->held_bytes(*b.codec, b.tier) : Arena::rounded(tiers::payload_sizes(*b.codec).total());
    if (env.keeps_stats(b.tier)) total += list(b.codec->tokens, stat_bytes);
    if (!b.positions.empty()) total += list(b.codec->tokens, sizeof(uint32_t));
  }
  for (const SnapshotStream& s : snapshot.streams) {
    const uint32_t rows = std::max(s.tail_rows, s.ring_capacity);
    if (rows) total += Arena::rounded(TailBuffer::total_bytes(rows, env.head_dim));
    total += list(s.blocks, sizeof(BlockRef)) + list(s.positions.size(), 1) + list(s.tail_rows, stat_bytes);
  }
  return total + header_bytes(env, snapshot.blocks.size());
}

}  // namespace tierkv::snapshot
