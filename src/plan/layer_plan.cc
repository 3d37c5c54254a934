#include "plan/layer_plan.h"

#include <iterator>

namespace tierkv::plan {

LayerPlan LayerPlan::at_length(uint32_t length) const {
  LayerPlan out = *this;
  if (!choice) return out;
  const LengthChoice::Step* step = choice->steps;
  while (step + 1 < std::end(choice->steps) && length >= step->below) ++step;
  out.archive_codec = step->codec;
  out.archive_heads = step->heads;
  return out;
}

uint32_t LayerPlan::tail_bound() const {
  if (ring || hot == kAll || first_block() == 0) return 0;
  return hot + first_block() + sinks;
}

}  // namespace tierkv::plan
