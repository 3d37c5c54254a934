// impl.h — the conductor's own state, shared by the files that make up AdaptiveKVCache:
//   cache.cc      create, sequences, get, truncate, flush
//   append.cc     rows in, graduation, room
//   attend.cc     views out, attention, observation
//   evict.cc      budgets and policies
//   adapt.cc      thresholds that follow quality
//   memory.cc     resident bytes
//   save.cc       save, load, freeze, unfreeze
//   park.cc       park, wake
//   pressure.h    calls that lack memory, tried again
//
// Locks, outermost first: a sequence's mutex; the map's mutex, the thresholds' mutex, the handler's, the store's and the arena's
// are leaves and never held while another is taken (the sequence map is read, a shared_ptr copied out, and the map let go).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "plan/thresholds.h"
#include "policy/policy.h"
#include "quant/codec_set.h"
#include "store/block_store.h"
#include "tierkv/cache.h"
#include "tiers/sequence.h"

namespace tierkv {

struct AdaptiveKVCache::Impl {
  explicit Impl(const CacheConfig& c) : config(c), codecs(c.head_dim), pool(c.threads), quality(c.quality_target) {}

  CacheConfig config;
  quant::CodecSet codecs;
  std::unique_ptr<Arena> arena;  // outlives the store, and that the sequences below
  std::unique_ptr<store::BlockStore> store;
  tiers::StreamEnv env;
  ThreadPool pool;
  std::unique_ptr<policy::EvictionPolicy> policy;  // null: none
  int signal_slot[policy::kNumSignals] = {-1, -1, -1, -1, -1};
  const quant::CodecEntry* hot_codec = nullptr;  // the tail's 16-bit rows

  mutable std::mutex map_mutex;
  std::map<SeqId, std::shared_ptr<tiers::Sequence>> sequences;
  SeqId next_id = 1;

  mutable std::mutex threshold_mutex;
  std::vector<plan::LayerPlan> plans;                             // one per layer; hot, warm and archive codec follow adaptation
  std::vector<quant::CodecPair> archive_pairs;                    // as configured, "auto" resolved
  std::deque<std::vector<const quant::CodecEntry*>> head_codecs;  // what LayerPlan::archive_heads point into; entries stay
  std::deque<plan::LengthChoice> choices;                         // what LayerPlan::choice points to; they stay too
  plan::QualityTracker quality;

  mutable std::mutex pressure_mutex;                // a leaf
  std::shared_ptr<const PressureHandler> pressure;  // or null

  // --- helpers
  // Asks the handler; false: there is none, or it has no more to give. REQUIRES: no lock is held.
  bool make_others_room(SeqId seq, uint64_t needed, uint32_t attempt);
  Result<std::shared_ptr<tiers::Sequence>> find(SeqId seq) const;
  Result<SeqId> adopt(std::shared_ptr<tiers::Sequence> sequence);
  Status check_layer(uint32_t layer) const;
  // failed_precondition when it is parked. REQUIRES: its lock is held.
  Status check_awake(SeqId seq, const tiers::Sequence& sequence) const;
  plan::LayerPlan plan(uint32_t layer) const;
  std::vector<plan::LayerPlan> all_plans() const;
  Status resolve_plans();
  // What the configuration names as a layer's archive, "auto" and "adaptive" resolved with the calibration there is now.
  Status configure_archive(uint32_t layer, plan::LayerPlan& plan, quant::CodecPair& pair);
  Status set_adaptive(uint32_t layer, plan::LayerPlan& plan, quant::CodecPair& first);
  // The archive's codecs of one layer. Heads that a calibration has no tables for get the uncalibrated codec.
  Status set_archive(uint32_t layer, const quant::CodecPair& pair, plan::LayerPlan& plan);
  Status apply_thresholds(const std::vector<LayerThresholds>& wanted);
  std::vector<LayerThresholds> current_thresholds() const;

  // park.cc
  // These options, or the configuration's where they name no target.
  DeepOptions deep_options(DeepOptions options) const;

  // append.cc
  // `needed`: as with_pressure() (pressure.h) wants it.
  Status append(tiers::Sequence& seq, uint32_t layer, const RowsView& keys, const RowsView& values, uint64_t& needed);
  // evict.cc; all with the sequence's lock held
  bool evicts(uint32_t layer) const { return policy && plan(layer).window == 0; }
  // Live tokens a layer may hold under max_seq_len; 0: any number.
  uint32_t layer_limit(uint32_t layer) const;
  struct Evicted {
    bool any = false;  // at least one token went
    bool all = true;   // every head did what the policy asked; false: a head found no memory for its lists
  };
  Evicted evict_layer(tiers::Sequence& seq, uint32_t layer, uint32_t budget);
  bool relieve(tiers::Sequence& seq);
  bool make_room(tiers::Sequence& seq, uint32_t layer, uint32_t extra);
};

}  // namespace tierkv
