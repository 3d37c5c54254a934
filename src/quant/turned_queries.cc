#include "quant/turned_queries.h"

#include <algorithm>

#include "quant/isa.h"
#include "quant/scratch.h"

namespace tierkv::quant {
namespace {

using Turned = Workspace::Turned;

// The channels of a pair are neighbours, or whole vectors apart.
bool in_vectors(const calib::Turner& turner) { return turner.apart() == 1 || (turner.apart() != 0 && turner.apart() % 16 == 0); }

// What each channel and the other one of its pair are multiplied with when a row turns by `by`; channels that do not turn stay.
void fill_step(const calib::Turner& turner, uint32_t head_dim, int64_t by, float* step) {
  float cosine[128], sine[128];
  turner.angles(by, cosine, sine);
  std::fill_n(step, head_dim, 1.0f);
  std::fill_n(step + head_dim, head_dim, 0.0f);
  for (size_t p = 0; p < turner.rope().size(); ++p) {
    const uint32_t a = turner.rope()[p].a, b = turner.rope()[p].b;
    step[a] = step[b] = cosine[p];
    step[head_dim + a] = -sine[p];
    step[head_dim + b] = sine[p];
  }
}

// From where the queries are, a block further.
void step_on(const calib::Turner& turner, const BlockShape& shape, const Kernels& kernels, Turned& t) {
  const uint32_t d = shape.head_dim;
  const size_t size = static_cast<size_t>(t.count) * d;
  float* step = at_least_aligned(t.step, 2 * static_cast<size_t>(d));
  if (t.steps == 0) fill_step(turner, d, -static_cast<int64_t>(shape.tokens), step);
  float* rows = at_least_aligned(t.rows, 2 * size);
  kernels.turn_rows(rows + t.steps % 2 * size, t.count, d, turner.apart(), step, rows + (t.steps + 1) % 2 * size);
  ++t.steps;
  t.first += shape.tokens;
}

}  // namespace

const float* turn_to_block(const calib::Turner& turner, const BlockShape& shape, const float* queries, uint32_t count,
                           uint32_t first_position, Workspace& ws) {
  const size_t size = static_cast<size_t>(count) * shape.head_dim;
  Turned& t = ws.turned;
  const Kernels* kernels = active_kernels();
  // Queries are turned afresh at every kMostSteps-th block of the sequence, and on from there, wherever attention begins: so what
  // comes out does not depend on how blocks are shared out, or on which of them come first.
  const uint32_t steps = kernels && in_vectors(turner) ? first_position / shape.tokens % kMostSteps : 0;
  const bool same = ws.queries_id != 0 && t.id == ws.queries_id && t.of == &turner && t.queries == queries && t.count == count;
  if (!same || steps == 0 || first_position - t.first != shape.tokens) {
    const uint32_t anchor = first_position - steps * shape.tokens;
    t = {ws.queries_id, &turner, queries, count, anchor, /*steps=*/0, std::move(t.rows), std::move(t.step)};
    turner.turn(queries, count, -static_cast<int64_t>(anchor), at_least_aligned(t.rows, 2 * size));
  }
  while (t.steps < steps) step_on(turner, shape, *kernels, t);
  return at_least_aligned(t.rows, 2 * size) + t.steps % 2 * size;
}

}  // namespace tierkv::quant
