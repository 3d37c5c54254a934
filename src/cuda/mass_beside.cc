#include "cuda/mass_beside.h"

#include <atomic>
#include <new>
#include <vector>

#include "attn/rows.h"
#include "base/status_macros.h"

namespace tierkv::cuda {
namespace {

constexpr size_t kFewRows = 1024;  // of a head: about two default rings of hot and warm tokens

void add_head(const attn::AttendWork& work, uint32_t head, const float* lse) {
  const attn::HeadMass& mass = work.mass[head];
  if (mass.from >= work.heads[head].size() || !mass.hears(0, work.queries.tokens)) return;
  const uint32_t group = work.queries.heads / static_cast<uint32_t>(work.heads.size()), d = work.params.head_dim;
  const size_t rows = static_cast<size_t>(work.queries.tokens) * group;
  std::vector<float> queries(rows * d), sums(rows);
  for (size_t i = 0; i < rows; ++i) {
    const auto q = static_cast<uint32_t>(i / group), h = head * group + static_cast<uint32_t>(i % group);
    attn::widen_row(work.queries, q, h, queries.data() + i * d);
    sums[i] = lse[static_cast<size_t>(q) * work.queries.heads + h];
  }
  attn::QueryTile tile;
  tile.rows = queries.data(), tile.queries = work.queries.tokens, tile.group = group, tile.positions = work.positions;
  attn::AttendParams params = work.params;
  params.weigh_from = 0;
  attn::Partial partial;
  attn::Scratch scratch;
  const auto views = work.heads[head].subspan(mass.from);
  attn::attend_partial(views, tile, params, partial, scratch);
  if (mass.lanes.empty()) attn::add_mass(views, 0, tile, partial.weighed, sums.data(), mass.sums);
  else attn::add_lanes(views, 0, tile, partial.weighed, sums.data(), mass.lanes, mass.sums, mass.rows);
}

}  // namespace

bool few_rows_asked(const attn::AttendWork& work) {
  for (size_t h = 0; h < work.mass.size(); ++h) {
    size_t rows = 0;
    for (size_t v = work.mass[h].from; v < work.heads[h].size(); ++v) rows += work.heads[h][v].rows;
    if (rows > kFewRows) return false;
  }
  return true;
}

Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run) {
  std::atomic<bool> refused = false;
  run(static_cast<uint32_t>(work.heads.size()), [&](uint32_t head) {
    try {
      add_head(work, head, lse);
    } catch (const std::bad_alloc&) {
      refused = true;
    }
  });
  if (refused) return error(StatusCode::resource_exhausted, "the system refused memory for what rows receive from queries");
  return {};
}

}  // namespace tierkv::cuda
