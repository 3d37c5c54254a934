// appending.h — rows on their way into one layer of sequences, step by step: what append() and append_many() share.
//
// A long append is taken in steps, so that a tail never grows past its bound, and comes whole or not at all: a step that fails
// takes back those before it. Several sequences take their steps together, and what is due afterwards settles in one call (settle()
// in tiers/stream.h), which is what a device, or many threads, want.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/impl.h"

namespace tierkv::cache {

// Archive blocks that an append makes of one head: more than become due by it, so that what waited for tables catches up, and so
// few that no single token is kept waiting for all of them.
inline constexpr uint32_t kBacklog = 2, kCatchUp = 3;
inline uint32_t most_blocks(const CacheConfig& config, uint32_t tokens) {
  return kBacklog + kCatchUp * tokens / config.archive_block;
}

inline bool spills(const AdaptiveKVCache::Impl& impl) { return impl.spill.kind != config::SpillMode::Kind::off; }

// A layer of one sequence whose tails got rows. REQUIRES, for what is below: its lock is held.
struct Grown {
  tiers::Sequence* seq = nullptr;
  const plan::Plans* plans = nullptr;
  uint32_t most = 0;    // archive blocks of each head
  bool settled = true;  // written; false: as tiers::Unsettled's
};
// All of them together, each with the archive that its rows ask for. Without memory some of it stays in the better tier.
void settle_grown(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<Grown> grown) noexcept;

// Rows to take in one step: up to where the tail is due to graduate, and never more than eviction can make room for beside the
// sinks and one token. `most_tokens`: that eviction leaves a head; 0: any number.
uint32_t step_size(const plan::LayerPlan& plan, uint32_t tail_rows, uint32_t left, uint32_t most_tokens);
// Room in the tails for `count` rows. Where eviction leaves `most_tokens` and all of them are hot, the tail need never hold more.
bool reserve_tails(Arena& arena, tiers::Sequence& seq, uint32_t layer, const plan::LayerPlan& plan, uint32_t count,
                   uint32_t most_tokens);

// A way back without a policy, where nothing is dropped on the way: a copy that shares every block and tail.
class Backup {
 public:
  Backup(const tiers::StreamEnv& env, tiers::Sequence& seq, uint32_t layer)
      : env_(env), seq_(seq), layer_(layer), state_(seq.layer(layer)), heads_(seq.kv_heads()) {}
  ~Backup();
  Backup(const Backup&) = delete;
  Backup& operator=(const Backup&) = delete;
  bool take();
  void restore();

 private:
  const tiers::StreamEnv& env_;
  tiers::Sequence& seq_;
  uint32_t layer_;
  tiers::LayerState state_;
  std::vector<tiers::HeadStream> heads_;
};

// One sequence's rows. REQUIRES, of all: its lock is held. `keys` and `values`: in host memory, of checked shape, and finite.
class Appending {
 public:
  Appending(AdaptiveKVCache::Impl& impl, tiers::Sequence& seq, uint32_t layer, const RowsView& keys, const RowsView& values,
            std::shared_ptr<const plan::Plans> plans);

  // Whether they can come at all. Nothing is in. `needed`: as with_pressure() (pressure.h) wants it.
  Status begin(uint64_t& needed);
  bool backed_up() const { return backup_.has_value(); }  // it takes several steps, and keeps what was before them
  bool done() const { return done_ == keys_.tokens; }
  // The next rows are in the tails, and have to settle before the step after them: what grown() says, and then settled().
  // Refused, none is in, nor of the steps before; what an eviction policy gave up is gone.
  Status step();
  Grown grown() const { return {&seq_, plans_.get(), most_blocks(impl_.config, last_step_), true}; }
  void settled(bool all);

 private:
  Status add_rows(uint32_t count);
  bool settle_full_tails();
  void write_rows(uint32_t count);
  void take_back();

  AdaptiveKVCache::Impl& impl_;
  tiers::Sequence& seq_;
  const uint32_t layer_;
  const RowsView& keys_;
  const RowsView& values_;
  const std::shared_ptr<const plan::Plans> plans_;  // the same ones for the whole call
  const plan::LayerPlan plan_;                      // as it begins
  const bool evicting_;
  const tiers::LayerState before_;
  uint32_t limit_ = 0;  // tokens that eviction leaves a head; 0: any number
  uint32_t done_ = 0, last_step_ = 0;
  std::optional<Backup> backup_;  // of appends of several steps
};

}  // namespace tierkv::cache
