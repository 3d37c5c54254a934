// adapt.cc — what is learned while a cache runs: calibrations that come late, quality feedback, thresholds and their file.
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"

namespace tierkv {

Status AdaptiveKVCache::set_calibration(CalibrationPtr calibration) {
  return guarded("set a calibration", [&] { return impl_->learning.replace(*impl_->planner, std::move(calibration)); });
}

Status AdaptiveKVCache::learn(LearningModel model, LearningOptions options) {
  return guarded("learn a model", [&]() -> Status {
    if (impl_->codecs.calibration()) return error(StatusCode::failed_precondition, "the cache has a calibration already");
    if (!wants_calibration(impl_->config)) {
      return error(StatusCode::failed_precondition, "no archive of this cache would be better with tables of the model");
    }
    return impl_->learning.begin(impl_->config, *impl_->planner, std::move(model), std::move(options));
  });
}

LearningReport AdaptiveKVCache::learning() const try {
  return impl_->learning.report(*impl_->planner);
} catch (const std::bad_alloc&) {  // a sentence is not worth a failure
  return LearningReport();
}

void AdaptiveKVCache::set_residual(uint32_t layer, double mean_square) {
  if (layer < impl_->config.num_layers) impl_->learning.set_residual(layer, mean_square);
}

Status AdaptiveKVCache::adapt_thresholds(const QualityFeedback& feedback) {
  return guarded("adapt thresholds", [&] { return impl_->planner->add_score(feedback.score); });
}

QualityMetrics AdaptiveKVCache::quality_metrics() const { return impl_->planner->quality_metrics(); }

std::vector<LayerThresholds> AdaptiveKVCache::thresholds() const { return impl_->planner->thresholds(); }

Status AdaptiveKVCache::set_thresholds(std::span<const LayerThresholds> thresholds) {
  return guarded("set thresholds", [&] { return impl_->planner->set_thresholds(thresholds); });
}

Status AdaptiveKVCache::save_thresholds(const std::string& path) const try {
  return plan::save_thresholds_file(path, impl_->config.model, thresholds());
}
TIERKV_NO_MEMORY("save thresholds")

Status AdaptiveKVCache::load_thresholds(const std::string& path) {
  return guarded("load thresholds", [&]() -> Status {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<LayerThresholds> loaded, plan::load_thresholds_file(path, impl_->config.model));
    if (loaded.size() != impl_->config.num_layers) {
      return error(StatusCode::invalid_argument, path, " has thresholds for ", loaded.size(), " layers of model '",
                   impl_->config.model, "', this cache has ", impl_->config.num_layers);
    }
    return impl_->planner->set_thresholds(loaded);
  });
}

}  // namespace tierkv
