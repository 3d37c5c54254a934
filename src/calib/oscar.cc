#include "calib/oscar.h"

#include <cmath>

#include "base/f16.h"
#include "base/status_macros.h"

namespace tierkv::calib {
namespace {

// Half floats leave rows this far from length one.
constexpr double kFromOne = 0.01;

bool has_unit_rows(std::span<const uint16_t> matrix, uint32_t d) {
  for (uint32_t r = 0; r < d; ++r) {
    double squares = 0.0;
    for (uint32_t c = 0; c < d; ++c)
      squares += std::pow(static_cast<double>(f16_to_f32(matrix[static_cast<size_t>(r) * d + c])), 2);
    if (!(std::fabs(squares - 1.0) <= kFromOne)) return false;
  }
  return true;
}

}  // namespace

void OscarTables::write(ByteWriter& out) const {
  out.put(layers);
  out.put(kv_heads);
  out.put(head_dim);
  out.put_array(rotations);
}

Result<OscarTables> OscarTables::read(ByteReader& in, const ModelId& model) {
  OscarTables tables;
  tables.layers = in.get<uint32_t>();
  tables.kv_heads = in.get<uint32_t>();
  tables.head_dim = in.get<uint32_t>();
  if (!in.ok()) return error(StatusCode::data_loss, "the OSCAR tables are cut short");
  if (tables.layers != model.layers || tables.kv_heads != model.kv_heads || tables.head_dim != model.head_dim) {
    return error(StatusCode::invalid_argument, "the OSCAR tables are for ", tables.layers, " layers of ", tables.kv_heads,
                 " KV heads of ", tables.head_dim, "; the model has ", model.layers, " of ", model.kv_heads, " of ",
                 model.head_dim);
  }
  tables.rotations =
      in.get_array<uint16_t>(2ull * tables.layers * tables.kv_heads * tables.head_dim * static_cast<uint64_t>(tables.head_dim));
  if (!in.ok()) return error(StatusCode::data_loss, "the OSCAR tables are cut short");
  for (uint32_t i = 0; i < 2 * tables.layers * tables.kv_heads; ++i) {
    const uint32_t head = i / 2;
    if (has_unit_rows(tables.of(head / tables.kv_heads, head % tables.kv_heads, i % 2 == 1), tables.head_dim)) continue;
    return error(StatusCode::data_loss, "the OSCAR tables of layer ", head / tables.kv_heads, ", KV head ", head % tables.kv_heads,
                 " hold a matrix that is no rotation");
  }
  return tables;
}

}  // namespace tierkv::calib
