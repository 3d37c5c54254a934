// snapshot.cc — save, load, freeze, unfreeze and inspect: the checked picture of a file becomes a sequence, whole or not at all.
#include "cache/snapshot.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/checksum.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cache/deep_snapshot.h"
#include "cache/guarded.h"
#include "cache/impl.h"
#include "cache/parked.h"
#include "deep/archive.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace cache {
namespace {

// Which of the file's statistics goes where: to[i] is the cache's slot for the file's i-th lane, -1 when the cache does not keep
// it.
struct LaneMap {
  std::vector<int> to;
  uint32_t lanes = 0;  // the cache's

  LaneMap(uint32_t file_mask, const int* lane_slot, uint32_t cache_lanes) : lanes(cache_lanes) {
    for (int lane = 0; lane < policy::kNumLanes; ++lane) {
      if (file_mask >> lane & 1u) to.push_back(lane_slot[lane]);
    }
  }
  void copy(std::span<const std::byte> from, size_t rows, float* out) const {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < to.size(); ++i) {
        if (to[i] < 0) continue;
        std::memcpy(out + row * lanes + static_cast<size_t>(to[i]), from.data() + (row * to.size() + i) * sizeof(float),
                    sizeof(float));
      }
    }
  }
};

struct Building {
  const StreamEnv& env;
  const Snapshot& snapshot;
  LaneMap lanes;
  std::unordered_map<const CodecEntry*, const CodecEntry*> codecs;  // the file's -> the cache's
};

bool build_block(const Building& b, const SnapshotBlock& from, BlockRef& ref) {
  const CodecEntry& codec = *b.codecs.at(from.codec);
  if (!allocate_ref_arrays(b.env, ref, codec.tokens, !from.positions.empty(), Arena::Use::normal)) return false;
  ref.block = Block::allocate(*b.env.arena, codec, from.tier, Arena::Use::normal);
  if (!ref.block) {
    release_ref_arrays(b.env, ref, codec.tokens);
    return false;
  }
  Block& block = *ref.block;
  std::memset(block.key_data(), 0, block.data_bytes());
  std::memcpy(block.key_data(), from.keys.data(), from.keys.size());
  std::memcpy(block.value_data(), from.values.data(), from.values.size());
  block.checksum = from.checksum;
  block.source = from.source ? b.codecs.at(from.source) : nullptr;
  ref.first_position = from.first_position;
  ref.rows = from.rows;
  ref.live = from.live;
  if (ref.positions) std::memcpy(ref.positions, from.positions.data(), from.positions.size());
  if (ref.stats) b.lanes.copy(from.stats, from.rows, ref.stats);
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
  if (b.env.lanes && from.tail_rows) b.lanes.copy(from.stats, from.tail_rows, tail.stats_row(0));
  return true;
}

bool build_stream(const Building& b, const SnapshotStream& from, HeadStream& s) {
  if (!s.blocks.reserve(*b.env.arena, from.blocks)) return false;
  for (uint32_t i = 0; i < from.blocks; ++i) {
    BlockRef ref;
    if (!build_block(b, b.snapshot.blocks[from.first_block + i], ref)) return false;
    s.blocks.push_reserved(ref);
  }
  return build_tail(b, from, s.tail);
}

}  // namespace

Result<std::shared_ptr<Sequence>> build_sequence(const StreamEnv& env, CodecBook& book, const int* lane_slot,
                                                 const Snapshot& snapshot) {
  Building b{env, snapshot, LaneMap(snapshot.header.lane_mask, lane_slot, env.lanes), {}};
  for (const SnapshotBlock& block : snapshot.blocks) {
    for (const CodecEntry* entry : {block.codec, block.source}) {
      if (!entry || b.codecs.contains(entry)) continue;
      TIERKV_ASSIGN_OR_RETURN(b.codecs[entry], book.get(entry->pair, entry->tokens, entry->layer, entry->head));
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
      s.tail.configure(env.head_dim, env.lanes, from.ring);
      if (!build_stream(b, snapshot.streams[static_cast<size_t>(l) * snapshot.header.kv_heads + h], s))
        return std::shared_ptr<Sequence>();
    }
  }
  return sequence;
}

