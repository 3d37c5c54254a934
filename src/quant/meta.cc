#include "quant/meta.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/isa.h"

namespace tierkv::quant {

namespace {

constexpr uint32_t kRun = 64;
constexpr size_t kLog8Header = 3 * sizeof(float);
constexpr size_t kLog4Header = 4 * sizeof(float);

template <class T>
T load(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

template <class T>
void store(std::byte* at, T v) {
  std::memcpy(at, &v, sizeof v);
}

// The largest fp16 that is not above x, the smallest that is not below it. Past the range: infinity, refused later.
uint16_t f16_below(float x) {
  const uint16_t h = f32_to_f16(x);
  if (f16_to_f32(h) <= x) return h;
  if (h == 0) return 0x8001;
  return (h & 0x8000u) != 0 ? static_cast<uint16_t>(h + 1) : static_cast<uint16_t>(h - 1);
}
uint16_t f16_above(float x) { return static_cast<uint16_t>(f16_below(-x) ^ 0x8000u); }

float float_above(double x) {
  const float f = static_cast<float>(x);
  return f < x ? std::nextafter(f, std::numeric_limits<float>::infinity()) : f;
}

// 2^((code-255)/32), code 0 is zero.
const std::array<float, 256>& log8_levels() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (int code = 1; code < 256; ++code) t[code] = static_cast<float>(std::exp2((code - 255) / 32.0));
    return t;
  }();
  return table;
}

// Index of the level (ascending, level 0 = zero) for `want`: the first that is not below it, or the nearest.
uint32_t pick_level(const float* levels, uint32_t count, float factor, double want, Rounding rounding) {
  if (!(want > 0.0)) return 0;
  uint32_t lo = 1, hi = count - 1;
  while (lo < hi) {
    const uint32_t mid = (lo + hi) / 2;
    if (static_cast<double>(levels[mid] * factor) >= want) hi = mid;
    else lo = mid + 1;
  }
  if (rounding == Rounding::cover) return lo;
  const double above = static_cast<double>(levels[lo] * factor) - want, below = want - static_cast<double>(levels[lo - 1] * factor);
  return below < above ? lo - 1 : lo;
}

std::array<float, 16> log4_levels(float top, float ratio) {
  std::array<float, 16> levels{};
  levels[15] = top;
  for (int k = 14; k >= 1; --k) levels[k] = levels[k + 1] * ratio;
  return levels;
}

// Minimums of a run on `codes` equidistant levels; returns lo and step and leaves the stored minimum of each entry in `stored`.
struct MinimumGrid {
  float lo, step;
};
MinimumGrid code_minimums(std::span<const GroupFit> run, uint32_t codes, Rounding rounding, uint8_t* out, float* stored) {
  float lo = run[0].lo, hi = run[0].lo;
  for (const GroupFit& fit : run) {
    lo = std::min(lo, fit.lo);
    hi = std::max(hi, fit.lo);
  }
  const float step = (hi - lo) / static_cast<float>(codes - 1);
  for (size_t i = 0; i < run.size(); ++i) {
    int code = 0;
    if (step > 0.0f) {
      const double at = (static_cast<double>(run[i].lo) - lo) / step;
      code = std::clamp(static_cast<int>(rounding == Rounding::cover ? std::floor(at) : std::floor(at + 0.5)), 0,
                        static_cast<int>(codes) - 1);
      if (rounding == Rounding::cover) {
        while (code > 0 && lo + step * static_cast<float>(code) > run[i].lo) --code;
      }
    }
    out[i] = static_cast<uint8_t>(code);
    stored[i] = lo + step * static_cast<float>(code);
  }
  return {lo, step};
}

// The scale each entry of a run needs, given the minimums that were stored.
double scale_wish(const GroupFit& fit, float stored_lo, uint32_t levels, Rounding rounding) {
  const double from = rounding == Rounding::cover ? stored_lo : fit.lo;
  return (static_cast<double>(fit.hi) - from) / (levels - 1);
}

void encode_log8_run(const MetaFormat& format, std::span<const GroupFit> run, std::byte* out) {
  uint8_t mins[kRun];
  float stored[kRun];
  const MinimumGrid grid = code_minimums(run, 256, format.rounding, mins, stored);
  double top = 0.0;
  for (size_t i = 0; i < run.size(); ++i) top = std::max(top, scale_wish(run[i], stored[i], format.levels, format.rounding));
  const float factor = float_above(top);
  store(out, factor);
  store(out + 4, grid.lo);
  store(out + 8, grid.step);
  for (size_t i = 0; i < run.size(); ++i) {
    const double wish = scale_wish(run[i], stored[i], format.levels, format.rounding);
    out[kLog8Header + i] = static_cast<std::byte>(pick_level(log8_levels().data(), 256, factor, wish, format.rounding));
    out[kLog8Header + run.size() + i] = static_cast<std::byte>(mins[i]);
  }
}

void encode_log4_run(const MetaFormat& format, std::span<const GroupFit> run, std::byte* out) {
  uint8_t mins[kRun];
  float stored[kRun];
  const MinimumGrid grid = code_minimums(run, 16, format.rounding, mins, stored);
  double top = 0.0, bottom = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < run.size(); ++i) {
    const double wish = scale_wish(run[i], stored[i], format.levels, format.rounding);
    top = std::max(top, wish);
    if (wish > 0.0) bottom = std::min(bottom, wish);
  }
  const float factor = float_above(top);
  // At most six octaves: a run with one tiny group keeps its resolution for the others.
  const float ratio = top > 0.0 ? static_cast<float>(std::max(std::pow(bottom / top, 1.0 / 14.0), std::exp2(-6.0 / 14.0))) : 1.0f;
  store(out, factor);
  store(out + 4, ratio);
  store(out + 8, grid.lo);
  store(out + 12, grid.step);
  const std::array<float, 16> levels = log4_levels(factor, ratio);
  for (size_t i = 0; i < run.size(); ++i) {
    const double wish = scale_wish(run[i], stored[i], format.levels, format.rounding);
    const uint32_t code = pick_level(levels.data(), 16, 1.0f, wish, format.rounding);
    out[kLog4Header + i] = static_cast<std::byte>(code | (static_cast<uint32_t>(mins[i]) << 4));
  }
}

