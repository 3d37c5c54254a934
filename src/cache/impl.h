// impl.h — the conductor's own state, shared by the files that make up AdaptiveKVCache:
//   cache.cc      create, sequences, get, truncate, flush
//   append.cc     rows in, graduation, room (appending.h); append_many.cc: of many sequences; append_there.cc: a device's
//   attend.cc     views out, attention, observation
//   evict.cc      budgets and policies
//   adapt.cc      calibrations, quality feedback and thresholds, all of which the planner takes
//   fallback.h    the archive of a model that nobody knows, chosen by its rows
//   learning.h    the model's tables, learned from what goes by; wait.cc: what waits for them, and when it no longer can
//   memory.cc     resident bytes
//   save.cc       save, load, freeze, unfreeze; runs.cc: the same in pieces
//   park.cc       park, wake
//   promote.cc    promote, demote, the cold file
//   spill.cc      archive blocks to the file; attend_spilled.h: their part in attention
//   skip_blocks.h blocks in memory that a decoding step leaves unread; choose_blocks.h: which, of these and those in the file
//   step_graph.h  steps of decoding that are launched as graphs
//   away.cc       who attends, and blocks that only a device has
//   pressure.h    calls that lack memory, tried again
//
// Locks, outermost first: a sequence's mutex, or that of tables being replaced and then the planner's writers' (never both); the
// map's mutex, the planner's leaf, the codec set's, the handler's, learning's, the store's, the cold file's and the arena's are
// leaves and never held while another is taken or a file is read (the sequence map is read, a shared_ptr copied out, and the map
// let go).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "cache/fallback.h"
#include "cache/learning.h"
#include "cache/read_counts.h"
#include "config/skip_mode.h"
#include "config/spill_mode.h"
#include "plan/planner.h"
#include "policy/policy.h"
#include "quant/codec_set.h"
#include "store/block_store.h"
#include "tierkv/cache.h"
#include "tiers/sequence.h"

namespace tierkv {

namespace cache {
class CacheStep;  // step_graph.cc
}

struct AdaptiveKVCache::Impl {
  explicit Impl(const CacheConfig& c) : config(c), codecs(c.head_dim), pool(c.threads) {}

  CacheConfig config;
  quant::CodecSet codecs;
  std::unique_ptr<plan::Planner> planner;  // set by create()
  std::unique_ptr<Arena> arena;            // outlives the cold file, that the store, and that the sequences below
  std::unique_ptr<store::ColdFile> cold;   // or null
  std::unique_ptr<store::BlockStore> store;
  tiers::StreamEnv env;
  std::shared_ptr<const attn::Backend> backend;  // keeps env.backend; null: the processor
  tiers::Moves moves;
  ThreadPool pool;
  const Executor pool_executor = [this](uint32_t count, const std::function<void(uint32_t)>& task) { pool.run(count, task); };
  std::unique_ptr<policy::EvictionPolicy> policy;  // null: none
  config::SpillMode spill;
  config::SkipMode skip;
  mutable cache::ReadCounts spill_counts, skip_counts;
  int signal_slot[policy::kNumSignals] = {-1, -1, -1, -1, -1, -1};
  bool only_totals = false;  // nothing is kept of tokens but what they received in all
  std::vector<bool> places;  // by layer: its archive keeps some rows better, or will with tables, and asks for their mass
  size_t largest_block = 0;  // bytes of the largest that any sequence gets, its lists included

  mutable std::mutex map_mutex;
  std::map<SeqId, std::shared_ptr<tiers::Sequence>> sequences;
  SeqId next_id = 1;

  mutable std::mutex pressure_mutex;                // a leaf
  std::shared_ptr<const PressureHandler> pressure;  // or null

  std::atomic<cache::CacheStep*> recording{nullptr};  // a step that calls on captured streams are recorded in

  cache::QueryPower query_power;

  cache::Learning learning;  // the last: its thread uses the planner

