#include "calib/rope.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tierkv::calib {
namespace {

// 0, 1, 2, ...: the channels of pairs that are neighbours, as libllama has most models'.
constexpr auto kNeighbours = [] {
  std::array<uint16_t, 256> all{};
  for (uint16_t c = 0; c < all.size(); ++c) all[c] = c;
  return all;
}();

}  // namespace

Turner::Turner(const Rope& rope, uint32_t head_dim) : rope_(rope), dim_(head_dim) {
  const size_t n = rope_.size();
  halves_ = n > 0;
  for (size_t p = 0; p < n; ++p) halves_ &= rope_[p].a == p && rope_[p].b == p + n;
  for (const auto& pair : rope_) {
    channels_.push_back(static_cast<uint16_t>(pair.a));
    channels_.push_back(static_cast<uint16_t>(pair.b));
  }
  tables_.resize(kDigits * kBase * 2 * n);
  for (int digit = 0; digit < kDigits; ++digit) {
    for (uint32_t value = 0; value < kBase; ++value) {
      float* row = tables_.data() + (static_cast<size_t>(digit) * kBase + value) * 2 * n;
      for (size_t p = 0; p < n; ++p) {
        const double turned = rope_[p].angle * std::ldexp(static_cast<double>(value), digit * kDigitBits);
        row[p] = static_cast<float>(std::cos(turned));
        row[n + p] = static_cast<float>(std::sin(turned));
      }
    }
  }
}

void Turner::turn(const float* rows, uint32_t count, int64_t by, float* out) const {
  const size_t n = rope_.size();
  if (out != rows && count != 0) std::memcpy(out, rows, static_cast<size_t>(count) * dim_ * sizeof(float));
  if (n == 0 || by == 0) return;
  const uint64_t steps = static_cast<uint64_t>(std::llabs(by));
  float cosine[128], sine[128];
  const auto digit_row = [&](int digit) {
    const uint64_t value = (steps >> (digit * kDigitBits)) & (kBase - 1);
    return tables_.data() + (static_cast<size_t>(digit) * kBase + value) * 2 * n;
  };
  std::memcpy(cosine, digit_row(0), n * sizeof(float));
  std::memcpy(sine, digit_row(0) + n, n * sizeof(float));
  for (int digit = 1; digit < kDigits; ++digit) {
    if (steps >> (digit * kDigitBits) == 0) break;
    const float *c = digit_row(digit), *s = c + n;
    for (size_t p = 0; p < n; ++p) {
      const float both = cosine[p] * c[p] - sine[p] * s[p];
      sine[p] = cosine[p] * s[p] + sine[p] * c[p];
      cosine[p] = both;
    }
  }
  if (by < 0) {
    for (size_t p = 0; p < n; ++p) sine[p] = -sine[p];
  }
  const bool neighbours = std::memcmp(channels_.data(), kNeighbours.data(), 2 * n * sizeof(uint16_t)) == 0;
  for (uint32_t i = 0; i < count; ++i) {
    float* row = out + static_cast<size_t>(i) * dim_;
    if (neighbours) {  // the two usual orders, which a compiler turns into vectors
      for (size_t p = 0; p < n; ++p) {
        const float a = row[2 * p], b = row[2 * p + 1];
        row[2 * p] = a * cosine[p] - b * sine[p];
        row[2 * p + 1] = a * sine[p] + b * cosine[p];
      }
    } else if (halves_) {
      float* other = row + n;
      for (size_t p = 0; p < n; ++p) {
        const float a = row[p], b = other[p];
        row[p] = a * cosine[p] - b * sine[p];
        other[p] = a * sine[p] + b * cosine[p];
      }
    } else {
      for (size_t p = 0; p < n; ++p) {
        const float a = row[rope_[p].a], b = row[rope_[p].b];
        row[rope_[p].a] = a * cosine[p] - b * sine[p];
        row[rope_[p].b] = a * sine[p] + b * cosine[p];
      }
    }
  }
}

}  // namespace tierkv::calib
