// park.cc — an idle sequence gives its memory back: its older tokens become a deep archive under the same name, and blocks again
// when it wakes.
//
// Both ways make what is new before they let go of what was, so that a call that fails has changed nothing.
#include <algorithm>

#include "base/checksum.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "snapshot/deep_part.h"
#include "tiers/parked.h"

namespace tierkv {

using plan::LayerPlan;
using snapshot::DeepCalibration;
using snapshot::DeepPart;
using tiers::BlockRef;
using tiers::HeadStream;
using tiers::Parked;
using tiers::Sequence;

namespace {

constexpr double kDefaultRatio = 20.0;

Status no_room(const Arena& arena, const char* what, uint64_t needed) {
  if (!arena.limit()) return error(StatusCode::resource_exhausted, "the system refused ", needed, " bytes to ", what);
  return error(StatusCode::resource_exhausted, "to ", what, " takes ", needed, " bytes; of byte_budget = ", arena.limit(), " ",
               arena.mapped() - arena.free_bytes(), " are in use");
}

// Blocks of one stream that the deep archive takes the place of: one run of them.
struct Taken {
  HeadStream* stream = nullptr;
  size_t first = 0, count = 0;
};

std::vector<Taken> find_taken(Sequence& sequence, const DeepPart& part, Parked& parked) {
  std::vector<Taken> out;
  parked.warm_from.assign(static_cast<size_t>(sequence.num_layers()) * sequence.kv_heads(), part.end);
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (HeadStream& s : sequence.heads(l)) {
      Taken taken{&s, 0, 0};
      for (size_t i = 0; i < s.blocks.size(); ++i) {
        const BlockRef& ref = s.blocks[i];
        if (!part.covers(l, ref)) continue;
        if (taken.count++ == 0) taken.first = i;
        uint32_t& warm = parked.warm_from[static_cast<size_t>(l) * sequence.kv_heads() + s.head];
        if (ref.block->tier == Tier::warm) warm = std::min(warm, ref.first_position);
      }
      if (taken.count) out.push_back(taken);
    }
  }
  return out;
}

// The packed bytes come into the arena, then the blocks go. False: there is no room for them, nothing was changed.
bool exchange(const tiers::StreamEnv& env, std::span<const std::byte> bytes, std::vector<Taken>& taken, Parked& parked) {
  if (!parked.bytes.store(*env.arena, bytes)) {
    std::vector<tiers::Block*> blocks;
    std::vector<uint32_t> tokens;
    for (const Taken& t : taken) {
      for (size_t i = t.first; i < t.first + t.count; ++i) {
        blocks.push_back(t.stream->blocks[i].block);
        tokens.push_back(blocks.back()->codec->tokens);
      }
    }
    if (!parked.bytes.take_over(*env.arena, bytes, blocks)) return false;
    size_t at = 0;
    for (const Taken& t : taken) {
      for (size_t i = t.first; i < t.first + t.count; ++i, ++at) {
        BlockRef& ref = t.stream->blocks[i];
        if (!blocks[at]) tiers::release_ref_arrays(env, ref, tokens[at]);
        ref.block = blocks[at];
      }
    }
  }
  for (const Taken& t : taken) {
    for (size_t i = t.first; i < t.first + t.count; ++i) {
      if (t.stream->blocks[i].block) tiers::release_ref(env, t.stream->blocks[i]);
    }
    t.stream->blocks.erase(t.first, t.count);
  }
  return true;
}

// Whatever happens, exceptions included: bytes that are nowhere else stay.
struct KeepOnFailure {
  tiers::PackedBytes& packed;
  std::vector<std::byte>& bytes;
  ~KeepOnFailure() {
    if (packed.size() == 0) packed.keep(std::move(bytes));
  }
};

}  // namespace

Result<DeepCalibration> AdaptiveKVCache::Impl::deep_calibration(CalibrationPtr calibration) const {
  DeepCalibration out{std::move(calibration), nullptr};
  if (!out.calibration) {
    return error(StatusCode::failed_precondition,
                 "a deep archive needs the tables of a calibration, and this cache has none; `tierkv calibrate --deep` makes them");
  }
  TIERKV_ASSIGN_OR_RETURN(out.tables, out.calibration->deep_tables());
  return out;
}

Result<DeepPart> AdaptiveKVCache::Impl::pack(const Sequence& sequence, std::span<const LayerPlan> plans,
                                             const DeepCalibration& calibration, DeepOptions options, DeepReport& report) const {
  if (options.ratio == 0.0 && options.quality == 0.0) {
    options.ratio = config.deep.ratio;
    options.quality = config.deep.quality;
    if (options.ratio == 0.0 && options.quality == 0.0) options.ratio = kDefaultRatio;
  }
  const snapshot::DeepRun run = snapshot::find_deep_run(env, sequence, plans, *calibration.tables, options);
  report = DeepReport();
  report.note = run.note;
  if (run.first == run.end) return DeepPart();
  return snapshot::encode_deep(env, sequence, calibration, run, options, config.threads, &report);
}

