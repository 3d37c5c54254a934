#include "snapshot/deep_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/f16.h"
#include "base/mapped_memory.h"
#include "base/status_macros.h"
#include "tiers/seal.h"

namespace tierkv::snapshot {
namespace {

using tiers::RowBatch;
using tiers::scratch_batch;

// Some tokens of the run as 16-bit rows, [coded layer][head][token][head_dim], keys and values apart.
class RowWindow {
 public:
  RowWindow(BlockStore& store, const deep::ArchiveInfo& info, const calib::DeepTables& tables, uint32_t capacity)
      : heads_(info.kv_heads),
        dim_(info.head_dim),
        capacity_(capacity),
        streams_(tables.coded.size() * info.kv_heads),
        slot_(tables.layers, 0),
        memory_(2 * streams_ * capacity * dim_ * sizeof(uint16_t)),
        counted_(store, memory_.size()) {
    for (size_t i = 0; i < tables.coded.size(); ++i) slot_[tables.coded[i].layer] = i;
    keys_ = static_cast<uint16_t*>(memory_.data());
    values_ = keys_ + streams_ * capacity_ * dim_;
  }

  void put(uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t h = 0; h < heads_; ++h) {
        const size_t to = at(layer, h, first + t), from = (static_cast<size_t>(t) * heads_ + h) * dim_;
        for (uint32_t c = 0; c < dim_; ++c) {
          keys_[to + c] = f32_to_f16(keys[from + c]);
          values_[to + c] = f32_to_f16(values[from + c]);
        }
      }
    }
  }
  void get(const DeepBlock& block, RowBatch& rows) const {
    const size_t from = at(block.layer, block.head, block.first), n = block.count * dim_;
    rows.keys.resize(n);
    rows.values.resize(n);
    for (size_t i = 0; i < n; ++i) {
      rows.keys[i] = f16_to_f32(keys_[from + i]);
      rows.values[i] = f16_to_f32(values_[from + i]);
    }
  }
  // Tokens before `first` are no longer needed; those up to `end` stay.
  void slide(uint32_t first, uint32_t end) {
    const size_t rows = (end - first) * dim_, from = (first - first_) * dim_;
    for (size_t s = 0; rows && from && s < streams_; ++s) {
      const size_t stream = s * capacity_ * dim_;
      std::memmove(keys_ + stream, keys_ + stream + from, rows * sizeof(uint16_t));
      std::memmove(values_ + stream, values_ + stream + from, rows * sizeof(uint16_t));
    }
    first_ = first;
  }

 private:
  size_t at(uint32_t layer, uint32_t head, uint32_t token) const {
    return ((slot_[layer] * heads_ + head) * capacity_ + (token - first_)) * dim_;
  }
  const size_t heads_, dim_, capacity_, streams_;
  std::vector<size_t> slot_;
  MappedMemory memory_;
  const store::CountedScratch counted_;
  uint16_t* keys_ = nullptr;
  uint16_t* values_ = nullptr;
  uint32_t first_ = 0;
};

// Chunks that are decoded side by side: one for each thread, as far as kMostHeld allows.
uint32_t chunks_at_once(const deep::ArchiveInfo& info, uint32_t chunks, uint32_t threads) {
  const uint64_t bytes = uint64_t{4} * info.layers * info.kv_heads * info.head_dim * info.chunk;
  const uint64_t most = std::max<uint64_t>(1, kMostHeld / bytes);
  return static_cast<uint32_t>(std::min<uint64_t>({chunks, threads, most}));
}

}  // namespace

Status decode_blocks(const StreamEnv& env, const DeepCalibration& calibration, std::span<const std::byte> bytes,
                     const DeepBlocks& blocks, ThreadPool& pool, const SealRows& seal) {
  const ReturnHeapMemory after;
  TIERKV_ASSIGN_OR_RETURN(const deep::Decoder decoder, deep::Decoder::open(bytes, calibration.model_tables(), pool));
  const deep::ArchiveInfo& info = decoder.info();
  uint32_t longest = 0;
  for (const auto& stream : blocks) {
    for (const DeepBlock& block : stream) longest = std::max(longest, block.count);
  }
  const uint32_t step = chunks_at_once(info, decoder.chunks(), pool.threads());
  const uint64_t capacity = std::min<uint64_t>(info.tokens, uint64_t{step} * info.chunk + longest);
  RowWindow window(*env.store, info, *calibration.tables, static_cast<uint32_t>(capacity));
  const deep::WriteRows write = [&](uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
    window.put(layer, first, count, keys, values);
  };
  std::vector<size_t> next(blocks.size(), 0);
  std::atomic<bool> full{false};
  for (uint32_t chunk = 0; chunk < decoder.chunks(); chunk += step) {
    const uint32_t count = std::min(step, decoder.chunks() - chunk);
    TIERKV_RETURN_IF_ERROR(decoder.decode(chunk, count, pool, write));
    const auto end = static_cast<uint32_t>(std::min<uint64_t>(info.tokens, uint64_t{chunk + count} * info.chunk));
    pool.run(static_cast<uint32_t>(blocks.size()), [&](uint32_t s) {
      for (; next[s] < blocks[s].size() && blocks[s][next[s]].first + blocks[s][next[s]].count <= end; ++next[s]) {
        const DeepBlock& block = blocks[s][next[s]];
        RowBatch& rows = scratch_batch();
        window.get(block, rows);
        for (uint32_t i = 0; i < block.count; ++i) rows.positions.push_back(info.first_position + block.first + i);
        rows.stats.assign(static_cast<size_t>(block.count) * env.signals, 0.0f);
        if (full || !seal(block, rows)) {
          full = true;
          return;
        }
      }
    });
    if (full) return error(StatusCode::resource_exhausted, "no memory for the tokens of the deep archive");
    uint32_t needed = end;
    for (size_t s = 0; s < blocks.size(); ++s) {
      if (next[s] < blocks[s].size()) needed = std::min(needed, blocks[s][next[s]].first);
    }
    window.slide(needed, end);
  }
  return {};
}