void encode_f16_pair(const MetaFormat& format, std::span<const GroupFit> fits, std::byte* out) {
  for (size_t i = 0; i < fits.size(); ++i) {
    const GroupFit& fit = fits[i];
    uint16_t scale = 0, lo = f32_to_f16(fit.lo);
    if (fit.hi > fit.lo) {
      if (format.rounding == Rounding::cover) lo = f16_below(fit.lo);
      const double wish = scale_wish(fit, f16_to_f32(lo), format.levels, format.rounding);
      scale = format.rounding == Rounding::cover ? f16_above(float_above(wish)) : f32_to_f16(static_cast<float>(wish));
    }
    store(out + i * 2, scale);
    store(out + (fits.size() + i) * 2, lo);
  }
}

void encode_log8_scale(std::span<const GroupFit> fits, std::byte* out) {
  float top = 0.0f;
  for (const GroupFit& fit : fits) top = std::max(top, fit.scale);
  store(out, top);
  for (size_t i = 0; i < fits.size(); ++i) {
    out[4 + i] = static_cast<std::byte>(pick_level(log8_levels().data(), 256, top, fits[i].scale, Rounding::nearest));
  }
}

}  // namespace

size_t meta_bytes(const MetaFormat& format) {
  const size_t n = format.entries, runs = (n + kRun - 1) / kRun;
  switch (format.kind) {
    case MetaKind::f16_pair: return n * 4;
    case MetaKind::f16_scale: return n * 2;
    case MetaKind::f32_scale: return n * 4;
    case MetaKind::f32_pair: return n * 8;
    case MetaKind::log8_scale: return 4 + n;
    case MetaKind::log8_pair: return runs * kLog8Header + 2 * n;
    case MetaKind::log4_pair: return runs * kLog4Header + n;
  }
  return 0;
}

Status encode_meta(const MetaFormat& format, std::span<const GroupFit> fits, std::byte* out) {
  std::byte* at = out;
  switch (format.kind) {
    case MetaKind::f16_pair: encode_f16_pair(format, fits, out); break;
    case MetaKind::f16_scale:
      for (size_t i = 0; i < fits.size(); ++i) {
        store(out + i * 2, format.rounding == Rounding::cover ? f16_above(fits[i].scale) : f32_to_f16(fits[i].scale));
      }
      break;
    case MetaKind::f32_scale:
      for (size_t i = 0; i < fits.size(); ++i) store(out + i * 4, fits[i].scale);
      break;
    case MetaKind::f32_pair:
      for (size_t i = 0; i < fits.size(); ++i) {
        store(out + i * 4, fits[i].scale);
        store(out + (fits.size() + i) * 4, fits[i].zero);
      }
      break;
    case MetaKind::log8_scale: encode_log8_scale(fits, out); break;
    case MetaKind::log8_pair:
    case MetaKind::log4_pair:
      for (size_t first = 0; first < fits.size(); first += kRun) {
        const std::span<const GroupFit> run = fits.subspan(first, std::min<size_t>(kRun, fits.size() - first));
        if (format.kind == MetaKind::log8_pair) {
          encode_log8_run(format, run, at);
          at += kLog8Header + 2 * run.size();
        } else {
          encode_log4_run(format, run, at);
          at += kLog4Header + run.size();
        }
      }
      break;
  }
  if (const Status status = validate_meta(format, out); !status.ok()) {
    return error(StatusCode::invalid_argument, "the rows are too large for this codec: ", status.message());
  }
  return Status();
}

