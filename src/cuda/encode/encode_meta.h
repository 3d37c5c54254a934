// encode_meta.h — the scales and minimums of a block's groups as bytes (meta.cc), part of encode_block.h.
#pragma once

#include "cuda/encode/encode_block.h"

namespace tierkv::cuda {

inline constexpr uint32_t kMetaRun = 64;

TIERKV_BOTH void store_float(uint8_t* at, float x) { *reinterpret_cast<float*>(at) = x; }
TIERKV_BOTH void store_short(uint8_t* at, uint16_t x) { *reinterpret_cast<uint16_t*>(at) = x; }

// The largest fp16 that is not above x, the smallest that is not below it.
TIERKV_BOTH uint16_t half_below(float x) {
  const uint16_t h = to_half(x);
  if (half_value(h) <= x) return h;
  if (h == 0) return 0x8001;
  return static_cast<uint16_t>((h & 0x8000u) != 0 ? h + 1 : h - 1);
}
TIERKV_BOTH uint16_t half_above(float x) { return static_cast<uint16_t>(half_below(-x) ^ 0x8000u); }

// REQUIRES: x >= 0.
TIERKV_BOTH float float_above(double x) {
  const auto f = static_cast<float>(x);
  return static_cast<double>(f) < x ? bits_float(float_bits(f) + 1) : f;
}

TIERKV_BOTH uint32_t pick_level(const float* levels, uint32_t count, float factor, double want, quant::Rounding rounding) {
  if (!(want > 0.0)) return 0;
  uint32_t lo = 1, hi = count - 1;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (static_cast<double>(levels[mid] * factor) >= want) hi = mid;
    else lo = mid + 1;
  }
  if (rounding == quant::Rounding::cover) return lo;
  const double above = static_cast<double>(levels[lo] * factor) - want;
  const double below = want - static_cast<double>(levels[lo - 1] * factor);
  return below < above ? lo - 1 : lo;
}

TIERKV_BOTH double scale_wish(float lo, float hi, float stored_lo, uint32_t levels, quant::Rounding rounding) {
  const double from = static_cast<double>(rounding == quant::Rounding::cover ? stored_lo : lo);
  return (static_cast<double>(hi) - from) / (levels - 1);
}

// The code of a minimum on `codes` levels from `lo` on.
TIERKV_BOTH int minimum_code(float want, float lo, float step, int codes, quant::Rounding rounding) {
  if (!(step > 0.0f)) return 0;
  const double at = (static_cast<double>(want) - static_cast<double>(lo)) / static_cast<double>(step);
  const bool cover = rounding == quant::Rounding::cover;
  const double near = floor(cover ? at : at + 0.5);  // of rows that are refused anything, not a number even
  int code = !(near > 0.0) ? 0 : near > codes - 1 ? codes - 1 : static_cast<int>(near);
  while (cover && code > 0 && lo + step * static_cast<float>(code) > want) --code;
  return code;
}

TIERKV_BOTH void nibble_levels(float top, float ratio, float (&levels)[16]) {
  levels[0] = 0.0f, levels[15] = top;
  for (int k = 14; k >= 1; --k) levels[k] = levels[k + 1] * ratio;
}

// What a run of log8_pair or log4_pair stores of itself.
struct MetaRuns {
  bool nibbles;
  uint32_t n, header, whole;  // entries; bytes of a header and of a whole run
  uint8_t* meta;

  TIERKV_BOTH uint8_t* run(uint32_t r) const { return meta + r * whole; }
  TIERKV_BOTH uint32_t count(uint32_t r) const { return n - r * kMetaRun < kMetaRun ? n - r * kMetaRun : kMetaRun; }
  TIERKV_BOTH float lo(uint32_t r) const { return *reinterpret_cast<const float*>(run(r) + header - 8); }
  TIERKV_BOTH float step(uint32_t r) const { return *reinterpret_cast<const float*>(run(r) + header - 4); }
};
TIERKV_BOTH MetaRuns runs_of(const quant::SideLayout& side, uint8_t* meta) {
  const bool nibbles = side.meta == quant::MetaKind::log4_pair;
  const uint32_t header = nibbles ? 16 : 12;
  return {nibbles, entries_of(side), header, header + (nibbles ? kMetaRun : 2 * kMetaRun), meta};
}