uint64_t needed_bytes(const StreamEnv& env, const Snapshot& snapshot) {
  const auto list = [](uint64_t count, size_t size) { return Arena::rounded(count * size); };
  const uint64_t stat_bytes = env.lanes * sizeof(float);
  uint64_t total = Arena::rounded(snapshot.layers.size() * sizeof(LayerState) + snapshot.streams.size() * sizeof(HeadStream));
  for (const SnapshotBlock& b : snapshot.blocks) {
    total += Arena::rounded(Block::total_bytes(*b.codec)) + list(b.codec->tokens, stat_bytes);
    if (!b.positions.empty()) total += list(b.codec->tokens, sizeof(uint32_t));
  }
  for (const SnapshotStream& s : snapshot.streams) {
    const uint32_t rows = std::max(s.tail_rows, s.ring_capacity);
    if (rows) total += Arena::rounded(TailBuffer::total_bytes(rows, env.head_dim));
    total += list(s.blocks, sizeof(BlockRef)) + list(s.positions.size(), 1) + list(s.tail_rows, stat_bytes);
  }
  return total;
}

}  // namespace cache

namespace {

using cache::guarded;
using cache::LayerPlan;
using cache::Snapshot;
using cache::SnapshotHeader;

constexpr uint64_t kMaxFileBytes = std::numeric_limits<int64_t>::max();

uint32_t lane_mask(const AdaptiveKVCache::Impl& impl) { return impl.policy ? impl.policy->lanes() : 0; }

Status in_file(const std::string& path, const Status& status) {
  return Status(status.code(), quote(path) + ": " + status.message());
}

Status check_model(const SnapshotHeader& file, const AdaptiveKVCache::Impl& impl) {
  const CacheConfig& c = impl.config;
  const auto differs = [](const char* what, const auto& in_file, const auto& here) {
    return error(StatusCode::invalid_argument, "the snapshot is of another shape: ", what, " is ", in_file, " in it and ", here,
                 " in this cache");
  };
  if (file.layers != c.num_layers) return differs("num_layers", file.layers, c.num_layers);
  if (file.kv_heads != c.num_kv_heads) return differs("num_kv_heads", file.kv_heads, c.num_kv_heads);
  if (file.head_dim != c.head_dim) return differs("head_dim", file.head_dim, c.head_dim);
  if (file.hot_bf16 != impl.env.hot_bf16) return differs("hot_type", file.hot_bf16 ? "bf16" : "fp16", c.hot_type);
  if (!file.model.empty() && !c.model.empty() && file.model != c.model) return differs("model", quote(file.model), quote(c.model));
  return {};
}

Status check_layers(const Snapshot& file, std::span<const LayerPlan> plans, const AdaptiveKVCache::Impl& impl) {
  for (size_t l = 0; l < plans.size(); ++l) {
    const cache::SnapshotLayer& layer = file.layers[l];
    if (layer.window != plans[l].window) {
      return error(StatusCode::invalid_argument, "the snapshot's layer ", l, " has a window of ", layer.window,
                   ", this cache's of ", plans[l].window, " (0: full attention)");
    }
    if (layer.ring != plans[l].ring) {
      return error(StatusCode::invalid_argument, "the snapshot's layer ", l,
                   layer.ring ? " is a ring of its window" : " is in tiers", ", this cache's ",
                   plans[l].ring ? "is a ring of its window" : "is in tiers", "; a window of ", layer.window,
                   " is a ring when hot is at least as long");
    }
    if (impl.config.max_seq_len && !impl.policy && layer.length > impl.config.max_seq_len) {
      return error(StatusCode::resource_exhausted, "the snapshot's layer ", l, " has ", layer.length, " tokens and max_seq_len is ",
                   impl.config.max_seq_len, "; raise max_seq_len or set eviction.policy");
    }
  }
  return {};
}

Status no_room(const Arena& arena, uint64_t needed) {
  return error(StatusCode::resource_exhausted, "the snapshot needs ", needed, " bytes; of byte_budget = ", arena.limit(), " ",
               arena.mapped() - arena.free_bytes(), " are in use");
}

Result<std::shared_ptr<cache::Sequence>> thaw(AdaptiveKVCache::Impl& impl, std::span<const std::byte> bytes) {
  TIERKV_ASSIGN_OR_RETURN(SnapshotHeader header, cache::read_header(bytes));
  TIERKV_RETURN_IF_ERROR(check_model(header, impl));
  TIERKV_ASSIGN_OR_RETURN(Snapshot snapshot, cache::read_body(bytes, std::move(header), impl.book.calibration()));
  std::vector<LayerPlan> plans = impl.all_plans();
  TIERKV_RETURN_IF_ERROR(check_layers(snapshot, plans, impl));
  for (size_t l = 0; l < plans.size(); ++l) plans[l] = plans[l].at_length(snapshot.layers[l].length);
  for (cache::SnapshotLayer& layer : snapshot.layers) layer.window_queries %= impl.config.eviction.observation;
  // Refused before the arena is touched where that can be seen, so that not even its peak moves.
  uint64_t needed = cache::needed_bytes(impl.env, snapshot);
  cache::DeepCalibration deep;
  if (snapshot.header.deep) {
    TIERKV_ASSIGN_OR_RETURN(deep, impl.deep_calibration(impl.book.calibration()));
    needed += cache::deep_needed_bytes(snapshot, plans, *deep.tables);
  }
  Arena& arena = *impl.arena;
  const size_t mapped = arena.mapped();
  if (arena.limit() && mapped - arena.free_bytes() + needed > arena.limit()) return no_room(arena, needed);
  TIERKV_ASSIGN_OR_RETURN(auto sequence, cache::build_sequence(impl.env, impl.book, impl.lane_slot, snapshot));
  if (!sequence) {
    if (arena.mapped() > mapped) arena.trim();
    return no_room(arena, needed);
  }
  if (snapshot.header.deep) {
    const Status inserted = cache::insert_deep(impl.env, snapshot, plans, deep, impl.pool, *sequence);
    if (!inserted.ok()) {
      sequence.reset();
      if (arena.mapped() > mapped) arena.trim();
      return inserted.code() == StatusCode::resource_exhausted ? no_room(arena, needed) : inserted;
    }
  }
  return sequence;
}

// What is parked is a deep archive already. REQUIRES: the sequence's lock is held.
Result<std::vector<std::byte>> write_parked(const AdaptiveKVCache::Impl& impl, const cache::Sequence& sequence,
                                            std::span<const LayerPlan> plans, const cache::SnapshotShape& shape) {
  const cache::Parked& parked = *sequence.parked;
  const cache::DeepPart part{parked.first, parked.end, parked.layers, parked.calibration->id(), parked.bytes.read()};
  if (checksum(part.bytes) != parked.checksum) {
    return error(StatusCode::data_loss, "the parked tokens changed in memory since they were packed; nothing is saved");
  }
  return cache::write_snapshot(impl.env, sequence, plans, shape, &part);
}

}  // namespace

