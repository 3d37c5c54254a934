#include "quant/key_box.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/f16.h"
#include "quant/isa.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kRun = kBoxRun;

struct BoxLayout {
  uint32_t middles, reaches, there;  // the steps come first
};
BoxLayout box_layout(uint32_t dim) {
  const uint32_t middles = dim / kRun * 4;
  return {middles, middles + dim, middles + 2 * dim};
}

constexpr double kZero = 128.0;

// The least bf16 that is not below x; x is not negative and finite.
uint16_t bf16_above(double x) {
  uint32_t bits = 0;
  const float near = static_cast<float>(x);
  std::memcpy(&bits, &near, sizeof bits);
  uint32_t half = bits >> 16;
  while (static_cast<double>(bf16_to_f32(static_cast<uint16_t>(half))) < x) ++half;
  return static_cast<uint16_t>(half);
}

// One run of 16 channels. False: its numbers do not fit.
bool make_run(const double* low, const double* high, uint16_t* steps, uint32_t runs, std::byte* middles, std::byte* reaches) {
  double most = 0.0, reach[kRun];
  for (uint32_t c = 0; c < kRun; ++c) most = std::max(most, std::fabs(0.5 * low[c] + 0.5 * high[c]));
  steps[0] = bf16_above(most / 127.0);
  const float step = bf16_to_f32(steps[0]);
  most = 0.0;
  for (uint32_t c = 0; c < kRun; ++c) {
    const double middle = 0.5 * low[c] + 0.5 * high[c];
    const double code = step > 0.0f ? std::clamp(std::nearbyint(middle / step), -127.0, 127.0) : 0.0;
    middles[c] = static_cast<std::byte>(static_cast<uint8_t>(code + kZero));
    const double rounded = static_cast<double>(step * static_cast<float>(code));
    reach[c] = std::max(high[c] - rounded, rounded - low[c]);
    most = std::max(most, reach[c]);
  }
  steps[runs] = bf16_above(most / 254.0);
  const float width = bf16_to_f32(steps[runs]);
  if (!std::isfinite(step) || !std::isfinite(width)) return false;
  for (uint32_t c = 0; c < kRun; ++c) {
    double code = width > 0.0f ? std::ceil(reach[c] / width) : 0.0;
    while (static_cast<double>(width * static_cast<float>(code)) < reach[c]) ++code;
    reaches[c] = static_cast<std::byte>(static_cast<uint8_t>(code));
  }
  return true;
}

}  // namespace

size_t box_bytes(uint32_t head_dim) { return box_layout(head_dim).there + 1; }

bool has_box(const std::byte* box, uint32_t head_dim) { return box[box_layout(head_dim).there] != std::byte{0}; }

void make_box(const float* rows, uint32_t count, uint32_t head_dim, std::byte* out) {
  const BoxLayout at = box_layout(head_dim);
  std::memset(out, 0, at.there + 1);
  if (count == 0) return;
  double low[256], high[256];
  uint16_t steps[2 * 256 / kRun];
  std::fill_n(low, head_dim, std::numeric_limits<double>::infinity());
  std::fill_n(high, head_dim, -std::numeric_limits<double>::infinity());
  for (uint32_t t = 0; t < count; ++t) {
    for (uint32_t c = 0; c < head_dim; ++c) {
      const float x = rows[static_cast<size_t>(t) * head_dim + c];
      if (!std::isfinite(x)) return;
      low[c] = std::min<double>(low[c], x);
      high[c] = std::max<double>(high[c], x);
    }
  }
  const uint32_t runs = head_dim / kRun;
  for (uint32_t r = 0; r < runs; ++r) {
    const uint32_t c = r * kRun;
    if (!make_run(low + c, high + c, steps + r, runs, out + at.middles + c, out + at.reaches + c)) return;
  }
  std::memcpy(out, steps, 2 * runs * sizeof(uint16_t));
  out[at.there] = std::byte{1};
}

void box_scores(const std::byte* box, uint32_t head_dim, const float* queries, uint32_t count, BoxScore* out) {
  static_assert(sizeof(BoxScore) == 3 * sizeof(float));
  if (const Kernels* kernels = active_kernels()) {
    kernels->box_scores(box, head_dim, queries, count, &out->middle);
  } else {
    const BoxLayout at = box_layout(head_dim);
    uint16_t steps[2 * 256 / kRun];
    std::memcpy(steps, box, at.middles);
    for (uint32_t i = 0; i < count; ++i) {
      double middle = 0.0, reach = 0.0, squares = 0.0;
      for (uint32_t c = 0; c < head_dim; ++c) {
        const double q = queries[static_cast<size_t>(i) * head_dim + c];
        const float step = bf16_to_f32(steps[c / kRun]), width = bf16_to_f32(steps[head_dim / kRun + c / kRun]);
        const double wide =
            std::fabs(q) * static_cast<double>(width * static_cast<float>(std::to_integer<uint8_t>(box[at.reaches + c])));
        middle += q * static_cast<double>(step * static_cast<float>(std::to_integer<int>(box[at.middles + c]) - 128));
        reach += wide;
        squares += wide * wide;
      }
      out[i] = {static_cast<float>(middle), static_cast<float>(reach), static_cast<float>(squares)};
    }
  }
  for (uint32_t i = 0; i < count; ++i) out[i].spread = std::sqrt(out[i].spread);
}

}  // namespace tierkv::quant
