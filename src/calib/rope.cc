#include "calib/rope.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tierkv::calib {
Turner::Turner(const Rope& rope, uint32_t head_dim) : rope_(rope), dim_(head_dim) {
  const size_t n = rope_.size();
  bool neighbours = n > 0, halves = n > 0;
  for (size_t p = 0; p < n; ++p) {
    neighbours &= rope_[p].a == 2 * p && rope_[p].b == 2 * p + 1;
    halves &= rope_[p].a == p && rope_[p].b == p + n;
  }
  apart_ = neighbours ? 1 : halves ? static_cast<uint32_t>(n) : 0;
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

void Turner::angles(int64_t by, float* cosine, float* sine) const {
  const size_t n = rope_.size();
  const uint64_t steps = static_cast<uint64_t>(std::llabs(by));
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
}

void Turner::turn(const float* rows, uint32_t count, int64_t by, float* out) const {
  const size_t n = rope_.size();
  if (out != rows && count != 0) std::memcpy(out, rows, static_cast<size_t>(count) * dim_ * sizeof(float));
  if (n == 0 || by == 0) return;
  float cosine[128], sine[128];
  angles(by, cosine, sine);
  for (uint32_t i = 0; i < count; ++i) {
    float* row = out + static_cast<size_t>(i) * dim_;
    if (apart_ == 1) {  // the two usual orders, which a compiler turns into vectors
      for (size_t p = 0; p < n; ++p) {
        const float a = row[2 * p], b = row[2 * p + 1];
        row[2 * p] = a * cosine[p] - b * sine[p];
        row[2 * p + 1] = a * sine[p] + b * cosine[p];
      }
    } else if (apart_ != 0) {
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
