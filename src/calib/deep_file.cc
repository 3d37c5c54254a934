// deep_file.cc — the deep archive's tables in and out of a calibration file. Whatever read() accepts can be decoded with: no sum
// overflows, nothing is infinite.
#include <cmath>
#include <cstdlib>

#include "base/status_macros.h"
#include "calib/deep.h"

namespace tierkv::calib {
namespace {

constexpr uint32_t kVersion = 1;

bool all_finite(const std::vector<float>& values) {
  for (const float v : values) {
    if (!std::isfinite(v)) return false;
  }
  return true;
}

void write_basis(ByteWriter& out, const DeepBasis& basis) {
  out.put_array(basis.rows);
  out.put_array(basis.exponent);
  out.put_array(basis.spread);
}

bool read_basis(ByteReader& in, uint64_t dim, DeepBasis& basis) {
  basis.rows = in.get_array<uint16_t>(dim * dim);
  basis.exponent = in.get_array<int16_t>(dim);
  basis.spread = in.get_array<int16_t>(dim);
  for (const uint16_t half : basis.rows) {
    if ((half & 0x7C00u) == 0x7C00u) return false;
  }
  for (const int16_t e : basis.exponent) {
    if (e < -60 || e > 60) return false;
  }
  return in.ok();
}

bool sums_fit(const DeepLayer& layer, size_t dim) {
  for (size_t row = 0; row < layer.predict.size() / dim; ++row) {
    uint64_t sum = 0;
    for (size_t j = 0; j < dim; ++j) sum += static_cast<uint64_t>(std::abs(static_cast<int>(layer.predict[row * dim + j])));
    if (sum > kDeepRowSum) return false;
  }
  return true;
}

Status bad(const std::string& what) { return error(StatusCode::data_loss, "the tables of the deep archive are damaged: ", what); }

}  // namespace

void DeepTables::write(ByteWriter& out) const {
  out.put(kVersion);
  out.put(static_cast<uint32_t>(coded.size()));
  for (const DeepLayer& layer : coded) {
    out.put(layer.layer);
    out.put_array(layer.mean);
    out.put_array(layer.unit);
    out.put(layer.sources);
    if (layer.sources) {
      out.put_array(layer.scale);
      out.put_array(layer.predict);
      write_basis(out, layer.basis[kDeepPredicted]);
    }
    write_basis(out, layer.basis[kDeepPlain]);
    out.put_array(layer.metric);
    out.put_array(layer.weight);
  }
}

Result<DeepTables> DeepTables::read(ByteReader& in, const ModelId& model) {
  if (const uint32_t version = in.get<uint32_t>(); in.ok() && version != kVersion) {
    return error(StatusCode::unsupported, "tables of the deep archive of version ", version, ", and this build knows version ",
                 kVersion);
  }
  DeepTables tables;
  tables.layers = model.layers;
  tables.kv_heads = model.kv_heads;
  tables.head_dim = model.head_dim;
  const uint64_t width = 2ull * model.kv_heads * model.head_dim;
  if (width > kDeepMostDim) return bad("the model is wider than they serve");
  const uint64_t dim = width, square = static_cast<uint64_t>(model.head_dim) * model.head_dim;
  const uint32_t count = in.get<uint32_t>();
  if (!in.ok() || count == 0 || count > model.layers) return bad("a number of layers the model does not have");
  for (uint32_t i = 0; i < count; ++i) {
    DeepLayer& layer = tables.coded.emplace_back();
    layer.layer = in.get<uint32_t>();
    if (layer.layer >= model.layers || (i && layer.layer <= tables.coded[i - 1].layer)) return bad("layers out of order");
    layer.mean = in.get_array<float>(dim);
    layer.unit = in.get_array<float>(dim);
    layer.sources = in.get<uint32_t>();
    if (!in.ok() || layer.sources > std::min(i, 2u)) return bad("more sources than layers before");
    if (layer.sources) {
      layer.scale = in.get_array<float>(dim);
      layer.predict = in.get_array<int16_t>(layer.sources * dim * dim);
      if (!read_basis(in, dim, layer.basis[kDeepPredicted])) return bad("a basis is not finite or too short");
      if (!all_finite(layer.scale) || !sums_fit(layer, dim)) return bad("a prediction overflows");
    }
    if (!read_basis(in, dim, layer.basis[kDeepPlain])) return bad("a basis is not finite or too short");
    layer.metric = in.get_array<float>(2 * model.kv_heads * square);
    layer.weight = in.get_array<float>(1 + dim + 3ull * model.kv_heads);
    if (!in.ok()) return bad("they end too early");
    for (const float unit : layer.unit) {
      if (!(unit > 0.0f)) return bad("a unit is not positive");
    }
    if (!all_finite(layer.mean) || !all_finite(layer.unit) || !all_finite(layer.metric) || !all_finite(layer.weight))
      return bad("a number is not finite");
  }
  return tables;
}

}  // namespace tierkv::calib