// The grid of a run's minimums, by one thread.
TIERKV_BOTH void store_minimums(const MetaRuns& runs, const EncodeShared& at, uint32_t r) {
  const uint32_t first = r * kMetaRun;
  float lo = at.lo[first], hi = lo;
  for (uint32_t i = first; i < first + runs.count(r); ++i) lo = least_of(lo, at.lo[i]), hi = most_of(hi, at.lo[i]);
  store_float(runs.run(r) + runs.header - 8, lo);
  store_float(runs.run(r) + runs.header - 4, (hi - lo) / static_cast<float>((runs.nibbles ? 16 : 256) - 1));
}

// And that of its scales.
TIERKV_BOTH void store_scales(const MetaRuns& runs, const double* wishes, uint32_t r) {
  double top = 0.0, bottom = 1.0e300 * 1.0e300;
  for (uint32_t i = r * kMetaRun; i < r * kMetaRun + runs.count(r); ++i) {
    top = top < wishes[i] ? wishes[i] : top;
    if (wishes[i] > 0.0 && wishes[i] < bottom) bottom = wishes[i];
  }
  store_float(runs.run(r), float_above(top));
  if (!runs.nibbles) return;
  float ratio = 1.0f;
  if (top > 0.0) {
    const double even = pow(bottom / top, 1.0 / 14.0), least = exp2(-6.0 / 14.0);
    ratio = static_cast<float>(even < least ? least : even);
  }
  store_float(runs.run(r) + 4, ratio);
}

// log8_pair and log4_pair. What was stored takes the place of the fit: scales in `scale`, offsets in `step`.
TIERKV_BOTH void encode_runs(const Team& team, const quant::SideCoding& coding, const EncodeShared& at, const float* log8,
                             uint8_t* meta) {
  const MetaRuns runs = runs_of(coding.layout, meta);
  const uint32_t levels = 1u << coding.layout.bits;
  const int codes = runs.nibbles ? 16 : 256;
  auto* const wishes = reinterpret_cast<double*>(at.errors);
  for (uint32_t r = team.thread; r * kMetaRun < runs.n; r += team.threads) store_minimums(runs, at, r);
  team.sync();
  for (uint32_t e = team.thread; e < runs.n; e += team.threads) {
    const float lo = runs.lo(e / kMetaRun), step = runs.step(e / kMetaRun);
    const float stored = lo + step * static_cast<float>(minimum_code(at.lo[e], lo, step, codes, coding.rounding));
    wishes[e] = scale_wish(at.lo[e], at.hi[e], stored, levels, coding.rounding);
  }
  team.sync();
  for (uint32_t r = team.thread; r * kMetaRun < runs.n; r += team.threads) store_scales(runs, wishes, r);
  team.sync();
  for (uint32_t e = team.thread; e < runs.n; e += team.threads) {
    const uint32_t r = e / kMetaRun, i = e % kMetaRun;
    uint8_t* const entries = runs.run(r) + runs.header;
    const float factor = *reinterpret_cast<const float*>(runs.run(r));
    const int minimum = minimum_code(at.lo[e], runs.lo(r), runs.step(r), codes, coding.rounding);
    at.step[e] = runs.lo(r) + runs.step(r) * static_cast<float>(minimum);
    if (runs.nibbles) {
      float steps[16];
      nibble_levels(factor, *reinterpret_cast<const float*>(runs.run(r) + 4), steps);
      const uint32_t code = pick_level(steps, 16, 1.0f, wishes[e], coding.rounding);
      entries[i] = static_cast<uint8_t>(code | static_cast<uint32_t>(minimum) << 4);
      at.scale[e] = steps[code];
    } else {
      const uint32_t code = pick_level(log8, 256, factor, wishes[e], coding.rounding);
      entries[i] = static_cast<uint8_t>(code);
      entries[runs.count(r) + i] = static_cast<uint8_t>(minimum);
      at.scale[e] = factor * log8[code];
    }
  }
  team.sync();
}

