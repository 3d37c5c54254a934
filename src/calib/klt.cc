#include "calib/klt.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "base/status_macros.h"

namespace tierkv::calib {

// --- allocation

namespace {

// The least distortion with a given number of words, and how to reach it.
struct Curve {
  std::vector<double> distortion;
  std::vector<KltWords> words;
  std::vector<uint32_t> hull;  // word counts on the lower convex hull, ascending
};

Curve trace_curve(const KltHead& head, uint32_t d) {
  // prefix[w][j]: distortion of the first j components at width w; [kKltWidths]: at no bits.
  std::vector<double> prefix[kKltWidths + 1];
  for (int w = 0; w <= kKltWidths; ++w) {
    prefix[w].assign(d + 1, 0.0);
    for (uint32_t j = 0; j < d; ++j) prefix[w][j + 1] = prefix[w][j] + (w < kKltWidths ? head.distortion[w][j] : head.variance[j]);
  }
  Curve curve;
  curve.distortion.assign(d / 4 + 1, std::numeric_limits<double>::infinity());
  curve.words.resize(d / 4 + 1);
  for (uint32_t w8 = 0; 4 * w8 <= d; ++w8) {
    for (uint32_t w4 = 0; 4 * w8 + 8 * w4 <= d; ++w4) {
      for (uint32_t w2 = 0; 4 * w8 + 8 * w4 + 16 * w2 <= d; ++w2) {
        const uint32_t a = 4 * w8, b = a + 8 * w4, c = b + 16 * w2, total = w8 + w4 + w2;
        const double sum =
            prefix[2][a] + (prefix[1][b] - prefix[1][a]) + (prefix[0][c] - prefix[0][b]) + (prefix[3][d] - prefix[3][c]);
        if (sum >= curve.distortion[total]) continue;
        curve.distortion[total] = sum;
        curve.words[total] = {{static_cast<uint16_t>(w2), static_cast<uint16_t>(w4), static_cast<uint16_t>(w8)}};
      }
    }
  }
  for (uint32_t n = 0; n < curve.distortion.size(); ++n) {
    const auto slope = [&](uint32_t from, uint32_t to) { return (curve.distortion[from] - curve.distortion[to]) / (to - from); };
    if (!curve.hull.empty() && curve.distortion[n] >= curve.distortion[curve.hull.back()]) continue;
    while (curve.hull.size() >= 2 && slope(curve.hull.back(), n) >= slope(curve.hull[curve.hull.size() - 2], curve.hull.back()))
      curve.hull.pop_back();
    curve.hull.push_back(n);
  }
  return curve;
}

// One bit more a value costs head_dim/32 words.
Curve value_curve(const KltHead& head, uint32_t d) {
  Curve curve;
  curve.distortion.assign(2 * (d / 32) + 1, 0.0);
  for (uint32_t b = 0; b < 3; ++b) {
    curve.distortion[b * (d / 32)] = head.value_distortion[b];
    curve.hull.push_back(b * (d / 32));
  }
  return curve;
}

struct Step {
  double gain;  // distortion saved per word
  uint32_t head;
  uint32_t at;  // index on the head's hull
  bool operator<(const Step& other) const { return gain != other.gain ? gain < other.gain : head > other.head; }
};

}  // namespace

std::vector<KltChoice> KltTables::allocate(double bits, bool joint) const {
  std::vector<Curve> curves;  // of the keys of every head, then of the values
  uint64_t present = 0;
  for (const KltHead& head : heads) {
    curves.push_back(head.mean.empty() ? Curve() : trace_curve(head, head_dim));
    present += !head.mean.empty();
  }
  for (const KltHead& head : heads) curves.push_back(joint && !head.mean.empty() ? value_curve(head, head_dim) : Curve());
  auto left = static_cast<int64_t>(bits * head_dim * static_cast<double>(present) / 32.0);
  std::priority_queue<Step> steps;
  const auto offer = [&](uint32_t head, uint32_t at) {
    const Curve& c = curves[head];
    if (at + 1 >= c.hull.size()) return;
    const uint32_t from = c.hull[at], to = c.hull[at + 1];
    steps.push({(c.distortion[from] - c.distortion[to]) / (to - from), head, at});
  };
  std::vector<uint32_t> chosen(curves.size(), 0);  // index on the hull
  for (uint32_t h = 0; h < curves.size(); ++h) offer(h, 0);
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const Curve& c = curves[step.head];
    const uint32_t cost = c.hull[step.at + 1] - c.hull[step.at];
    if (cost > left) continue;  // a smaller step of another head may still fit
    left -= cost;
    chosen[step.head] = step.at + 1;
    offer(step.head, step.at + 1);
  }
  std::vector<KltChoice> result(heads.size());
  for (uint32_t h = 0; h < heads.size(); ++h) {
    if (heads[h].mean.empty()) continue;
    result[h].keys = curves[h].words[curves[h].hull[chosen[h]]];
    result[h].value_bits = static_cast<uint8_t>(2 + chosen[heads.size() + h]);
  }
  return result;
}

