// evict.cc — budgets: asks the policy which tokens stay and carries its choice out.
#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "policy/select.h"

namespace tierkv {

using plan::LayerPlan;
using tiers::HeadStream;
using tiers::LayerState;
using tiers::Sequence;

namespace {

// A policy's question: positions and statistics of live tokens, signal by signal.
struct Question {
  std::vector<uint32_t> positions;
  std::vector<float> interleaved;
  std::vector<float> signal[policy::kNumSignals];
  policy::ChoiceInput input;

  void load(const tiers::StreamEnv& env, const HeadStream& s, const int* slot) {
    tiers::live_positions(s, positions);
    tiers::live_stats(env, s, interleaved);
    for (int l = 0; l < policy::kNumSignals; ++l) {
      signal[l].clear();
      if (slot[l] < 0) continue;
      for (size_t i = 0; i < positions.size(); ++i)
        signal[l].push_back(interleaved[i * env.signals + static_cast<size_t>(slot[l])]);
    }
  }
  void point() {
    input.positions = positions;
    for (int l = 0; l < policy::kNumSignals; ++l) input.signal[l] = signal[l];
  }
};

uint32_t longest(std::span<const HeadStream> heads) {
  uint32_t n = 0;
  for (const HeadStream& s : heads) n = std::max(n, tiers::live_rows(s));
  return n;
}

}  // namespace

uint32_t AdaptiveKVCache::Impl::layer_limit(uint32_t layer) const {
  if (config.max_seq_len == 0) return 0;
  return std::max(policy->layer_budget(layer, config.num_layers, config.max_seq_len), planner->shape(layer).sinks + 2);
}

// The newest token and the sinks always stay.
std::vector<std::vector<uint8_t>> AdaptiveKVCache::Impl::choose_kept(Sequence& seq, uint32_t layer, uint32_t budget) const {
  const LayerState& state = seq.layer(layer);
  const LayerPlan p = planner->layer(layer, state.length);
  budget = std::max(budget, p.sinks + 1);
  Question q;
  q.input.layer = layer;
  q.input.num_layers = config.num_layers;
  q.input.budget = budget;
  q.input.protect_first = p.sinks;
  q.input.protect_recent = policy::recent_to_protect(config.eviction.protect_recent, state.unobserved, budget, p.sinks);
  q.input.window_queries = state.window_queries;

  const auto heads = seq.heads(layer);
  Question mean;
  if (policy->scope() == policy::Scope::layer) {
    mean.input = q.input;
    mean.load(env, heads[0], signal_slot);
    uint32_t voices = 1;
    for (uint32_t h = 1; h < heads.size(); ++h) {
      q.load(env, heads[h], signal_slot);
      if (q.positions != mean.positions) continue;
      ++voices;
      for (int l = 0; l < policy::kNumSignals; ++l) {
        for (size_t i = 0; i < mean.signal[l].size(); ++i) mean.signal[l][i] += q.signal[l][i];
      }
    }
    for (auto& signal : mean.signal) {
      for (float& x : signal) x /= static_cast<float>(voices);
    }
    mean.point();
  }
  std::vector<std::vector<uint8_t>> kept;
  for (HeadStream& s : heads) {
    q.load(env, s, signal_slot);
    q.point();
    // A head that once lacked the memory to follow the others is judged by its own statistics until it has caught up.
    const Question& question = policy->scope() == policy::Scope::layer && q.positions == mean.positions ? mean : q;
    policy->choose(question.input, kept.emplace_back(question.positions.size(), uint8_t{0}));
  }
  return kept;
}

AdaptiveKVCache::Impl::Evicted AdaptiveKVCache::Impl::drop_others(Sequence& seq, uint32_t layer,
                                                                  std::span<const std::vector<uint8_t>> kept) {
  Evicted done;
  const LayerPlan p = planner->layer(layer, seq.layer(layer).length);
  for (HeadStream& s : seq.heads(layer)) {
    const std::vector<uint8_t>& keep = kept[s.head];
    if (std::find(keep.begin(), keep.end(), 0) == keep.end()) continue;
    const bool gone = tiers::evict_rows(env, s, p, keep);
    done.any |= gone;
    done.all &= gone;
  }
  return done;
}

AdaptiveKVCache::Impl::Evicted AdaptiveKVCache::Impl::evict_layer(Sequence& seq, uint32_t layer, uint32_t budget) {
  std::vector<std::vector<uint8_t>> kept;
  try {
    kept = choose_kept(seq, layer, budget);
  } catch (const std::bad_alloc&) {
    return {.any = false, .all = false};
  }
  return drop_others(seq, layer, kept);
}

// Memory is short: every layer gives up an eighth of its tokens. False when there was nothing left to give.
bool AdaptiveKVCache::Impl::relieve(Sequence& seq) {
  uint64_t live = 0;
  uint32_t layers = 0;
  for (uint32_t l = 0; l < seq.num_layers(); ++l) {
    if (!evicts(l)) continue;
    live += longest(seq.heads(l));
    ++layers;
  }
  if (layers == 0) return false;
  const uint32_t budget = static_cast<uint32_t>(live / layers * 7 / 8);
  bool any = false;
  for (uint32_t l = 0; l < seq.num_layers(); ++l) {
    if (!evicts(l)) continue;
    const uint32_t own = policy->layer_budget(l, seq.num_layers(), budget);
    if (longest(seq.heads(l)) > own) any |= evict_layer(seq, l, own).any;
  }
  return any;
}

// Room for `extra` more tokens under max_seq_len. False when eviction itself found no memory.
bool AdaptiveKVCache::Impl::make_room(Sequence& seq, uint32_t layer, uint32_t extra) {
  const uint32_t limit = layer_limit(layer);
  if (limit == 0) return true;
  const uint32_t live = longest(seq.heads(layer));
  if (static_cast<uint64_t>(live) + extra <= limit) return true;
  const uint32_t batch = std::clamp(config.eviction.batch, 1u, std::max(1u, limit / 8));
  const uint32_t give = std::max(extra, batch);
  return evict_layer(seq, layer, limit > give ? limit - give : 1).all;
}

Status AdaptiveKVCache::evict(SeqId seq, uint32_t tokens) try {
  if (!impl_->policy) return error(StatusCode::failed_precondition, "eviction.policy is none: nothing may be dropped");
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  // All choices first: from then on only byte_budget can refuse, and then a head as a whole.
  std::vector<std::vector<std::vector<uint8_t>>> kept(sequence->num_layers());
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
    if (!impl_->evicts(l)) continue;
    const uint32_t budget = impl_->policy->layer_budget(l, sequence->num_layers(), tokens);
    const uint32_t least = impl_->planner->shape(l).sinks + 1;
    if (longest(sequence->heads(l)) > std::max(budget, least)) kept[l] = impl_->choose_kept(*sequence, l, budget);
  }
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
    if (!kept[l].empty() && !impl_->drop_others(*sequence, l, kept[l]).all) {
      return error(StatusCode::resource_exhausted, "no memory left for eviction's own lists in layer ", l);
    }
  }
  return {};
}
TIERKV_NO_MEMORY("evict tokens")

}  // namespace tierkv
