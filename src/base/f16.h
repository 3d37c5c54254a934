// f16.h — IEEE half and bfloat16 <-> float, round to nearest even, bit-exact on every machine.
//
// Values past the range of the target become infinity; callers that must not lose them check with fits_f16().
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tierkv {

inline constexpr float kMaxF16 = 65504.0f;

inline float f16_to_f32(uint16_t h) {
  // Shift the 15 magnitude bits under a float's exponent and let one multiplication by 2^112 rebias it, subnormals included.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7FFFu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000u);
  const uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;  // infinity and NaN keep an all-ones exponent
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline uint16_t f32_to_f16(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (x >> 16) & 0x8000u;
  const uint32_t mag = x & 0x7FFFFFFFu;
  if (mag >= 0x7F800000u) return static_cast<uint16_t>(sign | 0x7C00u | (mag > 0x7F800000u ? 0x200u : 0u));
  if (mag >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65520 or more
  if (mag < 0x38800000u) {
    // Subnormal half: adding 0.5 aligns the float's last bit with the half's, so the addition itself rounds to even.
    const float aligned = std::bit_cast<float>(mag) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000u));
  }
  const uint32_t odd = (mag >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((mag - 0x38000000u + 0xFFFu + odd) >> 13));
}

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

inline uint16_t f32_to_bf16(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  if ((x & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((x >> 16) | 0x40u);
  return static_cast<uint16_t>((x + 0x7FFFu + ((x >> 16) & 1u)) >> 16);
}

// Round half to even whatever the floating-point environment says.
inline float round_half_even(float x) {
  const float r = std::floor(x);
  const float frac = x - r;
  if (frac < 0.5f) return r;
  if (frac > 0.5f) return r + 1.0f;
  return std::fmod(r, 2.0f) == 0.0f ? r : r + 1.0f;
}

}  // namespace tierkv
