// mass.h — what a launch reads and writes that says what rows received (attn/mass.h): behind attention, on the same stream, with
// the sums that attention left on the device.
//
// A segment is some views of one task, for one thread block. What the task's query gave each row of theirs, begin to end - 1 of
// every view one after the other, all query heads of the KV head together, goes to mass[segment.partial ..].
#pragma once

#include "cuda/launch/desc.h"

namespace tierkv::cuda {

struct MassLaunch {
  // Codecs, queries, sums (lse) and shape are those of attention; views, masks and segments (first_view, views, first_row, partial)
  // are of this list, `ctas` its segments.
  Launch launch;
  float* mass = nullptr;
};

}  // namespace tierkv::cuda
