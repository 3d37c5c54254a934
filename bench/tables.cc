#include "bench/tables.h"

#include <map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "solve/testing.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kSampled = 1024;

}  // namespace

Result<CalibrationPtr> tables_of(Shape shape, uint32_t dim) {
  static std::map<std::pair<Shape, uint32_t>, CalibrationPtr> made;
  CalibrationPtr& known = made[{shape, dim}];
  if (known) return known;
  const std::vector<float> keys = make_rows(shape, kSampled, dim, 71);
  const std::vector<float> values = make_rows(shape == Shape::outlier ? Shape::gaussian : shape, kSampled, dim, 72);
  solve::SampleRows sample;
  sample.tokens = kSampled, sample.head_dim = dim, sample.keys = keys, sample.values = values;
  TIERKV_ASSIGN_OR_RETURN(known, solve::all_tables(solve::statistics_of(sample, solve::usual_rope(dim))));
  return known;
}

Result<CalibrationPtr> tables_of(const SourceRows& rows) {
  std::vector<float> keys, values;
  for (uint32_t t = 0; t < kSampled; ++t) {
    keys.insert(keys.end(), rows.key(t), rows.key(t) + rows.shape.row());
    values.insert(values.end(), rows.value(t), rows.value(t) + rows.shape.row());
  }
  solve::SampleRows sample;
  sample.tokens = kSampled, sample.heads = rows.shape.heads, sample.kv_heads = rows.shape.kv_heads;
  sample.head_dim = rows.shape.head_dim, sample.keys = keys, sample.values = values;
  return solve::all_tables(solve::statistics_of(sample, solve::usual_rope(rows.shape.head_dim)));
}

}  // namespace tierkv::bench
