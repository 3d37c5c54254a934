#include "quant/frame.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/isa.h"

namespace tierkv::quant {

// The largest power of two that divides head_dim.
uint32_t hadamard_run(uint32_t head_dim) { return head_dim & (~head_dim + 1u); }

namespace {

constexpr uint32_t kMaxHeadDim = 256;

// One pseudo-random sign per channel, a function of head_dim and the channel alone: SplitMix64's finaliser over a counter.
float sign_of(uint32_t head_dim, uint32_t channel) {
  uint64_t z = (static_cast<uint64_t>(head_dim) << 32) + (channel + 1u) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return ((z ^ (z >> 31)) >> 63) != 0 ? -1.0f : 1.0f;
}

// Unnormalised Walsh–Hadamard transform of n floats, n a power of two.
void walsh_hadamard(float* x, uint32_t n) {
  for (uint32_t half = 1; half < n; half *= 2) {
    for (uint32_t base = 0; base < n; base += 2 * half) {
      float* lo = x + base;
      float* hi = lo + half;
      for (uint32_t i = 0; i < half; ++i) {
        const float sum = lo[i] + hi[i];
        hi[i] = lo[i] - hi[i];
        lo[i] = sum;
      }
    }
  }
}

// Signs with the norm in them, by head_dim/16 - 1.
const std::array<float, kMaxHeadDim>& scaled_signs(uint32_t head_dim) {
  static const auto tables = [] {
    std::array<std::array<float, kMaxHeadDim>, kMaxHeadDim / 16> all{};
    for (uint32_t d = 16; d <= kMaxHeadDim; d += 16) {
      const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hadamard_run(d))));
      for (uint32_t c = 0; c < d; ++c) all[d / 16 - 1][c] = sign_of(d, c) * norm;
    }
    return all;
  }();
  return tables[head_dim / 16 - 1];
}

void rotate(const float* in, uint32_t count, uint32_t head_dim, const float* signs, bool forward, float* out) {
  const uint32_t run = hadamard_run(head_dim);
  if (const Kernels* kernels = active_kernels()) return kernels->rotate_rows(in, count, head_dim, run, signs, forward, out);
  for (uint32_t r = 0; r < count; ++r, in += head_dim, out += head_dim) {
    for (uint32_t c = 0; c < head_dim; ++c) out[c] = forward ? in[c] * signs[c] : in[c];
    for (uint32_t c = 0; c < head_dim; c += run) walsh_hadamard(out + c, run);
    for (uint32_t c = 0; c < head_dim && !forward; ++c) out[c] *= signs[c];
  }
}

}  // namespace

void to_frame(Frame frame, float* rows, uint32_t count, uint32_t head_dim) {
  if (frame == Frame::hadamard) rotate(rows, count, head_dim, scaled_signs(head_dim).data(), true, rows);
}

void to_frame(Frame frame, const float* rows, uint32_t count, uint32_t head_dim, float* out) {
  if (frame == Frame::hadamard) return rotate(rows, count, head_dim, scaled_signs(head_dim).data(), true, out);
  std::copy_n(rows, static_cast<size_t>(count) * head_dim, out);
}

void from_frame(Frame frame, float* rows, uint32_t count, uint32_t head_dim) {
  if (frame == Frame::hadamard) rotate(rows, count, head_dim, scaled_signs(head_dim).data(), false, rows);
}

const float* hadamard_signs(uint32_t head_dim) { return scaled_signs(head_dim).data(); }

std::vector<float> hadamard_factors(std::span<const float> factors) {
  std::vector<float> out(factors.begin(), factors.end());
  const auto& signs = scaled_signs(static_cast<uint32_t>(out.size()));
  for (size_t c = 0; c < out.size(); ++c) out[c] *= signs[c];
  return out;
}

void to_hadamard_by(const float* factors, const float* rows, uint32_t count, uint32_t head_dim, float* out) {
  rotate(rows, count, head_dim, factors, true, out);
}

}  // namespace tierkv::quant
