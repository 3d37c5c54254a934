// park.cc — an idle sequence gives its memory back: its older tokens are packed under the same name (snapshot/pack.h), and blocks
// again when it wakes.
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"
#include "snapshot/pack.h"

namespace tierkv {

using plan::LayerPlan;
using snapshot::DeepCalibration;
using tiers::Sequence;

namespace {

constexpr double kDefaultRatio = 20.0;

Status whole_tokens(SeqId seq, const Sequence& sequence) {
  for (uint32_t l = 1; l < sequence.num_layers(); ++l) {
    if (sequence.layer(l).length == sequence.layer(0).length) continue;
    return error(StatusCode::failed_precondition, "sequence ", seq, " cannot be parked in the middle of a token: layer 0 has ",
                 sequence.layer(0).length, " of them and layer ", l, " ", sequence.layer(l).length);
  }
  return {};
}

}  // namespace

DeepOptions AdaptiveKVCache::Impl::deep_options(DeepOptions options) const {
  if (options.ratio != 0.0 || options.quality != 0.0) return options;
  options.ratio = config.deep.ratio;
  options.quality = config.deep.quality;
  if (options.ratio == 0.0 && options.quality == 0.0) options.ratio = kDefaultRatio;
  return options;
}

Status AdaptiveKVCache::park(SeqId seq, const DeepOptions& options, DeepReport* report) try {
  TIERKV_ASSIGN_OR_RETURN(const DeepCalibration calibration, snapshot::deep_calibration(impl_->codecs.calibration()));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_whole(seq, *sequence));
  const std::vector<LayerPlan> plans = impl_->plans_of(*sequence);
  TIERKV_RETURN_IF_ERROR(whole_tokens(seq, *sequence));
  DeepReport made;
  const Status status =
      snapshot::pack(impl_->env, *sequence, plans, calibration, impl_->deep_options(options), impl_->config.threads, made);
  if (report) *report = made;
  sequence->forget_views();
  if (status.code() != StatusCode::failed_precondition) return status;
  const char* already = sequence->packed.empty() ? "" : " (what is packed already stays so until wake())";
  return error(StatusCode::failed_precondition, "sequence ", seq, " cannot be parked: ", status.message(), already);
}
TIERKV_NO_MEMORY("park a sequence")

Status AdaptiveKVCache::wake(SeqId seq) {
  return cache::with_pressure(*impl_, seq, [&](uint64_t& needed) {
    return guarded("wake a sequence", [&]() -> Status {
      TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
      std::lock_guard lock(sequence->mutex);
      if (sequence->packed.empty()) return error(StatusCode::failed_precondition, "sequence ", seq, " is not parked");
      return snapshot::unpack(impl_->env, *sequence, impl_->codecs, impl_->pool, needed);
    });
  });
}

Result<bool> AdaptiveKVCache::is_parked(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const auto lock = sequence->mutex.as_is();
  return !sequence->packed.empty();
}
TIERKV_NO_MEMORY("look at a sequence")

}  // namespace tierkv
