#include "solve/deep_sample.h"

#include "base/f16.h"

namespace tierkv::solve {

using namespace calib;

namespace {

// Keys turned back to before RoPE, and values: [sampled][dim].
Rows vectors(const Statistics& s, uint32_t layer) {
  const uint32_t d = s.model.head_dim, width = s.model.kv_heads * d, n = s.sampled();
  const Turner turner(s.ropes[layer], d);
  Rows rows(n, 2 * width);
  for (uint32_t i = 0; i < n; ++i) {
    const uint16_t* keys = s.layers[layer].keys.data() + static_cast<size_t>(i) * width;
    const uint16_t* values = s.layers[layer].values.data() + static_cast<size_t>(i) * width;
    float* row = rows.row(i).data();
    for (uint32_t c = 0; c < width; ++c) {
      row[c] = f16_to_f32(keys[c]);
      row[width + c] = f16_to_f32(values[c]);
    }
    turner.turn(row, s.model.kv_heads, -static_cast<int64_t>(s.positions[i]), row);
  }
  return rows;
}

}  // namespace

Centred centred(const Statistics& s, uint32_t layer) {
  Centred out{vectors(s, layer), {}};
  out.mean = (out.rows.cast<double>().colwise().mean()).cast<float>();
  out.rows.rowwise() -= out.mean;
  return out;
}

Matrix products(const Rows& a, const Rows& b) {
  std::vector<Eigen::MatrixXf> parts(kParts, Eigen::MatrixXf::Zero(a.cols(), b.cols()));
  for_parts(a.rows(), [&](Eigen::Index part, Eigen::Index from, Eigen::Index count) {
    parts[static_cast<size_t>(part)].noalias() = a.middleRows(from, count).transpose() * b.middleRows(from, count);
  });
  Matrix sum = parts[0].cast<double>();
  for (size_t i = 1; i < parts.size(); ++i) sum += parts[i].cast<double>();
  return sum / static_cast<double>(a.rows());
}

}  // namespace tierkv::solve