Status AdaptiveKVCache::park(SeqId seq, const DeepOptions& options, DeepReport* report) try {
  TIERKV_ASSIGN_OR_RETURN(const DeepCalibration calibration, impl_->deep_calibration(impl_->codecs.calibration()));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  return guarded("park a sequence", [&]() -> Status {
    const std::vector<LayerPlan> plans = impl_->all_plans();
    std::lock_guard lock(sequence->mutex);
    TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
    for (uint32_t l = 1; l < sequence->num_layers(); ++l) {
      if (sequence->layer(l).length == sequence->layer(0).length) continue;
      return error(StatusCode::failed_precondition, "sequence ", seq, " cannot be parked in the middle of a token: layer 0 has ",
                   sequence->layer(0).length, " of them and layer ", l, " ", sequence->layer(l).length);
    }
    auto parked = std::make_unique<Parked>();
    TIERKV_ASSIGN_OR_RETURN(DeepPart part, impl_->pack(*sequence, plans, calibration, options, parked->report));
    if (report) *report = parked->report;
    if (part.empty()) return error(StatusCode::failed_precondition, "sequence ", seq, " cannot be parked: ", parked->report.note);
    parked->first = part.first;
    parked->end = part.end;
    parked->layers = part.layers;
    parked->calibration = calibration.calibration;
    parked->checksum = checksum(part.bytes);
    std::vector<Taken> taken = find_taken(*sequence, part, *parked);
    if (!exchange(impl_->env, part.bytes, taken, *parked)) return no_room(*impl_->arena, "park the sequence", part.bytes.size());
    sequence->parked = std::move(parked);
    return {};
  });
}
TIERKV_NO_MEMORY("park a sequence")

// REQUIRES: the sequence's lock is held, it is parked.
Status AdaptiveKVCache::Impl::wake(Sequence& sequence) {
  Parked& parked = *sequence.parked;
  TIERKV_ASSIGN_OR_RETURN(const DeepCalibration calibration, deep_calibration(parked.calibration));
  std::vector<std::byte> bytes = parked.bytes.read();
  TIERKV_ASSIGN_OR_RETURN(const deep::ArchiveInfo info, deep::inspect(bytes));
  std::vector<LayerPlan> plans = all_plans();
  for (uint32_t l = 0; l < plans.size(); ++l) plans[l] = plans[l].at_length(sequence.layer(l).length);
  const snapshot::DeepTarget target{plans, parked.warm_from};
  // Refused before the arena is touched where that can be seen. The packed bytes make room for the last of the blocks.
  const uint64_t needed = snapshot::deep_block_bytes(info, *calibration.tables, target), held = parked.bytes.held();
  const auto refused = [&] { return no_room(*arena, "wake the sequence", needed > held ? needed - held : 0); };
  if (arena->limit() && arena->mapped() - arena->free_bytes() + needed > arena->limit() + held) return refused();
  snapshot::DeepReturn coming(env, target, calibration);
  TIERKV_RETURN_IF_ERROR(coming.decode(bytes, pool.threads()));
  if (coming.seal(pool)) {
    TIERKV_RETURN_IF_ERROR(coming.commit(sequence));
  } else {
    // The packed bytes go first, but only when the blocks made so far can take them back, whatever other threads do with the memory
    // meanwhile.
    if (coming.sealed_bytes() < bytes.size()) return refused();
    const KeepOnFailure keep{parked.bytes, bytes};
    parked.bytes.release();
    const Status status = coming.seal(pool) ? coming.commit(sequence) : refused();
    if (!status.ok()) {
      (void)(parked.bytes.store(*arena, bytes) || coming.hand_over(bytes, parked.bytes));
      return status;
    }
  }
  sequence.parked.reset();
  return {};
}

Result<bool> AdaptiveKVCache::is_parked(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  return sequence->parked != nullptr;
}
TIERKV_NO_MEMORY("look at a sequence")

Status AdaptiveKVCache::wake(SeqId seq) try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  return guarded("wake a sequence", [&]() -> Status {
    std::lock_guard lock(sequence->mutex);
    if (!sequence->parked) return error(StatusCode::failed_precondition, "sequence ", seq, " is not parked");
    return impl_->wake(*sequence);
  });
}
TIERKV_NO_MEMORY("wake a sequence")

}  // namespace tierkv
