#include "demo_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace demo {
namespace {

// From here on the cache may round queries and weights once more where it reads 2-bit archives (docs: "coarse").
constexpr uint32_t kLongArchive = 8192;

// softmax(q·K)·V of one query head, fed a few rows at a time.
class Exact {
 public:
  explicit Exact(uint32_t dim) : out_(dim, 0.0) {}

  void add(const float* query, const float* key, const float* value) {
    double score = 0.0;
    for (size_t c = 0; c < out_.size(); ++c) score += static_cast<double>(query[c]) * key[c];
    score /= std::sqrt(static_cast<double>(out_.size()));
    if (score > top_) {
      const double shrink = std::exp(top_ - score);
      sum_ *= shrink;
      for (double& x : out_) x *= shrink;
      top_ = score;
    }
    const double weight = std::exp(score - top_);
    sum_ += weight;
    for (size_t c = 0; c < out_.size(); ++c) out_[c] += weight * value[c];
  }

  // Squared difference from `got`, and squared norm.
  void compare(const float* got, double& difference, double& norm) const {
    for (size_t c = 0; c < out_.size(); ++c) {
      const double want = out_[c] / sum_;
      difference += (got[c] - want) * (got[c] - want);
      norm += want * want;
    }
  }

 private:
  double top_ = -INFINITY, sum_ = 0.0;
  std::vector<double> out_;
};

struct Sums {
  double difference = 0.0, norm = 0.0;
  double error() const { return std::sqrt(difference / norm); }  // not a number when an output is none: never within a tolerance
};

}  // namespace

// What the presets lose is two to three times less than this on the make-believe model, from 1,000 tokens to 8,000.
Tolerance tolerance_of(const std::string& preset, uint32_t tokens) {
  Tolerance t;
  if (preset == "fp16") t.preset = 0.0005;
  if (preset == "int8") t.preset = 0.01;
  if (preset == "kivi2") t.preset = 0.2;
  if (preset == "balanced") t.preset = 0.15;
  if (tokens >= kLongArchive && preset != "fp16" && preset != "int8") t.attention = 3e-2;
  return t;
}

tierkv::Result<Check> check_attention(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq, const Model& model, const Shape& shape,
                                      uint32_t tokens) {
  const uint32_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, chunk = 512;
  const size_t row = static_cast<size_t>(shape.kv_heads) * dim;
  const uint32_t heads[] = {0, shape.heads / 2 + 1, shape.heads - 1};
  std::vector<float> query, out(static_cast<size_t>(shape.heads) * dim), keys[2], values[2];
  std::vector<uint32_t> positions;
  Sums held, made;
  Check check;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    model.query(layer, tokens - 1, query);
    const auto view = tierkv::RowsView::f32(query.data(), 1, shape.heads, dim);
    if (tierkv::Status status = cache.attention(seq, layer, view, out.data()); !status.ok()) return status;
    std::vector<Exact> exact[2];  // over what the cache holds, over what the model made
    for (std::vector<Exact>& each : exact) each.assign(std::size(heads), Exact(dim));
    for (uint32_t first = 0; first < tokens; first += chunk) {
      const uint32_t n = std::min(chunk, tokens - first);
      positions.resize(n);
      std::iota(positions.begin(), positions.end(), first);
      keys[0].resize(n * row), values[0].resize(n * row);
      if (tierkv::Status status = cache.get(seq, layer, positions, keys[0].data(), values[0].data()); !status.ok()) return status;
      model.rows(layer, first, n, keys[1], values[1]);
      for (int from = 0; from < 2; ++from) {
        for (size_t i = 0; i < std::size(heads); ++i) {
          const float* q = query.data() + static_cast<size_t>(heads[i]) * dim;
          const size_t at = static_cast<size_t>(heads[i] / group) * dim;
          for (uint32_t t = 0; t < n; ++t)
            exact[from][i].add(q, keys[from].data() + t * row + at, values[from].data() + t * row + at);
        }
      }
    }
    for (size_t i = 0; i < std::size(heads); ++i) {
      const float* got = out.data() + static_cast<size_t>(heads[i]) * dim;
      exact[0][i].compare(got, held.difference, held.norm);
      exact[1][i].compare(got, made.difference, made.norm);
      ++check.outputs;
    }
  }
  check.attention = held.error();
  check.preset = made.error();
  return check;
}

}  // namespace demo