void KltTables::weigh(std::span<const double> keys, std::span<const double> values) {
  const auto scale = [](std::vector<float>& distortions, double by) {
    for (float& d : distortions) d = static_cast<float>(d * by);
  };
  for (size_t i = 0; i < heads.size(); ++i) {
    for (std::vector<float>& distortion : heads[i].distortion) scale(distortion, keys[i / kv_heads]);
    scale(heads[i].variance, keys[i / kv_heads]);
    scale(heads[i].value_distortion, values[i / kv_heads]);
  }
}

// --- bytes

void KltTables::write(ByteWriter& out) const {
  for (const KltHead& head : heads) {
    out.put(static_cast<uint8_t>(!head.mean.empty()));
    if (head.mean.empty()) continue;
    out.put_array(head.mean);
    out.put_array(head.analysis);
    out.put_array(head.synthesis);
    for (int w = 0; w < kKltWidths; ++w) {
      out.put_array(head.step[w]);
      out.put_array(head.distortion[w]);
    }
    out.put_array(head.variance);
    out.put_array(head.value_distortion);
  }
}

namespace {

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}
bool all_finite(const std::vector<uint16_t>& halves) {
  return std::all_of(halves.begin(), halves.end(), [](uint16_t v) { return (v & 0x7C00u) != 0x7C00u; });
}

bool sane(const KltHead& head) {
  bool ok = all_finite(head.mean) && all_finite(head.analysis) && all_finite(head.synthesis) && all_finite(head.variance) &&
            all_finite(head.value_distortion);
  for (int w = 0; w < kKltWidths; ++w) {
    ok = ok && all_finite(head.step[w]) && all_finite(head.distortion[w]) &&
         std::all_of(head.step[w].begin(), head.step[w].end(), [](float v) { return v > 0.0f; });
  }
  return ok;
}

}  // namespace

Result<KltTables> KltTables::read(ByteReader& in, const ModelId& model) {
  KltTables tables;
  tables.layers = model.layers;
  tables.kv_heads = model.kv_heads;
  tables.head_dim = model.head_dim;
  const uint64_t d = model.head_dim;
  for (uint64_t i = 0; i < static_cast<uint64_t>(model.layers) * model.kv_heads && in.ok(); ++i) {
    KltHead& head = tables.heads.emplace_back();
    const uint8_t present = in.get<uint8_t>();
    if (present > 1)
      return error(StatusCode::data_loss, "the basis of KV head ", i, " is marked ", static_cast<int>(present),
                   ", which means nothing");
    if (present == 0) continue;
    head.mean = in.get_array<float>(d);
    head.analysis = in.get_array<uint16_t>(d * d);
    head.synthesis = in.get_array<uint16_t>(d * d);
    for (int w = 0; w < kKltWidths; ++w) {
      head.step[w] = in.get_array<float>(d);
      head.distortion[w] = in.get_array<float>(d);
    }
    head.variance = in.get_array<float>(d);
    head.value_distortion = in.get_array<float>(3);
    if (in.ok() && !sane(head))
      return error(StatusCode::data_loss, "the basis of KV head ", i, " holds numbers that are not finite or steps of zero");
  }
  if (!in.ok()) return error(StatusCode::data_loss, "the section of bases ends before its last head");
  return tables;
}

}  // namespace tierkv::calib
