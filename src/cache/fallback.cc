#include "cache/fallback.h"

#include <algorithm>

#include "attn/rows.h"
#include "base/guarded.h"
#include "cache/impl.h"
#include "tiers/row_batch.h"

namespace tierkv {
namespace cache {
namespace {

// Every direction alike, scores spread as is usual.
std::vector<float> usual_power(const float* keys, size_t tokens, size_t d) {
  double spread = 0.0;
  for (size_t c = 0; c < d; ++c) {
    double sum = 0.0, squares = 0.0;
    for (size_t at = c; at < tokens * d; at += d) {
      sum += keys[at];
      squares += static_cast<double>(keys[at]) * keys[at];
    }
    spread += (squares - sum * sum / static_cast<double>(tokens)) / static_cast<double>(tokens);
  }
  return std::vector<float>(d, spread > 0.0 ? static_cast<float>(kUsualSpread / spread) : 0.0f);
}

bool good(const quant::CodecEntry& choice, std::span<const BlockRows> heads, std::span<const float* const> powers) {
  double scores = 0.0, values = 0.0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto error = quant::coding_error(choice, heads[h].keys, heads[h].values, heads[h].ctx, powers[h]);
    if (!error.ok()) return false;
    scores += error->scores;
    values += error->values;
  }
  const double n = static_cast<double>(heads.size());
  return scores <= n * kMostScoreError && values <= n * kMostValueError;
}

}  // namespace

uint32_t smallest_good(std::span<const quant::CodecEntry* const> choices, std::span<const BlockRows> heads) {
  std::vector<std::vector<float>> usual(heads.size());
  std::vector<const float*> powers;
  for (size_t h = 0; h < heads.size(); ++h) {
    if (!heads[h].power) usual[h] = usual_power(heads[h].keys, choices[0]->tokens, choices[0]->key->shape().head_dim);
    powers.push_back(heads[h].power ? heads[h].power : usual[h].data());
  }
  uint32_t choice = 0;
  while (choice + 1 < choices.size() && !good(*choices[choice], heads, powers)) ++choice;
  return choice;
}

void QueryPower::begin(const CacheConfig& config, const plan::Plans& plans) {
  kv_heads_ = config.num_kv_heads;
  head_dim_ = config.head_dim;
  if (plans.chosen().of == 0) return;
  auto layers = std::make_unique<Layer[]>(plans.num_layers());
  for (uint32_t l = 0; l < plans.num_layers(); ++l) layers[l].wanted = !plans.layer(l, 0).choices.empty();
  layers_ = std::move(layers);
}

void QueryPower::add(uint32_t layer, const RowsView& queries, float scale) noexcept {
  (void)with_memory([&] {
    const uint32_t group = queries.heads / kv_heads_;
    std::vector<float> row(head_dim_);
    std::lock_guard lock(mutex_);
    Layer& to = layers_[layer];
    if (!to.wanted) return true;
    to.sums.resize(static_cast<size_t>(kv_heads_) * head_dim_);
    const uint32_t left = kQueries - static_cast<uint32_t>(to.rows / group);
    const uint32_t count = std::min(queries.tokens, left);
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t h = 0; h < queries.heads; ++h) {
        attn::widen_row(queries, t, h, row.data());
        double* sums = to.sums.data() + static_cast<size_t>(h / group) * head_dim_;
        for (uint32_t c = 0; c < head_dim_; ++c) sums[c] += static_cast<double>(scale * row[c]) * (scale * row[c]);
      }
    }
    to.rows += static_cast<uint64_t>(count) * group;
    if (count == left) to.wanted = false;
    return true;
  });
}

bool QueryPower::get(uint32_t layer, uint32_t kv_head, float* out) const noexcept {
  std::lock_guard lock(mutex_);
  if (!layers_ || layers_[layer].rows == 0 || layers_[layer].sums.empty()) return false;
  const double* sums = layers_[layer].sums.data() + static_cast<size_t>(kv_head) * head_dim_;
  for (uint32_t c = 0; c < head_dim_; ++c) out[c] = static_cast<float>(sums[c] / static_cast<double>(layers_[layer].rows));
  return true;
}

void QueryPower::drop(uint32_t layer) noexcept {
  std::lock_guard lock(mutex_);
  if (!layers_) return;
  layers_[layer].wanted = false;
  layers_[layer].sums = {};
}

}  // namespace cache

// REQUIRES: the sequence's lock is held.
void AdaptiveKVCache::Impl::choose_archive(const tiers::Sequence& seq, uint32_t layer, plan::LayerPlan& plan) noexcept {
  if (plan.choices.empty() || plan.waiting) return;
  const uint32_t tokens = plan.archive_codec->tokens;
  uint32_t choice = 0;
  const auto measure = [&] {
    std::vector<tiers::RowBatch> batches(config.num_kv_heads);
    std::vector<std::vector<float>> powers(config.num_kv_heads, std::vector<float>(config.head_dim));
    std::vector<cache::BlockRows> heads;
    for (const tiers::HeadStream& s : seq.heads(layer)) {
      tiers::RowBatch& batch = batches[s.head];
      if (!tiers::due_for_archive(env, s, plan, batch) || batch.rows() != tokens) continue;
      const bool known = query_power.get(layer, s.head, powers[s.head].data());
      heads.push_back({batch.keys.data(),
                       batch.values.data(),
                       known ? powers[s.head].data() : nullptr,
                       {layer, s.head, batch.positions[0], batch.positions.data()}});
    }
    if (heads.empty()) return false;
    choice = cache::smallest_good(plan.choices, heads);
    return true;
  };
  if (!with_memory(measure)) return;
  plan.archive_codec = plan.choices[planner->choose(layer, choice)];
  plan.choices = {};
  query_power.drop(layer);
}

void AdaptiveKVCache::Impl::follow_archive(const tiers::Sequence& seq) noexcept {
  for (uint32_t l = 0; l < seq.num_layers(); ++l) {
    const plan::LayerPlan plan = planner->layer(l, seq.layer(l).length);
    if (plan.choices.empty()) continue;
    const auto& blocks = seq.heads(l)[0].blocks;
    size_t end = blocks.size();
    while (end > 0 && blocks[end - 1].block.tier() != Tier::archive) --end;
    const tiers::CodecEntry* const newest = end ? blocks[end - 1].block.codec() : nullptr;
    const auto choice = std::find(plan.choices.begin(), plan.choices.end(), newest);
    (void)planner->choose(l, choice == plan.choices.end() ? 0 : static_cast<uint32_t>(choice - plan.choices.begin()));
    query_power.drop(l);
  }
}

}  // namespace tierkv
