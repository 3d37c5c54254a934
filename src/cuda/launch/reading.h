// reading.h — reading block bytes by their SideLayout, one lane at a time: the same code for a device and, in tests, for the
// processor.
//
// A lane is a token of keys or a channel of values (lanes.h). Four neighbouring positions of a lane are unpacked at a time: little
// code beats wide steps here, since a device runs it once a view and fetches it every time.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/layout.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define TIERKV_BOTH __host__ __device__ __forceinline__
#else
#include <cmath>

#include "base/f16.h"
#define TIERKV_BOTH inline
#endif

// Only a device's compiler knows this one.
#ifdef __CUDA_ARCH__
#define TIERKV_UNROLL _Pragma("unroll")
#else
#define TIERKV_UNROLL
#endif

namespace tierkv::cuda {

inline constexpr uint32_t kTile = 16;
inline constexpr uint32_t kQuad = 4;

TIERKV_BOTH float half_value(uint16_t bits) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(bits));
#else
  return f16_to_f32(bits);
#endif
}

TIERKV_BOTH float short_value(uint16_t bits, bool bf16) {
  if (!bf16) return half_value(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

TIERKV_BOTH float power_of_two(float x) { return exp2f(x); }

// Metadata is read byte by byte where it need not be aligned: it follows codes, which are whole words, so 4-byte parts are.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float load_float(const uint8_t* at) { return __ldg(reinterpret_cast<const float*>(at)); }
__device__ __forceinline__ uint16_t load_short(const uint8_t* at) { return __ldg(reinterpret_cast<const uint16_t*>(at)); }
__device__ __forceinline__ uint32_t load_word(const uint8_t* at) { return __ldg(reinterpret_cast<const uint32_t*>(at)); }
#else
TIERKV_BOTH float load_float(const uint8_t* at) { return *reinterpret_cast<const float*>(at); }
TIERKV_BOTH uint16_t load_short(const uint8_t* at) { return *reinterpret_cast<const uint16_t*>(at); }
TIERKV_BOTH uint32_t load_word(const uint8_t* at) { return *reinterpret_cast<const uint32_t*>(at); }
#endif

struct ScaleOffset {
  float scale, offset;
};

// 2^((code-255)/32), code 0 is zero.
TIERKV_BOTH float log8_level(uint32_t code) {
  return code == 0 ? 0.0f : power_of_two((static_cast<float>(code) - 255.0f) * 0.03125f);
}

// What of a layout its metadata needs, so that a kernel can keep it in registers.
struct MetaTerms {
  quant::MetaKind kind;
  float zero;
};
TIERKV_BOTH MetaTerms meta_terms(const quant::SideLayout& side) { return {side.meta, side.zero}; }

// Entry `i` of n entries (meta.h).
TIERKV_BOTH ScaleOffset meta_entry(const MetaTerms& terms, const uint8_t* meta, uint32_t i, uint32_t n) {
  constexpr uint32_t kRun = 64;
  switch (terms.kind) {
    case quant::MetaKind::f16_pair: return {half_value(load_short(meta + 2 * i)), half_value(load_short(meta + 2 * (n + i)))};
    case quant::MetaKind::f16_scale: {
      const float scale = half_value(load_short(meta + 2 * i));
      return {scale, -terms.zero * scale};
    }
    case quant::MetaKind::f32_scale: {
      const float scale = load_float(meta + 4 * i);
      return {scale, -terms.zero * scale};
    }
    case quant::MetaKind::f32_pair: {
      const float scale = load_float(meta + 4 * i);
      return {scale, -scale * load_float(meta + 4 * (n + i))};
    }
    case quant::MetaKind::log8_scale: {
      const float scale = load_float(meta) * log8_level(meta[4 + i]);
      return {scale, -terms.zero * scale};
    }
    case quant::MetaKind::log8_pair: {
      const uint32_t run = i / kRun, in_run = i % kRun, rest = n - run * kRun, count = rest < kRun ? rest : kRun;
      const uint8_t* at = meta + run * (12 + 2 * kRun);
      return {load_float(at) * log8_level(at[12 + in_run]),
              load_float(at + 4) + load_float(at + 8) * static_cast<float>(at[12 + count + in_run])};
    }
    case quant::MetaKind::log4_pair: {
      const uint8_t* at = meta + i / kRun * (16 + kRun);
      const uint32_t code = at[16 + i % kRun], low = code & 15u;
      const float shrunk = power_of_two(log2f(load_float(at + 4)) * static_cast<float>(15 - low));
      return {low == 0 ? 0.0f : load_float(at) * shrunk, load_float(at + 8) + load_float(at + 12) * static_cast<float>(code >> 4)};
    }
  }
  return {0.0f, 0.0f};
}
TIERKV_BOTH ScaleOffset meta_entry(const quant::SideLayout& side, const uint8_t* meta, uint32_t i, uint32_t n) {
  return meta_entry(meta_terms(side), meta, i, n);
}

// Positions 4·quad .. 4·quad+3 of a lane as levels: codes, or what the codebook says. They are the four bytes of one field of one
// word of each plane.
TIERKV_BOTH void unpack_quad(const quant::SideLayout& side, const uint8_t* bytes, uint32_t lane, uint32_t quad,
                             float (&out)[kQuad]) {
  uint32_t codes[kQuad] = {};
  for (uint32_t i = 0; i < quant::kMostPlanes && side.planes[i].bits != 0; ++i) {
    const quant::LayoutPlane& plane = side.planes[i];
    const uint32_t fields = 8 / plane.bits, chunk = quad / fields, place = quad % fields * plane.bits;
    const uint32_t word = load_word(bytes + plane.offset + ((lane / kTile * plane.chunks + chunk) * kTile + lane % kTile) * 4);
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kQuad; ++k) codes[k] |= (word >> (8 * k + place) & ((1u << plane.bits) - 1u)) << plane.shift;
  }
  TIERKV_UNROLL
  for (uint32_t k = 0; k < kQuad; ++k) out[k] = side.has_levels ? side.levels[codes[k]] : static_cast<float>(codes[k]);
}

// Components 4·quad .. 4·quad+3 of a token of klt's keys, the widest first: again four bytes of one field of one word.
TIERKV_BOTH void unpack_components(const quant::SideLayout& side, const uint8_t* bytes, uint32_t token, uint32_t quad,
                                   float (&out)[kQuad]) {
  const uint32_t wide = side.words[2], middle = side.words[1], total = wide + middle + side.words[0];
  uint32_t bits = 8, word = quad, field = 0;
  if (quad >= wide + 2 * middle) {
    bits = 2, word = wide + middle + (quad - wide - 2 * middle) / 4, field = (quad - wide - 2 * middle) % 4;
  } else if (quad >= wide) {
    bits = 4, word = wide + (quad - wide) / 2, field = (quad - wide) % 2;
  }
  const uint32_t packed = load_word(bytes + ((token / kTile * total + word) * kTile + token % kTile) * 4);
  TIERKV_UNROLL
  for (uint32_t k = 0; k < kQuad; ++k) out[k] = static_cast<float>(packed >> (8 * k + bits * field) & ((1u << bits) - 1u));
}

// Steps of a tensor-core product over klt's components: 4 words of 8 bits, 2 of 4 or 1 of 2 each.
TIERKV_BOTH uint32_t klt_steps(const quant::SideLayout& key) {
  return (key.words[2] + 3) / 4 + (key.words[1] + 1) / 2 + key.words[0];
}

// The middle of the codes of klt's component j.
TIERKV_BOTH float middle_of(const quant::SideLayout& side, uint32_t j) {
  const uint32_t wide = side.words[2] * 4, middle = side.words[1] * 8;
  return j < wide ? 127.5f : j < wide + middle ? 7.5f : 1.5f;
}

// Cosine and sine of pair p turned by `position`, from the digits' tables (calib::Turner).
TIERKV_BOTH void turn_of(const quant::SideLayout& side, uint32_t position, uint32_t p, float& cosine, float& sine) {
  const uint32_t row = 2 * side.pairs;
  const float* first = side.turns + (position % quant::kTurnBase) * row;
  cosine = first[p], sine = first[side.pairs + p];
  for (uint32_t digit = 1; digit < quant::kTurnDigits && position >> (7 * digit) != 0; ++digit) {
    const float* next = side.turns + (digit * quant::kTurnBase + (position >> (7 * digit)) % quant::kTurnBase) * row;
    const float c = next[p], s = next[side.pairs + p];
    const float both = cosine * c - sine * s;
    sine = cosine * s + sine * c;
    cosine = both;
  }
}

// The sign of a channel in the Hadamard frame (frame.cc).
TIERKV_BOTH constexpr float frame_sign(uint32_t head_dim, uint32_t channel) {
  uint64_t z = (static_cast<uint64_t>(head_dim) << 32) + (channel + 1u) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return ((z ^ (z >> 31)) >> 63) != 0 ? -1.0f : 1.0f;
}

// 2^(n/2).
TIERKV_BOTH float root_power(int n) {
  const int most = 254 - 127, exponent = n >> 1 < -126 ? -126 : n >> 1 > most ? most : n >> 1;
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return n & 1 ? 1.41421356f * power : power;
}

// What a channel of even's keys was divided by, and its mean (even.h); without factors 1 and the mean.
struct ChannelTerms {
  float factor, mean;
};
TIERKV_BOTH ChannelTerms channel_terms(const quant::SideLayout& side, const uint8_t* bytes, uint32_t channel) {
  if (side.mean_at == 0) return {1.0f, 0.0f};
  const uint16_t word = load_short(bytes + side.mean_at + 2 * channel);
  if (!side.even) return {1.0f, half_value(word)};
  const auto base = static_cast<int16_t>(load_short(bytes + side.mean_at + 2 * side.head_dim));
  const int n = base + (word & 7);
  return {root_power(n), half_value(static_cast<uint16_t>(word & 0xFFF8u))};
}

}  // namespace tierkv::cuda
