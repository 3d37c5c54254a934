#include "calib/squat.h"

#include <cmath>

#include "base/status_macros.h"

namespace tierkv::calib {

void SquatTables::write(ByteWriter& out) const {
  out.put(layers);
  out.put(kv_heads);
  out.put(head_dim);
  out.put(rank);
  out.put_array(directions);
}

Result<SquatTables> SquatTables::read(ByteReader& in, const ModelId& model) {
  SquatTables tables;
  tables.layers = in.get<uint32_t>();
  tables.kv_heads = in.get<uint32_t>();
  tables.head_dim = in.get<uint32_t>();
  tables.rank = in.get<uint32_t>();
  if (!in.ok()) return error(StatusCode::data_loss, "the SQuat tables are cut short");
  if (tables.layers != model.layers || tables.kv_heads != model.kv_heads || tables.head_dim != model.head_dim) {
    return error(StatusCode::invalid_argument, "the SQuat tables are for ", tables.layers, " layers of ", tables.kv_heads,
                 " KV heads of ", tables.head_dim, "; the model has ", model.layers, " of ", model.kv_heads, " of ",
                 model.head_dim);
  }
  if (tables.rank == 0 || tables.rank > tables.head_dim) {
    return error(StatusCode::data_loss, "the SQuat tables have rank ", tables.rank, "; allowed: 1..", tables.head_dim);
  }
  tables.directions = in.get_array<float>(static_cast<uint64_t>(tables.layers) * tables.kv_heads * tables.rank * tables.head_dim);
  if (!in.ok()) return error(StatusCode::data_loss, "the SQuat tables are cut short");
  for (const float x : tables.directions) {
    if (!(std::fabs(x) <= kSquatLongest))
      return error(StatusCode::data_loss, "the SQuat tables hold ", x, "; allowed: up to ", kSquatLongest);
  }
  return tables;
}

}  // namespace tierkv::calib
