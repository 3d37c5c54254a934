#include "quant/klt_basis.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "quant/codec.h"
#include "quant/frame.h"

namespace tierkv::quant {
namespace {

constexpr float kLeastSpread = 1e-4f;  // of the largest: what no key ever had is no reason to divide by nothing
constexpr double kLeftOver = 0.2;      // of the squared error may lie in components that better rows leave out

}  // namespace

using calib::kKltBits;
using calib::kKltWidths;

KltBasis::KltBasis(const calib::KltHead& head, const calib::KltWords& given, uint32_t dim, bool with_errors) : head_dim(dim) {
  for (int w = 0; w < kKltWidths; ++w) words.words[w] = given.words[w];
  build(head, with_errors);
}

size_t KltBasis::bytes() const {
  return (mean.size() + step.size() + shift.size() + middle.size() + weights.size() + unit.size() + into_errors.size() +
          pair_units.size()) *
             sizeof(float) +
         (analysis.size() + rows.size()) * sizeof(uint16_t);
}

void KltBasis::build(const calib::KltHead& head, bool with_errors) {
  const uint32_t d = head_dim;
  components = 0;
  for (int w = 0; w < kKltWidths; ++w) components += words.words[w] * (32 / kKltBits[w]);
  padded = (components + 15) / 16 * 16;
  known = with_errors ? components_of_errors(head) : padded;
  mean = head.mean;
  middle.assign(padded, 0.0f);
  shift.assign(known, 0.0f);
  step.assign(known, 1.0f);
  analysis.assign(static_cast<size_t>(d) * known, 0);
  rows.assign(static_cast<size_t>(d) * known, 0);
  for_each_code([&](uint32_t j, uint32_t bits, size_t, uint32_t) {
    const int w = bits == 2 ? 0 : bits == 4 ? 1 : 2;
    const float own = head.step[w][j];
    const float half_range = static_cast<float>(1u << (bits - 1));
    step[j] = own;
    middle[j] = half_range - 0.5f;
    double offset = half_range;
    for (uint32_t c = 0; c < d; ++c) {
      const uint16_t half = head.analysis[static_cast<size_t>(j) * d + c];
      analysis[static_cast<size_t>(c) * known + j] = half;
      offset -= static_cast<double>(f16_to_f32(half) / own) * mean[c];
      rows[static_cast<size_t>(c) * known + j] = f32_to_f16(f16_to_f32(head.synthesis[static_cast<size_t>(j) * d + c]) * own);
    }
    shift[j] = static_cast<float>(offset);
  });
  weigh_directions(head);
  if (with_errors) build_errors(head);
  measure_columns();
}

void KltBasis::measure_columns() {
  const uint32_t d = head_dim;
  std::vector<float> column(d);
  for (uint32_t j = 0; j < known; ++j) {
    for (uint32_t c = 0; c < d; ++c) column[c] = f16_to_f32(rows[static_cast<size_t>(c) * known + j]);
    const float scale = scale_to_pairs(column.data(), d);
    pair_units.push_back(scale > 0.0f ? 1.0f / scale : 0.0f);
  }
}

// The metric of keys' errors is the sum over components of variance · row · row'. The first ones stand for themselves, the others
// for a weight that is the same in every direction.
void KltBasis::weigh_directions(const calib::KltHead& head) {
  const uint32_t d = head_dim, own = std::min(components, kMostDirections);
  weights.resize(own);
  double others = 0.0;
  for (uint32_t j = 0; j < d; ++j) {
    double length = 0.0;
    for (uint32_t c = 0; c < d; ++c) {
      const double x = f16_to_f32(head.analysis[static_cast<size_t>(j) * d + c]);
      length += x * x;
    }
    if (j >= own) others += head.variance[j] * length;
    else weights[j] = std::sqrt(head.variance[j]);
  }
  floor = static_cast<float>(others / d);
}

// So many components have all but kLeftOver of the squared error that the tables measured: those that have bits, and the widest
// of those that have none. The others spread so little that coding them would be bits and time for little. Blocks are laid out by
// this: it cannot change.
uint32_t KltBasis::components_of_errors(const calib::KltHead& head) const {
  const uint32_t d = head_dim;
  double all = 0.0;
  for_each_code([&](uint32_t j, uint32_t bits, size_t, uint32_t) { all += head.distortion[bits == 2 ? 0 : bits == 4 ? 1 : 2][j]; });
  for (uint32_t j = components; j < d; ++j) all += head.variance[j];
  uint32_t n = d;
  double left = 0.0;
  while (n > std::max(padded, 16u)) {
    for (uint32_t j = n - 16; j < n; ++j) left += head.variance[j];
    if (left > kLeftOver * all) break;
    n -= 16;
  }
  return n;
}

// What errors need beyond that: the components that have no bits, and what an even error is of each, in units of their steps.
// Spreads are in units of the largest.
void KltBasis::build_errors(const calib::KltHead& head) {
  const uint32_t d = head_dim;
  for (uint32_t j = components; j < known; ++j) {
    double offset = 0.0;
    for (uint32_t c = 0; c < d; ++c) {
      const uint16_t half = head.analysis[static_cast<size_t>(j) * d + c];
      analysis[static_cast<size_t>(c) * known + j] = half;
      offset -= static_cast<double>(f16_to_f32(half)) * mean[c];
      rows[static_cast<size_t>(c) * known + j] = head.synthesis[static_cast<size_t>(j) * d + c];
    }
    shift[j] = static_cast<float>(offset);
  }
  const float largest = *std::max_element(head.variance.begin(), head.variance.end());
  for (uint32_t j = 0; j < known; ++j) {
    const float spread = largest > 0.0f ? std::max(kLeastSpread, std::sqrt(head.variance[j] / largest)) : 1.0f;
    unit.push_back(1.0f / (spread * step[j]));
  }
  into_errors = hadamard_factors(unit);
}

const uint16_t* KltBasis::device_rows() const {
  std::call_once(device_rows_made_, [this] {
    const uint32_t d = head_dim;
    device_rows_.resize(static_cast<size_t>(d) * padded);
    for (uint32_t c = 0; c < d; ++c) {
      for (uint32_t j = 0; j < padded; ++j) device_rows_[static_cast<size_t>(j) * d + c] = rows[static_cast<size_t>(c) * known + j];
    }
  });
  return device_rows_.data();
}

const float* KltBasis::device_analysis() const {
  std::call_once(device_analysis_made_, [this] {
    const uint32_t d = head_dim;
    device_analysis_.resize(static_cast<size_t>(d) * padded);
    for (uint32_t c = 0; c < d; ++c) {
      for (uint32_t j = 0; j < padded; ++j)
        device_analysis_[static_cast<size_t>(c) * padded + j] = f16_to_f32(analysis[static_cast<size_t>(c) * known + j]) / step[j];
    }
  });
  return device_analysis_.data();
}

float scale_to_pairs(const float* x, uint32_t n) {
  double squares = 0.0;
  for (uint32_t c = 0; c < n; ++c) squares += static_cast<double>(x[c]) * x[c];
  const double scale = kPairLength / std::sqrt(squares);
  return scale < 1e30 ? static_cast<float>(scale) : 0.0f;
}

}  // namespace tierkv::quant