// --- into new blocks

namespace {

struct Target {
  const CodecEntry* codec = nullptr;
  const CodecEntry* raw = nullptr;
  Tier tier = Tier::archive;
};

Target target_of(const LayerPlan& plan, uint32_t head) {
  if (plan.warm == kAll) return {plan.warm_of(head), plan.raw_warm, Tier::warm};
  return {plan.archive(head), plan.raw_archive, Tier::archive};
}

DeepBlocks new_blocks(const deep::ArchiveInfo& info, const calib::DeepTables& tables, std::span<const LayerPlan> plans) {
  DeepBlocks out;
  for (const calib::DeepLayer& layer : tables.coded) {
    for (uint32_t h = 0; h < info.kv_heads; ++h) {
      const uint32_t most = target_of(plans[layer.layer], h).codec->tokens;
      auto& stream = out.emplace_back();
      for (uint32_t at = 0; at < info.tokens; at += most) {
        stream.push_back({layer.layer, h, at, std::min(most, info.tokens - at), out.size() - 1});
      }
    }
  }
  return out;
}

// Blocks on their way into a sequence; what was not committed goes with the object.
struct Coming {
  const StreamEnv& env;
  std::vector<std::vector<BlockRef>> streams;

  Coming(const StreamEnv& e, const DeepBlocks& blocks) : env(e), streams(blocks.size()) {
    for (size_t i = 0; i < blocks.size(); ++i) streams[i].reserve(blocks[i].size());
  }
  ~Coming() {
    for (auto& stream : streams) {
      for (BlockRef& ref : stream) release_ref(env, ref);
    }
  }
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;

  // All or none. data_loss: a stream has rows there already.
  Status commit(const DeepBlocks& blocks, const deep::ArchiveInfo& info, Sequence& sequence) {
    const uint32_t first = info.first_position, end = first + info.tokens;
    std::vector<size_t> before(streams.size(), 0);
    for (size_t i = 0; i < streams.size(); ++i) {
      HeadStream& s = sequence.heads(blocks[i][0].layer)[blocks[i][0].head];
      size_t& at = before[i];
      while (at < s.blocks.size() && s.blocks[at].first_position < first) ++at;
      const bool clash = (at > 0 && s.blocks[at - 1].position(s.blocks[at - 1].rows - 1u) >= first) ||
                         (at < s.blocks.size() && s.blocks[at].first_position < end) || (s.tail.rows() && s.tail.position(0) < end);
      if (clash)
        return error(StatusCode::data_loss, "the snapshot contradicts itself: tokens of its deep archive are in a stream as well");
      if (!s.blocks.reserve(*env.arena, s.blocks.size() + streams[i].size())) {
        return error(StatusCode::resource_exhausted, "no memory for the tokens of the deep archive");
      }
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      HeadStream& s = sequence.heads(blocks[i][0].layer)[blocks[i][0].head];
      const size_t old = s.blocks.size();
      for (const BlockRef& ref : streams[i]) s.blocks.push_reserved(ref);
      std::rotate(s.blocks.begin() + before[i], s.blocks.begin() + old, s.blocks.begin() + s.blocks.size());
    }
    streams.clear();
    return {};
  }
};

}  // namespace

uint64_t deep_needed_bytes(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                           const calib::DeepTables& tables) {
  const auto info = deep::inspect(snapshot.deep);
  if (!info.ok()) return 0;
  uint64_t total = 0;
  size_t count = 0;
  for (const auto& stream : new_blocks(*info, tables, plans)) {
    const DeepBlock& first = stream[0];
    const Target target = target_of(plans[first.layer], first.head);
    total += stream.size() * env.store->held_bytes(*target.codec, target.tier);
    const size_t had = snapshot.streams[static_cast<size_t>(first.layer) * snapshot.header.kv_heads + first.head].blocks;
    total += Arena::rounded((had + stream.size()) * sizeof(BlockRef));
    count += stream.size();
  }
  return total + env.store->header_bytes_for(count);
}

Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                   const DeepCalibration& calibration, ThreadPool& pool, Sequence& sequence) {
  TIERKV_ASSIGN_OR_RETURN(const deep::ArchiveInfo info, deep::inspect(snapshot.deep));
  const DeepBlocks blocks = new_blocks(info, *calibration.tables, plans);
  Coming coming(env, blocks);
  TIERKV_RETURN_IF_ERROR(decode_blocks(env, calibration, snapshot.deep, blocks, pool, [&](const DeepBlock& block, RowBatch& rows) {
    const Target target = target_of(plans[block.layer], block.head);
    tiers::Making making{&rows, target.codec, target.raw, target.tier, nullptr, block.layer, block.head, nullptr, true, {}};
    tiers::seal(env, {&making, 1}, Arena::Use::normal, attn::in_turn());  // this is a task already
    tiers::copy_behind(env, {&making, 1}, attn::in_turn());
    if (making.made) coming.streams[block.index].push_back(*making.made);
    return making.made.has_value();
  }));
  return coming.commit(blocks, info, sequence);
}

}  // namespace tierkv::snapshot
