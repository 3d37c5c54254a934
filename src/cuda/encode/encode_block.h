// encode_block.h — one part of a work of encode.h: the same code for the threads of a device's thread block and, in tests, for the
// processor: as a team of one, or with TIERKV_SIMT as the threads of simt_machine.h.
//
// A stage is a loop over things that do not look at each other, each worked on by one thread in the order in which the codec does
// it: so the number of threads changes no bit, and neither does the processor. Nothing is fused (the device's compiler is told so).
// What the stages do is affine.h, meta.h, even.h, centered.h, rot.h and klt.h; the files named at each are the reference.
#pragma once

#include "cuda/launch/encode.h"
#include "cuda/launch/reading.h"
#include "quant/grid_search.h"

// A device's threads, or in tests a team of as many on the processor (simt_machine.h).
#if defined(__CUDA_ARCH__) || defined(TIERKV_SIMT)
#define TIERKV_MANY_THREADS
#endif

namespace tierkv::cuda {

// The threads that work on a part together.
struct Team {
  uint32_t thread = 0, threads = 1;
  TIERKV_BOTH void sync() const {
#ifdef TIERKV_MANY_THREADS
    __syncthreads();
#endif
  }
  // Of a warp alone.
  TIERKV_BOTH void sync_warp() const {
#ifdef TIERKV_MANY_THREADS
    __syncwarp();
#endif
  }
  // Threads that share a column where there are `columns` of them.
  TIERKV_BOTH uint32_t groups(uint32_t columns) const { return threads < columns ? 1 : threads / columns; }
  TIERKV_BOTH uint32_t lanes() const { return threads < 32 ? 1 : 32; }  // of a warp
  TIERKV_BOTH uint32_t lane() const { return thread % lanes(); }
  TIERKV_BOTH uint32_t warp() const { return thread / lanes(); }
  TIERKV_BOTH uint32_t warps() const { return threads / lanes(); }
};

TIERKV_BOTH uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
TIERKV_BOTH float bits_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

TIERKV_BOTH uint16_t to_half(float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#elif defined(__CUDACC__)
  return 0;  // the processor's code is another compiler's
#else
  return f32_to_f16(x);
#endif
}
TIERKV_BOTH uint16_t to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
TIERKV_BOTH float least_of(float a, float b) { return b < a ? b : a; }
TIERKV_BOTH float most_of(float a, float b) { return a < b ? b : a; }

inline constexpr float kMostMagnitude = 1e30f, kMostStored = 1e33f;  // checks.h
inline constexpr float kRoundMagic = 12582912.0f;                    // grid.h
TIERKV_BOTH float round_to_even(float x) { return (x + kRoundMagic) - kRoundMagic; }

// Rows of a block as floats, and what is known of groups, in memory that the team shares.
struct EncodeShared {
  float* x;        // [tokens][pitch]
  uint32_t pitch;  // odd, so that threads on neighbouring rows meet no bank twice
  float* lo;       // [entries] each: of a fit; later the scales and offsets that codes are taken with
  float* hi;
  float* scale;
  float* step;
  float* errors;  // midrise: [entries][kCandidates]; else other scratch
};
inline constexpr uint32_t kCandidates = quant::kMidriseSteps + 1;

TIERKV_BOTH uint32_t entries_of(const quant::SideLayout& side) {
  return side.groups * (side.by_channel ? side.head_dim : side.tokens);
}

TIERKV_BOTH EncodeShared share(const quant::SideCoding& coding, float* memory) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t entries = entries_of(side);
  EncodeShared at{};
  at.pitch = side.head_dim + 1;
  at.x = memory;
  at.lo = memory + side.tokens * at.pitch;
  at.hi = at.lo + entries;
  at.scale = at.hi + entries;
  at.step = at.scale + entries;
  at.errors = at.step + entries;
  return at;
}

TIERKV_BOTH float load_row_value(const EncodeDesc& work, uint32_t token, uint32_t channel) {
  const size_t at = static_cast<size_t>(token) * work.stride + channel;
  if (work.type == RowType::f32) return static_cast<const float*>(work.rows)[at];
  return short_value(static_cast<const uint16_t*>(work.rows)[at], work.type == RowType::bf16);
}