namespace {

// The kernels give the same bits as the loops below.
void widen_halves(const std::byte* in, uint32_t n, float* out) {
  const Kernels* kernels = n % 16 == 0 ? active_kernels() : nullptr;
  if (kernels) return kernels->widen(reinterpret_cast<const uint16_t*>(in), /*bf16=*/false, n, out);
  for (uint32_t i = 0; i < n; ++i) out[i] = f16_to_f32(load<uint16_t>(in + i * 2));
}

void look_up_log8(float top, const std::byte* in, uint32_t n, float* out) {
  if (const Kernels* kernels = active_kernels()) return kernels->lookup_bytes(log8_levels().data(), top, in, n, out);
  for (uint32_t i = 0; i < n; ++i) out[i] = top * log8_levels()[static_cast<uint8_t>(in[i])];
}

void decode_log8_run(const std::byte* in, uint32_t n, float* scales, float* offsets) {
  const float lo = load<float>(in + 4), step = load<float>(in + 8);
  look_up_log8(load<float>(in), in + kLog8Header, n, scales);
  in += kLog8Header + n;
  if (const Kernels* kernels = active_kernels()) return kernels->affine_bytes(lo, step, in, n, offsets);
  for (uint32_t i = 0; i < n; ++i) offsets[i] = lo + step * static_cast<float>(static_cast<uint8_t>(in[i]));
}

void decode_log4_run(const std::byte* in, uint32_t n, float* scales, float* offsets) {
  const std::array<float, 16> levels = log4_levels(load<float>(in), load<float>(in + 4));
  const float lo = load<float>(in + 8), step = load<float>(in + 12);
  in += kLog4Header;
  if (const Kernels* kernels = active_kernels()) return kernels->lookup_nibbles(levels.data(), lo, step, in, n, scales, offsets);
  for (uint32_t i = 0; i < n; ++i) {
    const uint8_t code = static_cast<uint8_t>(in[i]);
    scales[i] = levels[code & 15u];
    offsets[i] = lo + step * static_cast<float>(code >> 4);
  }
}

}  // namespace

void decode_meta(const MetaFormat& format, const std::byte* in, float* scales, float* offsets) {
  const uint32_t n = format.entries;
  switch (format.kind) {
    case MetaKind::f16_pair:
      widen_halves(in, n, scales);
      widen_halves(in + 2 * static_cast<size_t>(n), n, offsets);
      return;
    case MetaKind::f16_scale: widen_halves(in, n, scales); break;
    case MetaKind::f32_scale:
      for (uint32_t i = 0; i < n; ++i) scales[i] = load<float>(in + i * 4);
      break;
    case MetaKind::f32_pair:
      for (uint32_t i = 0; i < n; ++i) scales[i] = load<float>(in + i * 4);
      for (uint32_t i = 0; i < n; ++i) offsets[i] = -scales[i] * load<float>(in + (n + i) * 4);
      return;
    case MetaKind::log8_scale: look_up_log8(load<float>(in), in + 4, n, scales); break;
    case MetaKind::log8_pair:
      for (uint32_t first = 0; first < n; first += kRun) {
        const uint32_t count = std::min(kRun, n - first);
        decode_log8_run(in, count, scales + first, offsets + first);
        in += kLog8Header + 2 * count;
      }
      return;
    case MetaKind::log4_pair:
      for (uint32_t first = 0; first < n; first += kRun) {
        const uint32_t count = std::min(kRun, n - first);
        decode_log4_run(in, count, scales + first, offsets + first);
        in += kLog4Header + count;
      }
      return;
  }
  for (uint32_t i = 0; i < n; ++i) offsets[i] = -format.zero * scales[i];
}

Status validate_meta(const MetaFormat& format, const std::byte* in) {
  std::vector<float> scales(format.entries), offsets(format.entries);
  decode_meta(format, in, scales.data(), offsets.data());
  for (uint32_t i = 0; i < format.entries; ++i) {
    const float end = offsets[i] + scales[i] * static_cast<float>(format.levels - 1);
    if (!(scales[i] >= 0.0f && std::fabs(offsets[i]) <= kMaxStored && std::fabs(end) <= kMaxStored)) {
      return error(StatusCode::data_loss, "group ", i, " has scale ", scales[i], " and offset ", offsets[i],
                   "; allowed: finite, scale not negative, inside the range of the format");
    }
  }
  return Status();
}

}  // namespace tierkv::quant
