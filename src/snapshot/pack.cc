#include "snapshot/pack.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "base/mapped_memory.h"
#include "base/status_macros.h"
#include "snapshot/deep_blocks.h"
#include "store/packed_group.h"
#include "tiers/seal.h"
#include "tiers/summary.h"

namespace tierkv::snapshot {
namespace {

using store::BlockHandle;
using store::PackedGroup;
using store::Unpacking;
using tiers::RowBatch;

Status no_room(const Arena& arena, const char* what, uint64_t needed) {
  if (!arena.limit()) return error(StatusCode::resource_exhausted, "the system refused ", needed, " bytes to ", what);
  return error(StatusCode::resource_exhausted, "to ", what, " takes ", needed, " bytes; of byte_budget = ", arena.limit(), " ",
               arena.mapped() - arena.free_bytes(), " are in use");
}

// What becomes packed: of promoted blocks those below, and the ones that lie over them go.
struct RunBlocks {
  std::vector<BlockHandle*> handles;
  std::vector<BlockRef*> promoted;

  BlockStore::Price price(const BlockStore& store) const {
    BlockStore::Price out = store.price(handles);
    for (const BlockRef* ref : promoted) {
      if (ref->block.references() == 1) out.frees += store.held_bytes(*ref->block.codec(), ref->block.tier());
    }
    return out;
  }
  void drop_promoted(BlockStore& store) const noexcept {
    for (BlockRef* ref : promoted) {
      store.release(ref->block);
      ref->block = std::exchange(ref->base, {});
    }
  }
};

RunBlocks blocks_of_run(Sequence& sequence, const calib::DeepTables& tables, const DeepRun& run) {
  RunBlocks out;
  for (const calib::DeepLayer& layer : tables.coded) {
    for (HeadStream& s : sequence.heads(layer.layer)) {
      for (BlockRef& ref : s.blocks) {
        if (ref.first_position < run.first || ref.first_position >= run.end) continue;
        out.handles.push_back(ref.promoted() ? &ref.base : &ref.block);
        if (ref.promoted()) out.promoted.push_back(&ref);
      }
    }
  }
  return out;
}

Status would_not_shrink(uint64_t takes, uint64_t frees) {
  return error(StatusCode::failed_precondition, "it would not shrink: packed, its tokens take ", takes,
               " bytes, and the blocks that would go give back ", frees, " (blocks that other sequences hold as well stay theirs)");
}

// One group's blocks in the order of their streams.
struct Waking {
  std::vector<BlockHandle*> handles;
  DeepBlocks blocks;
};

Waking find_packed(Sequence& sequence, const PackedGroup& group) {
  Waking out;
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (HeadStream& s : sequence.heads(l)) {
      std::vector<DeepBlock> stream;
      for (BlockRef& ref : s.blocks) {
        if (!ref.block.packed() || ref.block.group() != &group) continue;
        stream.push_back({l, s.head, ref.first_position - group.first, ref.rows, out.handles.size()});
        out.handles.push_back(&ref.block);
      }
      if (!stream.empty()) out.blocks.push_back(std::move(stream));
    }
  }
  return out;
}

Status decode_group(const StreamEnv& env, Unpacking& unpacking, const Waking& waking, CodecSet& codecs, ThreadPool& pool) {
  TIERKV_ASSIGN_OR_RETURN(const DeepCalibration calibration, deep_calibration(unpacking.group().calibration));
  TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair raw_pair, quant::parse_codec_pair(env.hot_bf16 ? "bf16" : "fp16"));
  std::vector<const CodecEntry*> raw;
  for (const BlockHandle* block : waking.handles) {
    TIERKV_ASSIGN_OR_RETURN(const CodecEntry* entry, codecs.get(raw_pair, block->codec()->tokens));
    raw.push_back(entry);
  }
  return decode_blocks(env, calibration, unpacking.bytes(), waking.blocks, pool, [&](const DeepBlock& block, RowBatch& rows) {
    const size_t i = block.index;
    const CodecEntry* codec = waking.handles[i]->codec();
    const auto allocate = [&](const CodecEntry& entry) {
      return unpacking.allocate(i, entry) ? tiers::room_of(unpacking.payload(i)) : tiers::BlockRoom();
    };
    tiers::Coding coding{
        &rows, {codec, codec->fallback, raw[i]}, {block.layer, block.head, rows.positions[0], nullptr}, {}, nullptr};
    if (!tiers::pad_rows(env, rows, *codec, coding.ctx)) return false;
    coding.allocate = std::cref(allocate);
    tiers::encode_rows(env, {&coding, 1}, attn::in_turn());
    return coding.took && unpacking.sealed(i);
  });
}