  // --- helpers
  // Asks the handler; false: there is none, or it has no more to give. REQUIRES: no lock is held.
  bool make_others_room(SeqId seq, uint64_t needed, uint32_t attempt);
  Result<std::shared_ptr<tiers::Sequence>> find(SeqId seq) const;
  // The one with the smallest id above `last`, which becomes its id; null: there is none.
  std::shared_ptr<tiers::Sequence> sequence_after(SeqId& last) const noexcept;
  Result<SeqId> adopt(std::shared_ptr<tiers::Sequence> sequence);
  Status check_layer(uint32_t layer) const;
  // failed_precondition when it is parked; what check_whole() says. REQUIRES, of all three: its lock is held.
  Status check_awake(SeqId seq, const tiers::Sequence& sequence) const;
  Status check_unpacked(SeqId seq, const tiers::Sequence& sequence) const;
  // invalid_argument, io_error: rows that came from a device's memory are not finite or were lost, which shows when they land.
  Status check_whole(SeqId seq, const tiers::Sequence& sequence) const;
  // The bytes are those that were sealed, in memory or in the cold file; packed ones have none.
  bool intact(tiers::BlockHandle block) const;
  // Of every layer at its length. REQUIRES: the sequence's lock is held.
  std::vector<plan::LayerPlan> plans_of(const tiers::Sequence& sequence) const;

  // wait.cc; none with a lock held
  // Nothing waits for tables any longer, and the archive there is takes what did. False: nothing waited.
  bool end_waiting() noexcept;
  void settle_once() noexcept;
  // The same before `tokens` more of a layer would leave a byte_budget without the room that archiving takes.
  void keep_room_to_archive(uint32_t tokens) noexcept;

  // fallback.h
  // The layer's archive, if its rows choose it and a block of them is due; `plan` becomes what it is then. REQUIRES: the
  // sequence's lock is held.
  void choose_archive(const tiers::Sequence& seq, uint32_t layer, plan::LayerPlan& plan) noexcept;
  // Layers that have not chosen yet go on as this sequence's newest archive blocks are, or as without a choice. REQUIRES: its lock
  // is held, or nobody else has it yet.
  void follow_archive(const tiers::Sequence& seq) noexcept;

  // park.cc
  // These options, or the configuration's where they name no target.
  DeepOptions deep_options(DeepOptions options) const;

  // spill.cc
  // Archive blocks go to the cold file, the call's sequence's first. False: none could; `file` is what the file said, if it was its
  // fault. REQUIRES: no lock is held.
  bool make_room_by_spilling(SeqId seq, uint64_t needed, Status& file) noexcept;

  // away.cc
  // Blocks of a sequence that is not among these come back from the device. False: none could. Throws bad_alloc. REQUIRES: no lock
  // is held.
  bool make_room_on_device(std::span<const SeqId> but);

  // promote.cc
  // The cold file and its codecs, as the configuration says; REQUIRES: the arena is there, the store not yet.
  Status open_cold();

  // evict.cc; all with the sequence's lock held
  bool evicts(uint32_t layer) const { return policy && planner->shape(layer).window == 0; }
  // Live tokens a layer may hold under max_seq_len; 0: any number.
  uint32_t layer_limit(uint32_t layer) const;
  struct Evicted {
    bool any = false;  // at least one token went
    bool all = true;   // every head did what the policy asked; false: a head found no memory for its lists
  };
  // Which live rows of each KV head stay within the budget. Changes nothing; throws std::bad_alloc.
  std::vector<std::vector<uint8_t>> choose_kept(tiers::Sequence& seq, uint32_t layer, uint32_t budget) const;
  // Carries that out, head by head, each as a whole.
  Evicted drop_others(tiers::Sequence& seq, uint32_t layer, std::span<const std::vector<uint8_t>> kept);
  Evicted evict_layer(tiers::Sequence& seq, uint32_t layer, uint32_t budget);
  bool relieve(tiers::Sequence& seq);
  bool make_room(tiers::Sequence& seq, uint32_t layer, uint32_t extra);
};

}  // namespace tierkv
