#include "solve/kvquant.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "base/status_macros.h"
#include "solve/kmeans.h"

namespace tierkv::solve {

using namespace calib;

namespace {

constexpr uint32_t kFewestTokens = 256;  // half a percent of them is one token

// --- statistics

Status check_sizes(const Statistics& s) {
  const ModelId& m = s.model;
  const size_t values = static_cast<size_t>(s.sampled()) * m.kv_heads * m.head_dim,
               heads = static_cast<size_t>(m.layers) * m.kv_heads;
  if (heads == 0 || m.head_dim == 0 || s.block == 0) return error(StatusCode::invalid_argument, "the statistics are of no model");
  if (s.sampled() < kFewestTokens) {
    return error(StatusCode::invalid_argument, "KVQuant needs ", kFewestTokens, " sampled tokens or more; the statistics have ",
                 s.sampled());
  }
  bool fits = s.layers.size() == m.layers && s.ropes.size() == m.layers && s.pairs.size() == heads;
  for (size_t l = 0; fits && l < s.layers.size(); ++l) {
    fits = s.layers[l].keys.size() == values && s.layers[l].values.size() == values;
  }
  const size_t square = static_cast<size_t>(m.head_dim) * m.head_dim;
  const auto square_or_none = [&](const std::vector<double>& sums) { return sums.empty() || sums.size() == square; };
  for (size_t i = 0; fits && i < s.pairs.size(); ++i)
    fits = square_or_none(s.pairs[i].key_plain) && square_or_none(s.pairs[i].value);
  if (!fits) return error(StatusCode::invalid_argument, "the statistics do not have the size of their model");
  return Status();
}

// Diagonals of a layer's matrices, [kv head][d], 1 on average: what a squared error in each channel costs. A trace of a thousandth
// keeps channels in sight that no query of the text looked at; a layer whose window never reaches the archive has no sums, and all
// are alike.
Result<std::vector<double>> channel_costs(const Statistics& s, uint32_t layer, KvquantTensor tensor) {
  const uint32_t d = s.model.head_dim, heads = s.model.kv_heads;
  std::vector<double> costs(static_cast<size_t>(heads) * d);
  double total = 0.0;
  for (uint32_t h = 0; h < heads; ++h) {
    const PairSums& sums = s.pair_sums(layer, h);
    const std::vector<double>& matrix = tensor == KvquantTensor::keys ? sums.key_plain : sums.value;
    for (uint32_t c = 0; c < d && !matrix.empty(); ++c) {
      const double cost = matrix[static_cast<size_t>(c) * d + c];
      if (!(cost >= 0.0 && std::isfinite(cost))) {
        return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", h, ": the metric of channel ", c, " is ", cost);
      }
      costs[static_cast<size_t>(h) * d + c] = cost;
      total += cost;
    }
  }
  const double mean = total / static_cast<double>(costs.size());
  for (double& cost : costs) cost = mean > 0.0 ? cost / mean + 1e-3 : 1.0;
  return costs;
}

// One head's rows of the sample as floats; keys are turned back to where they were before RoPE.
Status load_rows(const Statistics& s, uint32_t layer, uint32_t head, KvquantTensor tensor, const Turner& turner,
                 std::vector<float>& rows) {
  const uint32_t d = s.model.head_dim, n = s.sampled();
  const std::vector<uint16_t>& from = tensor == KvquantTensor::keys ? s.layers[layer].keys : s.layers[layer].values;
  rows.resize(static_cast<size_t>(n) * d);
  for (uint32_t i = 0; i < n; ++i) {
    float* row = rows.data() + static_cast<size_t>(i) * d;
    for (uint32_t c = 0; c < d; ++c) {
      row[c] = f16_to_f32(from[(static_cast<size_t>(i) * s.model.kv_heads + head) * d + c]);
      if (!std::isfinite(row[c])) {
        return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": channel ", c, " of sampled token ", i,
                     " is ", row[c]);
      }
    }
    if (tensor == KvquantTensor::keys) turner.turn(row, 1, -static_cast<int64_t>(s.positions[i]), row);
  }
  return Status();
}

void find_ranges(const std::vector<float>& rows, uint32_t d, KvquantHead& head) {
  const size_t n = rows.size() / d, cut = static_cast<size_t>(static_cast<double>(n) * kKvquantOutliers / 2);
  std::vector<float> column(n);
  head.low.resize(d);
  head.high.resize(d);
  for (uint32_t c = 0; c < d; ++c) {
    for (size_t i = 0; i < n; ++i) column[i] = rows[i * d + c];
    const auto low = column.begin() + static_cast<ptrdiff_t>(cut), high = column.end() - 1 - static_cast<ptrdiff_t>(cut);
    std::nth_element(column.begin(), low, column.end());
    head.low[c] = *low;
    std::nth_element(low, high, column.end());
    head.high[c] = *high;
  }
}

// --- codebooks

// Normalised values of one layer and tensor in narrow bins.
class Histogram {
 public:
  void add(double x, double weight) {
    if (!(weight > 0.0)) return;
    Bin& bin = bins_[std::min<size_t>(kBins - 1, static_cast<size_t>(0.5 * (std::clamp(x, -1.0, 1.0) + 1.0) * kBins))];
    bin.weight += weight;
    bin.sum += weight * x;
  }