// Waking gives each block its tier back, but loading archives the whole group.
bool behind_warm_tokens(const Sequence& sequence, std::span<const LayerPlan> plans, const PackedGroup& group) {
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    if (plans[l].warm == kAll) continue;
    for (const HeadStream& s : sequence.heads(l)) {
      bool warm = false;
      for (const BlockRef& ref : s.blocks) {
        if (!ref.block.packed()) warm |= ref.block.tier() == Tier::warm;
        else if (ref.block.group() == &group) return warm;
      }
    }
  }
  return false;
}

}  // namespace

Status pack(const StreamEnv& env, Sequence& sequence, std::span<const LayerPlan> plans, const DeepCalibration& calibration,
            const DeepOptions& options, uint32_t threads, DeepReport& report) {
  const ReturnHeapMemory after;
  const DeepRun run = find_deep_run(env, sequence, plans, *calibration.tables, options);
  report = DeepReport();
  report.note = run.note;
  if (run.first == run.end) return error(StatusCode::failed_precondition, run.note);
  const RunBlocks blocks = blocks_of_run(sequence, *calibration.tables, run);
  for (const BlockHandle* block : blocks.handles) {
    if (!block->spilled()) continue;
    return error(StatusCode::failed_precondition,
                 "some of its blocks are in the cold file (spill): they take less than packed ones");
  }
  if (blocks.price(*env.store).frees == 0) {  // seen without encoding anything
    return error(
        StatusCode::failed_precondition,
        "it would not shrink: its blocks give back 0 bytes (other sequences hold all of them as well), and packed its tokens "
        "take some");
  }
  auto group = std::make_unique<PackedGroup>();
  TIERKV_ASSIGN_OR_RETURN(const DeepPart part, encode_deep(env, sequence, calibration, run, options, threads, &report));
  const BlockStore::Price price = blocks.price(*env.store);
  const uint64_t takes = Arena::rounded(part.bytes.size()) + price.headers;
  if (takes >= price.frees) return would_not_shrink(takes, price.frees);
  group->first = run.first;
  group->end = run.end;
  group->calibration = calibration.calibration;
  group->report = report;
  sequence.packed.reserve(sequence.packed.size() + 1);
  const PackedGroup* const made = group.get();
  if (!env.store->pack(blocks.handles, std::move(group), part.bytes))
    return no_room(*env.arena, "park the sequence", part.bytes.size());
  blocks.drop_promoted(*env.store);
  const auto behind =
      std::find_if(sequence.packed.begin(), sequence.packed.end(), [&](const PackedGroup* g) { return g->first > run.first; });
  sequence.packed.insert(behind, made);
  return {};
}

Status unpack(const StreamEnv& env, Sequence& sequence, CodecSet& codecs, ThreadPool& pool, uint64_t& needed) {
  Arena& arena = *env.arena;
  std::vector<Waking> waking;
  uint64_t takes = 0, held = 0;
  for (const PackedGroup* group : sequence.packed) {
    waking.push_back(find_packed(sequence, *group));
    for (const BlockHandle* block : waking.back().handles) takes += env.store->held_bytes(*block->codec(), block->tier());
    held += group->held();
  }
  const auto refused = [&] {
    needed = takes > held ? takes - held : 1;
    return no_room(arena, "wake the sequence", needed);
  };
  // Refused before the arena is touched where that can be seen. The packed bytes make room for the last of the blocks.
  if (arena.limit() && arena.mapped() - arena.free_bytes() + takes > arena.limit() + held) return refused();
  std::vector<std::unique_ptr<Unpacking>> groups;
  for (const Waking& w : waking) {
    groups.push_back(std::make_unique<Unpacking>(*env.store, w.handles));
    const Status status = decode_group(env, *groups.back(), w, codecs, pool);
    if (status.code() == StatusCode::resource_exhausted) return refused();
    TIERKV_RETURN_IF_ERROR(status);
  }
  for (const auto& group : groups) group->commit();
  sequence.packed.clear();
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (const HeadStream& s : sequence.heads(l)) {
      for (const BlockRef& ref : s.blocks) {
        if (ref.block.resident() && ref.block.references() == 1 && !tiers::summary_of(env, ref.block))
          tiers::summarise(env, ref.block, ref, s.layer, s.head);
      }
    }
  }
  return {};
}

Result<DeepPart> packed_part(const Sequence& sequence, std::span<const LayerPlan> plans) {
  if (sequence.packed.size() > 1) {
    return error(StatusCode::failed_precondition, "the sequence is packed in ", sequence.packed.size(),
                 " parts, and a snapshot holds one: wake() it first");
  }
  const PackedGroup& group = *sequence.packed[0];
  if (behind_warm_tokens(sequence, plans, group)) {
    return error(StatusCode::failed_precondition,
                 "the tokens before the packed ones are not archived yet, and a snapshot would archive these before those: wake() "
                 "it first");
  }
  DeepPart part;
  part.calibration = group.calibration->id();
  part.bytes = group.read();
  if (!group.intact()) {
    return error(StatusCode::data_loss, "the parked tokens changed in memory since they were packed; nothing is saved");
  }
  return part;
}

}  // namespace tierkv::snapshot
