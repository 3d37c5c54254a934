#include "cuda/mass_beside.h"

#include "attn/cpu_backend.h"

namespace tierkv::cuda {
namespace {

constexpr size_t kFewRows = 1024;  // of a head: about two default rings of hot and warm tokens

}  // namespace

bool few_rows_asked(const attn::AttendWork& work) {
  if (work.params.weigh_only) return false;
  for (size_t h = 0; h < work.mass.size(); ++h) {
    size_t rows = 0;
    for (size_t v = work.mass[h].from; v < work.heads[h].size(); ++v) rows += work.heads[h][v].rows;
    if (rows > kFewRows) return false;
  }
  return true;
}

Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run) {
  attn::AttendWork alone = attn::mass_alone(work, work.mass, lse);
  attn::cpu_backend().attend({&alone, 1}, run);
  return alone.status;
}

}  // namespace tierkv::cuda
