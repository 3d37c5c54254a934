// model_append.h — the random machine grows sequences, and checks which tokens are there afterwards; included by the
// tests that run it.
#pragma once

#include <algorithm>

#include "model_machine.h"
#include "model_rows.h"

namespace tierkv::testing {

inline void Machine::append() {
  const SeqId id = any_sequence();
  const uint32_t layer = any_layer();
  ReferenceLayer& ref = model_.at(id).layers[layer];
  const uint32_t dice = below(20);
  uint32_t tokens = dice < 9 ? 1 : dice < 17 ? 1 + below(12) : dice < 19 ? 1 + below(60) : 1 + below(200);
  if (setup_.grows_long && ref.length == 0) tokens = 1100 + below(900);
  if (ref.length + tokens > setup_.max_length && !evicting()) {
    truncate();
    return;
  }
  if (evicting() && ref.length > 4 * setup_.max_length) return remove();
  grow(id, layer, tokens);
}

// Appends. A call that is refused for want of memory may cost a sequence, this one or another.
inline void Machine::grow(SeqId id, uint32_t layer, uint32_t tokens) {
  ReferenceLayer& ref = model_.at(id).layers[layer];
  const DType type = static_cast<DType>(below(3));
  const Rows keys = make_rows(tokens, config_.num_kv_heads, type, 1.0f);
  const Rows values = make_rows(tokens, config_.num_kv_heads, static_cast<DType>(below(3)), 1.0f);
  const uint32_t before = ref.length;
  const auto old_live = ref.live;
  const uint64_t digest = may_run_out() ? digest_of(*cache_) : 0;
  const bool here = setup_.there && one_in(6);
  const Status status =
      here ? cache_->append(id, layer, keys.view, values.view) : cache_->append(id, layer, placed(keys.view), placed(values.view));
  if (!status.ok()) {
    const bool full = config_.max_seq_len && !evicting() && before + tokens > config_.max_seq_len;
    if (!(full || may_run_out()) || status.code() != StatusCode::resource_exhausted) return fail(status.to_string());
    if (evicting()) {
      // Making room comes before knowing that it will be enough: old tokens may be gone, but nothing of the call came in.
      if (cache_->length(id, layer).value() != before) return fail("a refused append changed the length");
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
        const auto now = cache_->positions(id, layer, h).value();
        if (!std::includes(old_live[h].begin(), old_live[h].end(), now.begin(), now.end()))
          return fail("a refused append left rows behind");
      }
      for (uint32_t l = 0; l < config_.num_layers; ++l) {
        for (uint32_t h = 0; h < config_.num_kv_heads; ++h) model_.at(id).layers[l].live[h] = cache_->positions(id, l, h).value();
      }
      model_.at(id).plain = false;
    } else if (may_run_out() && digest != digest_of(*cache_)) {
      return fail("a refused append changed the cache: ", status.to_string());
    }
    if (const uint32_t window = config_.layer(layer).window) {
      const uint32_t reach = window - 1 + config_.window_slack;
      if (before > reach) promised_.at(id)[layer] = std::max(promised_.at(id)[layer], before - reach);
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) ref.live[h] = cache_->positions(id, layer, h).value();
      if (ref.live[0].empty() ? before != 0 : ref.live[0][0] > promised_.at(id)[layer])
        return fail("a refused append lost rows of the window");
    }
    if (one_in(2)) remove();
    return;
  }
  for (uint32_t t = 0; t < tokens; ++t) ref.append(keys.token(t), values.token(t));
  check_live_after_append(id, layer, before, old_live);
  if (!problem_.empty()) return;
  check_layer(id, layer);
  if (one_in(4)) check_rows(id, layer, below(config_.num_kv_heads), 24);
}

// Which tokens are there now. Exact without eviction and windows; otherwise what is promised, and then as the cache says.
inline void Machine::check_live_after_append(SeqId id, uint32_t layer, uint32_t before,
                                             const std::vector<std::vector<uint32_t>>& old_live) {
  ReferenceLayer& ref = model_.at(id).layers[layer];
  const LayerConfig tiers = config_.layer(layer);
  const uint32_t tokens = ref.length - before;
  uint32_t& promised = promised_.at(id)[layer];
  const uint32_t reach = tiers.window ? tiers.window - 1 + config_.window_slack : 0;
  if (tiers.window && before > reach) promised = std::max(promised, before - reach);
  for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
    const auto now = cache_->positions(id, layer, h).value();
    if (tiers.window) {
      // A suffix without holes that reaches back to where the first new token's window (and the slack) begins.
      const uint32_t oldest = now.empty() ? ref.length : now[0];
      if (now.size() != ref.length - oldest || (!now.empty() && now.back() != ref.length - 1)) return fail("a hole in a window");
      if (oldest > promised) return fail("window lost position ", promised, "; oldest is ", oldest);
      const uint32_t rest = tiers.hot >= tiers.window ? 0 : tiers.hot + 2 * config_.archive_block + tiers.sinks;
      if (oldest + rest < promised) return fail("window keeps position ", oldest, " though ", promised, " would do");
      ref.live[h] = now;
      continue;
    }
    if (!evicting()) {
      if (now != ref.live[h]) return fail("head ", h, " holds ", now.size(), " tokens, expected ", ref.live[h].size());
      continue;
    }
    if (now == ref.live[h]) continue;
    model_.at(id).plain = false;
    const auto& impl = impl_of(*cache_);
    const uint32_t limit =
        config_.max_seq_len ? std::max(impl.policy->layer_budget(layer, config_.num_layers, config_.max_seq_len), tiers.sinks + 2)
                            : ~0u;
    if (now.size() > limit) return fail("head ", h, " holds ", now.size(), " tokens, its limit is ", limit);
    size_t longest = 0;
    for (const auto& head : old_live) longest = std::max(longest, head.size());
    if (!may_run_out() && longest + tokens <= limit) return fail("evicted without need");
    if (!std::includes(ref.live[h].begin(), ref.live[h].end(), now.begin(), now.end())) return fail("holds what it should not");
    if (now.empty() || now.back() != ref.length - 1) return fail("the newest token went");
    for (uint32_t p = 0; p < std::min(tiers.sinks, ref.length); ++p) {
      if (now[p] != p) return fail("sink ", p, " went");
    }
    ref.live[h] = now;
  }
  if (evicting()) {
    // relieve() takes from the sequence's other layers too.
    for (uint32_t l = 0; l < config_.num_layers && may_run_out(); ++l) {
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
        auto& live = model_.at(id).layers[l].live[h];
        const auto now = cache_->positions(id, l, h).value();
        if (!std::includes(live.begin(), live.end(), now.begin(), now.end())) return fail("layer ", l, " gained rows");
        live = now;
      }
    }
    model_.at(id).plain = false;
  }
}

}  // namespace tierkv::testing