Result<std::vector<std::byte>> AdaptiveKVCache::freeze(SeqId seq) const {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  return guarded("write a snapshot", [&]() -> Result<std::vector<std::byte>> {
    const std::vector<LayerPlan> plans = impl_->all_plans();
    const cache::SnapshotShape shape{lane_mask(*impl_), impl_->env.hot_bf16, impl_->config.model};
    std::lock_guard lock(sequence->mutex);
    if (sequence->parked) return write_parked(*impl_, *sequence, plans, shape);
    return cache::write_snapshot(impl_->env, *sequence, plans, shape);
  });
}

Result<std::vector<std::byte>> AdaptiveKVCache::freeze(SeqId seq, const DeepOptions& options, DeepReport* report) const {
  TIERKV_ASSIGN_OR_RETURN(const cache::DeepCalibration calibration, impl_->deep_calibration(impl_->book.calibration()));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  return guarded("write a snapshot", [&]() -> Result<std::vector<std::byte>> {
    const std::vector<LayerPlan> plans = impl_->all_plans();
    const cache::SnapshotShape shape{lane_mask(*impl_), impl_->env.hot_bf16, impl_->config.model};
    std::lock_guard lock(sequence->mutex);
    if (sequence->parked) {
      if (report) *report = sequence->parked->report;
      return write_parked(*impl_, *sequence, plans, shape);
    }
    DeepReport made;
    TIERKV_ASSIGN_OR_RETURN(const cache::DeepPart part, impl_->pack(*sequence, plans, calibration, options, made));
    if (report) *report = made;
    return cache::write_snapshot(impl_->env, *sequence, plans, shape, part.empty() ? nullptr : &part);
  });
}