// Rows from `first` on into x[count][pitch].
TIERKV_BOTH void load_rows(const Team& team, const EncodeDesc& work, uint32_t first, uint32_t count, uint32_t dim, uint32_t pitch,
                           float* x) {
  bool good = true;
  for (uint32_t t = team.warp(); t < count; t += team.warps()) {
    for (uint32_t c = team.lane(); c < dim; c += team.lanes()) {
      const float value = load_row_value(work, first + t, c);
      x[t * pitch + c] = value;
      good = good && fabsf(value) <= kMostMagnitude;
    }
  }
  if (!good) *work.refused = 1;
  team.sync();
}

TIERKV_BOTH void refuse_large(const Team& team, const EncodeDesc& work, uint32_t count, uint32_t dim, uint32_t pitch,
                              const float* x) {
  bool good = true;
  for (uint32_t t = team.warp(); t < count; t += team.warps()) {
    for (uint32_t c = team.lane(); c < dim; c += team.lanes()) good = good && fabsf(x[t * pitch + c]) <= kMostMagnitude;
  }
  if (!good) *work.refused = 1;
}

// --- channels (even.cc, centered.cc)

// x becomes what is left of it, and the words of the channels go to the block. Of even: `lo` and `hi` have room for a float a
// channel.
TIERKV_BOTH void even_channels(const Team& team, const EncodeDesc& work, const quant::SideLayout& side, const EncodeShared& at,
                               int32_t* spread, uint16_t* words, int32_t* base) {
  constexpr int kReach = 7, kMostBase = 200;
  const uint32_t d = side.head_dim, tokens = side.tokens;
  for (uint32_t c = team.thread; c < d; c += team.threads) {
    double sum = 0.0, squares = 0.0;
    for (uint32_t t = 0; t < tokens; ++t) sum += static_cast<double>(at.x[t * at.pitch + c]);
    const double exact = sum / tokens;
    uint16_t word = 0x7C00;
    if (fabs(exact) < 65504.0) word = static_cast<uint16_t>((to_half(static_cast<float>(exact)) + 4u) & 0xFFF8u);
    if ((word & 0x7C00u) == 0x7C00u) *work.refused = 1;
    const auto mean = static_cast<double>(half_value(word));
    for (uint32_t t = 0; t < tokens; ++t) {
      const double x = static_cast<double>(at.x[t * at.pitch + c]) - mean;
      squares += x * x;
    }
    words[c] = word;
    spread[c] = squares > 0.0 && squares < 1e300 ? (ilogb(squares / tokens) + 1) >> 1 : -kMostBase;  // larger ones are refused
  }
  team.sync();
  if (team.thread == 0) {
    int most = -kMostBase;
    for (uint32_t c = 0; c < d; ++c) most = spread[c] > most ? spread[c] : most;
    *base = most - kReach > -kMostBase ? most - kReach : -kMostBase;
  }
  team.sync();
  uint8_t* const out = work.out + side.mean_at;
  const uint32_t groups = team.groups(d);
  for (uint32_t i = team.thread; i < d * groups; i += team.threads) {
    const uint32_t c = i % d;
    const int over = spread[c] - *base;
    const uint16_t word = static_cast<uint16_t>(words[c] | (over > 0 ? over : 0));
    if (i < d) reinterpret_cast<uint16_t*>(out)[c] = word;
    const float mean = half_value(static_cast<uint16_t>(word & 0xFFF8u)), inverse = 1.0f / root_power(*base + (word & 7));
    for (uint32_t t = i / d; t < tokens; t += groups) at.x[t * at.pitch + c] = (at.x[t * at.pitch + c] - mean) * inverse;
  }
  if (team.thread == 0) reinterpret_cast<int16_t*>(out)[d] = static_cast<int16_t>(*base);
  team.sync();
}

TIERKV_BOTH void center_channels(const Team& team, const EncodeDesc& work, const quant::SideLayout& side, const EncodeShared& at) {
  for (uint32_t c = team.thread; c < side.head_dim; c += team.threads) {
    float sum = 0.0f;
    for (uint32_t t = 0; t < side.tokens; ++t) sum += at.x[t * at.pitch + c];
    const uint16_t stored = to_half(sum / static_cast<float>(side.tokens));
    if ((stored & 0x7C00u) == 0x7C00u) *work.refused = 1;
    const float shift = -half_value(stored);
    for (uint32_t t = 0; t < side.tokens; ++t) at.x[t * at.pitch + c] += shift;
    reinterpret_cast<uint16_t*>(work.out + side.mean_at)[c] = stored;
  }
  team.sync();
}