  KvquantCodebook fit(uint32_t bits) const {
    std::vector<WeightedPoint> points;
    for (const Bin& bin : bins_) {
      if (bin.weight > 0.0) points.push_back({bin.sum / bin.weight, bin.weight});
    }
    if (points.empty()) {  // a layer of constants: any grid will do
      for (size_t i = 0; i < 16; ++i) points.push_back({-1.0 + 2.0 * static_cast<double>(i) / 15.0, 1.0});
    }
    const std::vector<double> centres = kmeans_on_a_line(points, 1u << bits);
    KvquantCodebook book;
    for (size_t i = 0; i < centres.size(); ++i) {
      book.levels.push_back(static_cast<float>(centres[i]));
      if (i) book.edges.push_back(static_cast<float>(0.5 * (centres[i - 1] + centres[i])));
    }
    if (bits == kKvquantMinBits) keep_variance(points, book);
    return book;
  }

 private:
  static constexpr size_t kBins = 2048;
  struct Bin {
    double weight = 0, sum = 0;
  };

  // Q-Norm: few levels, each a mean, make a narrower distribution than what they stand for.
  static void keep_variance(const std::vector<WeightedPoint>& points, KvquantCodebook& book) {
    double weight = 0, in = 0, in2 = 0, out = 0, out2 = 0;
    for (const WeightedPoint& p : points) {
      const double y = book.levels[book.code(static_cast<float>(p.x))];
      weight += p.weight;
      in += p.weight * p.x, in2 += p.weight * p.x * p.x;
      out += p.weight * y, out2 += p.weight * y * y;
    }
    in /= weight, out /= weight;
    const double had = in2 / weight - in * in, has = out2 / weight - out * out;
    if (!(had > 0.0 && has > 1e-3 * had)) return;
    const double stretch = std::sqrt(had / has);
    for (float& level : book.levels) level = static_cast<float>((level - out) * stretch + in);
  }

  std::vector<Bin> bins_ = std::vector<Bin>(kBins);
};

void add_keys(const std::vector<float>& rows, const KvquantHead& head, const double* costs, Histogram& histogram) {
  const size_t d = head.low.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t c = i % d;
    const double half = 0.5 * (static_cast<double>(head.high[c]) - head.low[c]), x = rows[i];
    if (!(half > 0.0) || x < head.low[c] || x > head.high[c]) continue;
    histogram.add((x - head.low[c]) / half - 1.0, costs[c] * half * half);
  }
}

void add_values(const std::vector<float>& rows, uint32_t d, uint32_t block, const double* costs, Histogram& histogram) {
  const size_t n = rows.size() / d;
  std::vector<uint8_t> taken;
  for (size_t first = 0; first < n; first += block) {  // as blocks will see them
    const uint32_t tokens = static_cast<uint32_t>(std::min<size_t>(block, n - first));
    const float* at = rows.data() + first * d;
    taken.assign(static_cast<size_t>(tokens) * d, 0);
    pick_value_outliers(at, tokens, d, kvquant_outliers(tokens, d), taken.data());
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* row = at + static_cast<size_t>(t) * d;
      const uint8_t* out = taken.data() + static_cast<size_t>(t) * d;
      double low = INFINITY, high = -INFINITY;
      for (uint32_t c = 0; c < d; ++c) {
        if (out[c]) continue;
        low = std::min<double>(low, row[c]);
        high = std::max<double>(high, row[c]);
      }
      const double half = 0.5 * (high - low);
      for (uint32_t c = 0; half > 0.0 && c < d; ++c) {
        if (!out[c]) histogram.add((row[c] - low) / half - 1.0, costs[c] * half * half);
      }
    }
  }
}

Status solve_layer(const Statistics& s, uint32_t layer, KvquantTables& tables) {
  const uint32_t d = s.model.head_dim, heads = s.model.kv_heads;
  const Turner turner(s.ropes[layer], d);
  std::vector<float> rows;
  for (const KvquantTensor tensor : {KvquantTensor::keys, KvquantTensor::values}) {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<double> costs, channel_costs(s, layer, tensor));
    Histogram histogram;
    for (uint32_t h = 0; h < heads; ++h) {
      TIERKV_RETURN_IF_ERROR(load_rows(s, layer, h, tensor, turner, rows));
      const double* cost = costs.data() + static_cast<size_t>(h) * d;
      if (tensor == KvquantTensor::values) {
        add_values(rows, d, std::min(s.block, 256u), cost, histogram);
        continue;
      }
      KvquantHead& head = tables.heads[static_cast<size_t>(layer) * heads + h];
      find_ranges(rows, d, head);
      double mean = 0.0;
      for (uint32_t c = 0; c < d; ++c) mean += cost[c] / d;
      for (uint32_t c = 0; c < d; ++c) head.weight.push_back(static_cast<float>(cost[c] / mean));
      add_keys(rows, head, cost, histogram);
    }
    for (uint32_t bits = kKvquantMinBits; bits <= kKvquantMaxBits; ++bits) tables.codebooks.push_back(histogram.fit(bits));
  }
  return Status();
}

}  // namespace

Result<KvquantTables> solve_kvquant(const Statistics& statistics, const Progress& progress) {
  TIERKV_RETURN_IF_ERROR(check_sizes(statistics));
  KvquantTables tables;
  tables.layers = statistics.model.layers;
  tables.kv_heads = statistics.model.kv_heads;
  tables.head_dim = statistics.model.head_dim;
  tables.heads.resize(static_cast<size_t>(tables.layers) * tables.kv_heads);
  for (uint32_t layer = 0; layer < tables.layers; ++layer) {
    TIERKV_RETURN_IF_ERROR(solve_layer(statistics, layer, tables));
    if (progress) progress(static_cast<double>(layer + 1) / tables.layers);
  }
  return tables;
}

}  // namespace tierkv::solve
