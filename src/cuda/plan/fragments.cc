#include "cuda/plan/fragments.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/f16.h"
#include "cuda/launch/reading.h"

namespace tierkv::cuda {
namespace {

// Factors of a field at bits p carry 2^(kTop - p): what the code's place in its byte multiplies it by is divided out, and factors
// stay far from the smallest halves.
constexpr int kTop = 6;
constexpr float kMostScaled = 60000.0f;

uint32_t pack(float low, float high) { return f32_to_f16(low) | static_cast<uint32_t>(f32_to_f16(high)) << 16; }

// Row `row` of the operand of tile `tile`, in floats.
void operand_row(const quant::SideLayout& key, uint32_t steps, uint32_t tile, uint32_t row, const std::vector<float>& high,
                 const std::vector<float>& low, std::vector<float>& out) {
  std::fill(out.begin(), out.end(), 0.0f);
  if (tile == steps) {
    if (row < 2) out = row == 0 ? high : low;
    for (uint32_t c = 0; c < key.head_dim && (row == 2 || row == 3); ++c) {
      const float top = half_value(f32_to_f16(key.mean[c]));
      out[c] = row == 2 ? top : key.mean[c] - top;
    }
    return;
  }
  const uint32_t j = component_of(key, tile, row);
  if (j == UINT32_MAX) return;
  const StepWord word = step_word(key, tile, row / 2 % 4);
  const float up = std::ldexp(1.0f, kTop - static_cast<int>(word.field * word.width));
  for (uint32_t c = 0; c < key.head_dim; ++c) out[c] = up * half_value(key.rows[static_cast<size_t>(j) * key.head_dim + c]);
}

}  // namespace

StepWord step_word(const quant::SideLayout& key, uint32_t step, uint32_t t) {
  const uint32_t grouped = key.words[0] / 4 * 4, wide = (key.words[2] + 3) / 4, middle = (key.words[1] + 1) / 2;
  const auto two_bits = [&](uint32_t word, uint32_t field) -> StepWord {
    return {key.words[2] + key.words[1] + word, field, 2, 4 * key.words[2] + 8 * key.words[1] + 16 * word + 4 * field};
  };
  if (step < grouped) return two_bits(step / 4 * 4 + t, step % 4);
  step -= grouped;
  if (step < wide) {
    const uint32_t word = 4 * step + t;
    return word < key.words[2] ? StepWord{word, 0, 8, 4 * word} : StepWord();
  }
  step -= wide;
  if (step < middle) {
    const uint32_t word = 2 * step + t / 2, field = t % 2;
    return word < key.words[1] ? StepWord{key.words[2] + word, field, 4, 4 * key.words[2] + 8 * word + 4 * field} : StepWord();
  }
  step -= middle;
  return grouped + step < key.words[0] ? two_bits(grouped + step, t) : StepWord();
}

uint32_t component_of(const quant::SideLayout& key, uint32_t step, uint32_t row) {
  const StepWord word = step_word(key, step, row / 2 % 4);
  if (word.width == 0) return UINT32_MAX;
  return word.first + row % 2 * 2 + row / 8;
}

std::vector<uint32_t> klt_fragments(const quant::SideLayout& key) {
  const uint32_t d = key.head_dim, steps = klt_steps(key);
  std::vector<float> high(d), low(d), row(d);
  for (uint32_t c = 0; c < d; ++c) {
    double base = key.mean[c];
    for (uint32_t j = 0; j < key.components; ++j)
      base -= static_cast<double>(middle_of(key, j)) * half_value(key.rows[static_cast<size_t>(j) * d + c]);
    high[c] = half_value(f32_to_f16(static_cast<float>(base)));
    low[c] = static_cast<float>(base - high[c]);
  }
  std::vector<uint32_t> out(static_cast<size_t>(kMostKltSteps + 1) * (d / 16) * 32 * 4, 0);
  for (uint32_t tile = 0; tile <= steps; ++tile) {
    for (uint32_t r = 0; r < 16; ++r) {
      operand_row(key, steps, tile, r, high, low, row);
      for (uint32_t c = 0; c < d; c += 2) {
        if (!(std::fabs(row[c]) < kMostScaled && std::fabs(row[c + 1]) < kMostScaled)) return {};
        const uint32_t step = c / 16, in = c % 16, lane = r % 8 * 4 + in % 8 / 2, part = r / 8 + in / 8 * 2;
        out[((static_cast<size_t>(tile) * (d / 16) + step) * 32 + lane) * 4 + part] = pack(row[c], row[c + 1]);
      }
    }
  }
  return out;
}

std::vector<StepEntry> klt_step_table(const quant::SideLayout& key) {
  std::vector<StepEntry> out(kMostKltSteps * 4);
  for (uint32_t step = 0; step < kMostKltSteps; ++step) {
    for (uint32_t t = 0; t < 4; ++t) {
      const StepWord word = step_word(key, step, t);
      const uint32_t one = word.width == 0 ? 0 : (1u << word.width) - 1u;
      out[step * 4 + t] = {word.word * kTile * 4, one * 0x10001u << (word.field * word.width)};
    }
  }
  return out;
}

std::vector<ByteEntry> klt_byte_table(const quant::SideLayout& key) {
  std::vector<ByteEntry> out(kMostKltSteps * 4);
  for (uint32_t step = 0; step < kMostKltSteps; ++step) {
    for (uint32_t t = 0; t < 4; ++t) {
      const StepWord word = step_word(key, step, t);
      if (word.width == 0) continue;
      const uint32_t place = word.field * word.width, shift = place & 4u;
      const uint32_t one = (1u << word.width) - 1u;
      out[step * 4 + t] = {word.word * kTile * 4, one * 0x01010101u << (place - shift), shift, static_cast<float>(1u << shift)};
    }
  }
  return out;
}

float klt_largest_row(const quant::SideLayout& key) {
  double most = 0.0;
  std::vector<float> row(key.head_dim);
  const std::vector<ByteEntry> table = klt_byte_table(key);
  for (uint32_t tile = 0, steps = klt_steps(key); tile < steps; ++tile) {
    for (uint32_t r = 0; r < 16; ++r) {
      operand_row(key, steps, tile, r, {}, {}, row);
      double sum = 0.0;
      for (const float x : row) sum += static_cast<double>(x) * x;
      most = std::max(most, std::sqrt(sum) * table[tile * 4 + r / 2 % 4].up);
    }
  }
  return static_cast<float>(most);
}

std::vector<uint32_t> klt_device_tables(const quant::SideLayout& key) {
  std::vector<uint32_t> out = klt_fragments(key);
  if (out.empty()) return out;
  for (const StepEntry& entry : klt_step_table(key)) out.insert(out.end(), {entry.offset, entry.mask});
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  for (const ByteEntry& entry : klt_byte_table(key)) out.insert(out.end(), {entry.offset, entry.mask, entry.shift, bits(entry.up)});
  out.insert(out.end(), {bits(klt_largest_row(key)), 0, 0, 0});
  return out;
}

}  // namespace tierkv::cuda
