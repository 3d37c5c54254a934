#include "cuda/mass/mass_beside.h"

#include <algorithm>

#include "attn/cpu_backend.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {

size_t most_rows_asked(std::span<const attn::AttendWork> works) {
  size_t most = 0;
  for (const attn::AttendWork& work : works) {
    if (work.queries.tokens > kMostQueries || work.params.weigh_only) continue;
    for (const attn::HeadMass& mass : work.mass) most = std::max(most, mass.rows);
  }
  return most;
}

Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run) {
  attn::AttendWork alone = attn::mass_alone(work, work.mass, lse);
  attn::cpu_backend().attend({&alone, 1}, run);
  return alone.status;
}

}  // namespace tierkv::cuda
