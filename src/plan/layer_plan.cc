#include "plan/layer_plan.h"

namespace tierkv::plan {

uint32_t LayerPlan::tail_bound() const {
  if (ring || hot == kAll || first_block() == 0) return 0;
  return hot + first_block() + sinks;
}

}  // namespace tierkv::plan