// --- the Hadamard frame (frame.cc)

TIERKV_BOTH void sign_rows(const Team& team, uint32_t d, uint32_t count, uint32_t pitch, float* rows) {
  const uint32_t run = d & (~d + 1u), groups = team.groups(d);
  const float norm = static_cast<float>(1.0 / sqrt(static_cast<double>(run)));
  for (uint32_t i = team.thread; i < d * groups; i += team.threads) {
    const float sign = frame_sign(d, i % d) * norm;
    for (uint32_t t = i / d; t < count; t += groups) rows[t * pitch + i % d] *= sign;
  }
  team.sync();
}

// Two steps at a time, so that a value is fetched half as often.
TIERKV_BOTH void transform_rows(const Team& team, uint32_t d, uint32_t count, uint32_t pitch, float* rows) {
  const uint32_t run = d & (~d + 1u);
  uint32_t half = 1;
  for (; 4 * half <= run; half *= 4) {
    for (uint32_t four = team.lane(); four < d / 4; four += team.lanes()) {
      float* const column = rows + (four & ~(half - 1)) * 4 + (four & (half - 1));  // half is a power of two
      for (uint32_t t = team.warp(); t < count; t += team.warps()) {
        float* const low = column + t * pitch;
        const float a = low[0] + low[half], b = low[0] - low[half], c = low[2 * half] + low[3 * half];
        const float e = low[2 * half] - low[3 * half];
        low[0] = a + c, low[half] = b + e, low[2 * half] = a - c, low[3 * half] = b - e;
      }
    }
    team.sync();
  }
  for (uint32_t pair = team.lane(); half < run && pair < d / 2; pair += team.lanes()) {
    float* const column = rows + (pair & ~(half - 1)) * 2 + (pair & (half - 1));
    for (uint32_t t = team.warp(); t < count; t += team.warps()) {
      float* const low = column + t * pitch;
      const float a = low[0], b = low[half];
      low[half] = a - b;
      low[0] = a + b;
    }
  }
  team.sync();
}

TIERKV_BOTH void rotate_rows(const Team& team, uint32_t d, uint32_t count, uint32_t pitch, float* rows) {
  sign_rows(team, d, count, pitch, rows);
  transform_rows(team, d, count, pitch, rows);
}

// --- fits (grid.cc)

// Where the values of a group lie: x[i·along] for i < n.
struct Group {
  const float* x;
  uint32_t along, n;
};
TIERKV_BOTH Group group_of(const quant::SideLayout& side, const EncodeShared& at, uint32_t entry) {
  const uint32_t across = side.by_channel ? side.head_dim : side.tokens, length = side.by_channel ? side.tokens : side.head_dim;
  const uint32_t from = entry / across * side.group, a = entry % across, left = length - from;
  const uint32_t n = left < side.group ? left : side.group;
  if (side.by_channel) return {at.x + from * at.pitch + a, at.pitch, n};
  return {at.x + a * at.pitch + from, 1, n};
}

struct FitUnit {
  float most, up, down;
};
TIERKV_BOTH FitUnit unit_of(float lo, float hi) {
  const float most = most_of(most_of(fabsf(lo), fabsf(hi)), quant::kTinyGroup);
  const uint32_t exponent = float_bits(most) & 0x7F800000u;
  return {most, bits_float(exponent), bits_float(0x7F000000u - exponent)};
}

TIERKV_BOTH float candidate(uint32_t k, float widest, float middle, uint32_t levels) {
  if (k == 0) return widest / static_cast<float>(levels);
  constexpr float ratios[quant::kMidriseSteps] = {0.594603558f, 0.648419777f, 0.707106781f, 0.771105413f, 0.840896415f,
                                                  0.917004043f, 1.0f,         1.09050773f,  1.18920712f,  1.29683955f,
                                                  1.41421356f,  1.54221083f,  1.68179283f,  1.83400809f,  2.0f,
                                                  2.18101547f,  2.37841423f,  2.59367911f,  2.82842712f};
  return least_of(middle * ratios[k - 1], widest);
}

