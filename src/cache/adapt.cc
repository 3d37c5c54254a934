// adapt.cc — quality feedback moves the tiers' thresholds; running sequences follow at their next append.
#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"

namespace tierkv {

using plan::LayerPlan;

namespace {

// Keys and values move together and keep their distance: "rot3/rot2" at one bit more is "rot4/rot3".
quant::CodecPair at_bits(const quant::CodecPair& configured, uint32_t key_bits) {
  const int more = static_cast<int>(key_bits) - quant::whole_bits(configured.key);
  if (more == 0) return configured;
  return {quant::with_bits(configured.key, quant::whole_bits(configured.key) + more),
          quant::with_bits(configured.value, quant::whole_bits(configured.value) + more)};
}

}  // namespace

// REQUIRES: threshold_mutex held.
std::vector<LayerThresholds> AdaptiveKVCache::Impl::current_thresholds() const {
  std::vector<LayerThresholds> out;
  for (const LayerPlan& p : plans) {
    const uint32_t bits = p.archive_codec ? static_cast<uint32_t>(quant::whole_bits(p.archive_codec->pair.key)) : 0;
    out.push_back({p.hot, p.warm, bits});
  }
  return out;
}

// REQUIRES: threshold_mutex held. All layers or none.
Status AdaptiveKVCache::Impl::apply_thresholds(const std::vector<LayerThresholds>& wanted) {
  std::vector<LayerPlan> next = plans;
  const auto held = codecs.hold_tables();
  for (size_t l = 0; l < next.size(); ++l) {
    LayerPlan& p = next[l];
    if (!p.ring) p.hot = wanted[l].hot;  // a ring holds its window whatever the thresholds say
    // Which codecs a layer has follows from its configuration: lengths move, tiers do not come and go.
    if (p.warm != 0 && p.warm != kAll && wanted[l].warm != 0 && wanted[l].warm != kAll) p.warm = wanted[l].warm;
    if (p.archive_codec && !p.choice && wanted[l].archive_bits != 0 && archive_pairs[l].key.bits != 0) {
      TIERKV_RETURN_IF_ERROR(set_archive(static_cast<uint32_t>(l), at_bits(archive_pairs[l], wanted[l].archive_bits), p));
    }
  }
  plans = std::move(next);
  return {};
}

Status AdaptiveKVCache::adapt_thresholds(const QualityFeedback& feedback) try {
  std::lock_guard lock(impl_->threshold_mutex);
  std::vector<LayerThresholds> wanted = impl_->current_thresholds();
  TIERKV_ASSIGN_OR_RETURN(const bool moved, impl_->quality.add(feedback.score, wanted));
  if (!moved) return {};
  return impl_->apply_thresholds(wanted);
}
TIERKV_NO_MEMORY("adapt the thresholds")

QualityMetrics AdaptiveKVCache::quality_metrics() const {
  std::lock_guard lock(impl_->threshold_mutex);
  return impl_->quality.metrics();
}

std::vector<LayerThresholds> AdaptiveKVCache::thresholds() const {
  std::lock_guard lock(impl_->threshold_mutex);
  return impl_->current_thresholds();
}

Status AdaptiveKVCache::save_thresholds(const std::string& path) const try {
  return plan::save_thresholds_file(path, impl_->config.model, thresholds());
}
TIERKV_NO_MEMORY("save thresholds")

Status AdaptiveKVCache::load_thresholds(const std::string& path) try {
  TIERKV_ASSIGN_OR_RETURN(const std::vector<LayerThresholds> loaded, plan::load_thresholds_file(path, impl_->config.model));
  if (loaded.size() != impl_->config.num_layers) {
    return error(StatusCode::invalid_argument, path, " has thresholds for ", loaded.size(), " layers of model '",
                 impl_->config.model, "', this cache has ", impl_->config.num_layers);
  }
  std::lock_guard lock(impl_->threshold_mutex);
  TIERKV_RETURN_IF_ERROR(impl_->apply_thresholds(loaded));
  impl_->quality.restart_window();
  return {};
}
TIERKV_NO_MEMORY("load thresholds")

}  // namespace tierkv