// The others, an entry a thread: scales that were stored in `scale`, and minimums in `hi`.
TIERKV_BOTH void encode_entries(const Team& team, const quant::SideCoding& coding, const EncodeShared& at, const float* log8,
                                uint8_t* meta) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t n = entries_of(side), levels = 1u << side.bits;
  const bool cover = coding.rounding == quant::Rounding::cover;
  float top = 0.0f;  // log8_scale: everybody looks for it
  for (uint32_t e = 0; side.meta == quant::MetaKind::log8_scale && e < n; ++e) top = most_of(top, at.scale[e]);
  team.sync();
  if (team.thread == 0 && side.meta == quant::MetaKind::log8_scale) store_float(meta, top);
  for (uint32_t e = team.thread; e < n; e += team.threads) {
    const float lo = at.lo[e], hi = at.hi[e];
    if (side.meta == quant::MetaKind::log8_scale) {
      const uint32_t code = pick_level(log8, 256, top, static_cast<double>(at.scale[e]), quant::Rounding::nearest);
      meta[4 + e] = static_cast<uint8_t>(code);
      at.scale[e] = top * log8[code];
    } else if (side.meta == quant::MetaKind::f16_scale) {
      const uint16_t stored = cover ? half_above(at.scale[e]) : to_half(at.scale[e]);
      store_short(meta + 2 * e, stored);
      at.scale[e] = half_value(stored);
    } else {
      uint16_t scale = 0, least = to_half(lo);
      if (hi > lo) {
        if (cover) least = half_below(lo);
        const double wish = scale_wish(lo, hi, half_value(least), levels, coding.rounding);
        scale = cover ? half_above(float_above(wish)) : to_half(static_cast<float>(wish));
      }
      store_short(meta + 2 * e, scale);
      store_short(meta + 2 * (n + e), least);
      at.scale[e] = half_value(scale);
      at.hi[e] = half_value(least);
    }
  }
  team.sync();
}

// validate_meta(), and the grids that codes are taken with: `scale` and `lo`; `own_steps`: those of the fits.
TIERKV_BOTH void check_grids(const Team& team, const EncodeDesc& work, const quant::SideCoding& coding, const EncodeShared& at,
                             bool own_steps) {
  const quant::SideLayout& side = coding.layout;
  const bool runs = side.meta == quant::MetaKind::log8_pair || side.meta == quant::MetaKind::log4_pair;
  for (uint32_t e = team.thread; e < entries_of(side); e += team.threads) {
    const float scale = at.scale[e];
    const float offset = runs ? at.step[e] : side.meta == quant::MetaKind::f16_pair ? at.hi[e] : -side.zero * scale;
    const float end = offset + scale * static_cast<float>((1u << side.bits) - 1u);
    if (!(scale >= 0.0f && fabsf(offset) <= kMostStored && fabsf(end) <= kMostStored)) *work.refused = 1;
    at.lo[e] = offset;
    if (own_steps) at.scale[e] = at.step[e], at.lo[e] = -side.zero * at.step[e];
  }
  team.sync();
}

TIERKV_BOTH void encode_meta(const Team& team, const EncodeDesc& work, const quant::SideCoding& coding, const EncodeShared& at,
                             const float* log8, bool own_steps) {
  uint8_t* const meta = work.out + coding.layout.meta_at;
  if (coding.layout.meta == quant::MetaKind::log8_pair || coding.layout.meta == quant::MetaKind::log4_pair)
    encode_runs(team, coding, at, log8, meta);
  else encode_entries(team, coding, at, log8, meta);
  check_grids(team, work, coding, at, own_steps);
}

}  // namespace tierkv::cuda
