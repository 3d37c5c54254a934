#include "learn/learner.h"

#include "base/status_macros.h"

namespace tierkv::learn {

Result<std::unique_ptr<Learner>> Learner::create(LearnModel, const LearnSettings& settings) {
  auto made = std::make_unique<Learner>();
  made->settings_ = settings;
  return made;
}
void Learner::add_rows(uint64_t, uint32_t layer, uint32_t, const RowsView& keys, const RowsView&) noexcept {
  if (layer == 0) tokens_ += keys.tokens;
}
bool Learner::wants_query(uint32_t, uint32_t position) const noexcept { return position % settings_.query_stride == 0; }
void Learner::add_queries(uint64_t, uint32_t, uint32_t, const RowsView&, const float*, const float*, float, float,
                          const Executor&) noexcept {}
void Learner::set_residual(uint32_t, double) noexcept {}
void Learner::forget(uint64_t) noexcept {}
Result<std::shared_ptr<calib::Calibration>> Learner::solve(const std::string&, const std::function<bool()>&) const {
  return error(StatusCode::failed_precondition, "nothing was learned");
}
Status Learner::save_sums(const std::string&) const { return {}; }
Status Learner::load_sums(const std::string&) { return error(StatusCode::not_found, "no sums"); }

}  // namespace tierkv::learn