Result<SeqId> AdaptiveKVCache::unfreeze(std::span<const std::byte> bytes) {
  return guarded("read a snapshot", [&]() -> Result<SeqId> {
    TIERKV_ASSIGN_OR_RETURN(auto sequence, thaw(*impl_, bytes));
    return impl_->adopt(std::move(sequence));
  });
}

Status AdaptiveKVCache::save(SeqId seq, const std::string& path) const {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, freeze(seq));
  return write_file_atomic(path, bytes);
}

Status AdaptiveKVCache::save(SeqId seq, const std::string& path, const DeepOptions& options, DeepReport* report) const {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, freeze(seq, options, report));
  return write_file_atomic(path, bytes);
}

Result<SeqId> AdaptiveKVCache::load(const std::string& path) {
  return guarded("read a snapshot", [&]() -> Result<SeqId> {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMaxFileBytes));
    auto loaded = unfreeze(bytes);
    if (!loaded.ok()) return in_file(path, loaded.status());
    return loaded;
  });
}

Result<SnapshotInfo> inspect_snapshot(std::span<const std::byte> bytes, const CalibrationPtr& calibration) {
  return guarded("read a snapshot", [&]() -> Result<SnapshotInfo> {
    TIERKV_ASSIGN_OR_RETURN(SnapshotHeader header, cache::read_header(bytes));
    TIERKV_ASSIGN_OR_RETURN(const Snapshot snapshot, cache::read_body(bytes, std::move(header), calibration));
    const SnapshotHeader& h = snapshot.header;
    SnapshotInfo info;
    info.version = h.version;
    info.min_reader = h.min_reader;
    info.model = h.model;
    info.calibration = h.calibration;
    info.num_layers = h.layers;
    info.num_kv_heads = h.kv_heads;
    info.head_dim = h.head_dim;
    info.hot_type = h.hot_bf16 ? "bf16" : "fp16";
    info.length = snapshot.layers[0].length;
    for (const cache::SnapshotLayer& layer : snapshot.layers) info.length = std::min(info.length, layer.length);
    info.eviction_lanes = h.lane_mask;
    info.file_bytes = h.file_bytes;
    info.blocks = snapshot.blocks.size();
    for (const cache::SnapshotBlock& b : snapshot.blocks) {
      info.tier[static_cast<int>(b.tier)].tokens += b.live;
      info.tier[static_cast<int>(b.tier)].bytes += b.keys.size() + b.values.size();
    }
    for (const cache::SnapshotStream& s : snapshot.streams) {
      info.tier[static_cast<int>(Tier::hot)].tokens += s.tail_rows;
      info.tier[static_cast<int>(Tier::hot)].bytes += s.keys.size() + s.values.size();
    }
    if (h.deep) {
      TIERKV_ASSIGN_OR_RETURN(const deep::ArchiveInfo deep, deep::inspect(snapshot.deep));
      info.deep_tokens = deep.tokens;
      info.deep_first_position = deep.first_position;
      info.deep_layers = deep.layers;
      info.deep_bytes = deep.bytes;
    }
    for (const cache::CodecEntry* entry : snapshot.codecs) {
      info.codecs.push_back(quant::to_string(entry->pair) + " x" + std::to_string(entry->tokens));
    }
    return info;
  });
}

Result<SnapshotInfo> inspect_snapshot(const std::string& path, const CalibrationPtr& calibration) {
  return guarded("read a snapshot", [&]() -> Result<SnapshotInfo> {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, kMaxFileBytes));
    auto info = inspect_snapshot(std::span<const std::byte>(bytes), calibration);
    if (!info.ok()) return in_file(path, info.status());
    return info;
  });
}

}  // namespace tierkv
