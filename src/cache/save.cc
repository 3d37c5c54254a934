// save.cc — save, load, freeze and unfreeze: a sequence as bytes and back, whole or not at all.
#include "base/file.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cache/impl.h"
#include "cache/pressure.h"
#include "cache/thaw.h"
#include "snapshot/deep_blocks.h"
#include "snapshot/pack.h"
#include "snapshot/snapshot.h"
#include "store/packed_group.h"
#include "tierkv/snapshot.h"

namespace tierkv {

using plan::LayerPlan;
using snapshot::Snapshot;
using snapshot::SnapshotHeader;

namespace cache {

uint32_t signal_mask(const AdaptiveKVCache::Impl& impl) {
  uint32_t mask = 0;
  for (int signal = 0; signal < policy::kNumSignals; ++signal) mask |= impl.signal_slot[signal] >= 0 ? 1u << signal : 0u;
  return mask;
}

snapshot::SnapshotShape snapshot_shape(const AdaptiveKVCache::Impl& impl) {
  return {signal_mask(impl), impl.env.hot_bf16, impl.config.model};
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

namespace {

Status check_layers(const Snapshot& file, std::span<const LayerPlan> plans, const AdaptiveKVCache::Impl& impl) {
  for (size_t l = 0; l < plans.size(); ++l) {
    const snapshot::SnapshotLayer& layer = file.layers[l];
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

}  // namespace

Result<std::shared_ptr<tiers::Sequence>> build(AdaptiveKVCache::Impl& impl, Snapshot& snapshot, uint64_t& lacks) {
  std::vector<uint32_t> lengths;
  for (const snapshot::SnapshotLayer& layer : snapshot.layers) lengths.push_back(layer.length);
  const std::vector<LayerPlan> plans = impl.planner->all(lengths);
  TIERKV_RETURN_IF_ERROR(check_layers(snapshot, plans, impl));
  for (snapshot::SnapshotLayer& layer : snapshot.layers) layer.window_queries %= impl.config.eviction.observation;
  // Refused before the arena is touched where that can be seen, so that not even its peak moves.
  uint64_t needed = snapshot::needed_bytes(impl.env, snapshot);
  snapshot::DeepCalibration deep;
  if (snapshot.header.deep) {
    TIERKV_ASSIGN_OR_RETURN(deep, snapshot::deep_calibration(impl.codecs.calibration()));
    needed += snapshot::deep_needed_bytes(impl.env, snapshot, plans, *deep.tables);
  }
  lacks = needed;
  Arena& arena = *impl.arena;
  const size_t mapped = arena.mapped();
  if (arena.limit() && mapped - arena.free_bytes() + needed > arena.limit()) return no_room(arena, needed);
  TIERKV_ASSIGN_OR_RETURN(auto sequence, snapshot::build_sequence(impl.env, impl.codecs, impl.signal_slot, snapshot));
  if (!sequence) {
    if (arena.mapped() > mapped) arena.trim();
    return no_room(arena, needed);
  }
  if (snapshot.header.deep) {
    const Status inserted = snapshot::insert_deep(impl.env, snapshot, plans, deep, impl.pool, *sequence);
    if (!inserted.ok()) {
      sequence.reset();
      if (arena.mapped() > mapped) arena.trim();
      return inserted.code() == StatusCode::resource_exhausted ? no_room(arena, needed) : inserted;
    }
  }
  impl.follow_archive(*sequence);
  return sequence;
}

}  // namespace cache

namespace {

Result<std::shared_ptr<tiers::Sequence>> thaw(AdaptiveKVCache::Impl& impl, std::span<const std::byte> bytes, uint64_t& lacks) {
  TIERKV_ASSIGN_OR_RETURN(SnapshotHeader header, snapshot::read_header(bytes));
  TIERKV_RETURN_IF_ERROR(cache::check_model(header, impl));
  TIERKV_ASSIGN_OR_RETURN(Snapshot snapshot, snapshot::read_body(bytes, std::move(header), impl.codecs.calibration()));
  return cache::build(impl, snapshot, lacks);
}

// What is parked is a deep archive already. REQUIRES: the sequence's lock is held.
Result<std::vector<std::byte>> write_parked(const AdaptiveKVCache::Impl& impl, const tiers::Sequence& sequence,
                                            std::span<const LayerPlan> plans, const snapshot::SnapshotShape& shape) {
  TIERKV_ASSIGN_OR_RETURN(const snapshot::DeepPart part, snapshot::packed_part(sequence, plans));
  return snapshot::write_snapshot(impl.env, sequence, plans, shape, &part);
}

}  // namespace

Result<std::vector<std::byte>> AdaptiveKVCache::freeze(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const snapshot::SnapshotShape shape = cache::snapshot_shape(*impl_);
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_whole(seq, *sequence));
  impl_->follow_archive(*sequence);
  const std::vector<LayerPlan> plans = impl_->plans_of(*sequence);
  if (!sequence->packed.empty()) return write_parked(*impl_, *sequence, plans, shape);
  return snapshot::write_snapshot(impl_->env, *sequence, plans, shape);
}
TIERKV_NO_MEMORY("write a snapshot")

Result<std::vector<std::byte>> AdaptiveKVCache::freeze(SeqId seq, const DeepOptions& options, DeepReport* report) const try {
  TIERKV_ASSIGN_OR_RETURN(const snapshot::DeepCalibration calibration, snapshot::deep_calibration(impl_->codecs.calibration()));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const snapshot::SnapshotShape shape = cache::snapshot_shape(*impl_);
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_whole(seq, *sequence));
  impl_->follow_archive(*sequence);
  const std::vector<LayerPlan> plans = impl_->plans_of(*sequence);
  if (!sequence->packed.empty()) {
    if (report) *report = sequence->packed[0]->report;
    return write_parked(*impl_, *sequence, plans, shape);
  }
  DeepReport made;
  TIERKV_ASSIGN_OR_RETURN(
      const snapshot::DeepPart part,
      snapshot::encode_deep(impl_->env, *sequence, plans, calibration, impl_->deep_options(options), impl_->config.threads, made));
  if (report) *report = made;
  return snapshot::write_snapshot(impl_->env, *sequence, plans, shape, part.empty() ? nullptr : &part);
}
TIERKV_NO_MEMORY("write a snapshot")

Result<SeqId> AdaptiveKVCache::unfreeze(std::span<const std::byte> bytes) {
  return cache::with_pressure(*impl_, 0, [&](uint64_t& needed) {
    return guarded("read a snapshot", [&]() -> Result<SeqId> {
      TIERKV_ASSIGN_OR_RETURN(auto sequence, thaw(*impl_, bytes, needed));
      return impl_->adopt(std::move(sequence));
    });
  });
}

Status AdaptiveKVCache::save(SeqId seq, const std::string& path) const try {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, freeze(seq));
  return write_file_atomic(path, bytes);
}
TIERKV_NO_MEMORY("save a snapshot")

Status AdaptiveKVCache::save(SeqId seq, const std::string& path, const DeepOptions& options, DeepReport* report) const try {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, freeze(seq, options, report));
  return write_file_atomic(path, bytes);
}
TIERKV_NO_MEMORY("save a snapshot")

Result<SeqId> AdaptiveKVCache::load(const std::string& path) {
  return guarded("read a snapshot", [&]() -> Result<SeqId> {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, snapshot::kMaxFileBytes));
    auto loaded = unfreeze(bytes);
    if (!loaded.ok()) return snapshot::in_file(path, loaded.status());
    return loaded;
  });
}

}  // namespace tierkv