// lo and hi of every group, and for midrise its sum of squares in `scale` and where its search starts in `step`.
TIERKV_BOTH void fit_ranges(const Team& team, const quant::SideCoding& coding, const EncodeShared& at) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t levels = 1u << side.bits;
  for (uint32_t e = team.thread; e < entries_of(side); e += team.threads) {
    const Group g = group_of(side, at, e);
    float lo = g.x[0], hi = g.x[0];
    for (uint32_t i = 1; i < g.n; ++i) {
      lo = least_of(lo, g.x[i * g.along]);
      hi = most_of(hi, g.x[i * g.along]);
    }
    lo += 0.0f, hi += 0.0f;
    at.lo[e] = lo, at.hi[e] = hi;
    if (coding.fit == quant::FitKind::absmax) {
      at.scale[e] = most_of(fabsf(lo), fabsf(hi)) / static_cast<float>(levels / 2 - 1);
    }
    if (coding.fit != quant::FitKind::midrise) continue;
    const FitUnit unit = unit_of(lo, hi);
    float squares = 0.0f;
    for (uint32_t i = 0; i < g.n; ++i) {
      const float v = g.x[i * g.along] * unit.down;
      squares += v * v;
    }
    at.scale[e] = squares;
    at.step[e] = sqrtf(squares / static_cast<float>(g.n)) * coding.centre;
  }
  team.sync();
}

// The squared errors of every step that is tried.
TIERKV_BOTH void try_steps(const Team& team, const quant::SideCoding& coding, const EncodeShared& at) {
  constexpr uint32_t kAtOnce = 4;
  const quant::SideLayout& side = coding.layout;
  const uint32_t levels = 1u << side.bits, entries = entries_of(side);
  const float outer = static_cast<float>(levels / 2 - 1);
  for (uint32_t i = team.thread; i < entries * (kCandidates / kAtOnce); i += team.threads) {
    const uint32_t e = i % entries, first = i / entries * kAtOnce;
    const Group g = group_of(side, at, e);
    const FitUnit unit = unit_of(at.lo[e], at.hi[e]);
    const float widest = 2.0f * (unit.most * unit.down);
    float steps[kAtOnce], inverse[kAtOnce], sums[kAtOnce];
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      steps[k] = candidate(first + k, widest, at.step[e], levels);
      inverse[k] = 1.0f / steps[k];
      sums[k] = 0.0f;
    }
    for (uint32_t n = 0; n < g.n; ++n) {
      const float v = fabsf(g.x[n * g.along] * unit.down);
      TIERKV_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const float u = v * inverse[k] - 0.5f;
        const float off = u - round_to_even(least_of(u, outer));
        sums[k] += off * off;
      }
    }
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) at.errors[e * kCandidates + first + k] = steps[k] * steps[k] * sums[k];
  }
  team.sync();
}

// scale and step of every group of midrise.
TIERKV_BOTH void choose_steps(const Team& team, const quant::SideCoding& coding, const EncodeShared& at) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t levels = 1u << side.bits;
  const float outer = static_cast<float>(levels / 2 - 1);
  for (uint32_t e = team.thread; e < entries_of(side); e += team.threads) {
    const Group g = group_of(side, at, e);
    const FitUnit unit = unit_of(at.lo[e], at.hi[e]);
    const float widest = 2.0f * (unit.most * unit.down), squares = at.scale[e], middle = at.step[e];
    float least = 3.0e38f, best = widest;
    for (uint32_t k = 0; k < kCandidates; ++k) {
      const float error = at.errors[e * kCandidates + k];
      if (!(error < least)) continue;
      least = error;
      best = candidate(k, widest, middle, levels);
    }
    const float inverse = 1.0f / best;
    float product = 0.0f;
    for (uint32_t i = 0; i < g.n; ++i) {
      const float v = fabsf(g.x[i * g.along] * unit.down);
      product += v * (round_to_even(least_of(v * inverse - 0.5f, outer)) + 0.5f);
    }
    const bool any = unit.most > quant::kTinyGroup;
    at.step[e] = any ? best * unit.up : 0.0f;
    at.scale[e] = any ? squares / product * unit.up : 0.0f;
  }
  team.sync();
}

}  // namespace tierkv::cuda
