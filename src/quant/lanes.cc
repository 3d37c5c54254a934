#include "quant/lanes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "quant/layout.h"
#include "quant/vec.h"

namespace tierkv::quant {

static_assert(std::endian::native == std::endian::little, "block bytes are little-endian words read in place");

namespace {

// One plane of one tile: sixteen lanes are four vectors, every shift a constant.
template <uint32_t P, bool kFirst>
void unpack_plane(const std::byte* in, uint32_t chunks, float weight, float* out) {
  constexpr uint32_t kMask = (1u << P) - 1u;
  const Float4 factor = splat4(weight);
  for (uint32_t j = 0; j < chunks; ++j) {
    for (uint32_t part = 0; part < 4; ++part) {
      const Word4 words = load4<Word4>(in + static_cast<size_t>(j) * 64 + part * 16);
      float* column = out + static_cast<size_t>(j) * (32 / P) * kTileLanes + part * 4;
      for (uint32_t f = 0; f < 8 / P; ++f) {
        for (uint32_t k = 0; k < 4; ++k) {
          float* at = column + static_cast<size_t>(4 * f + k) * kTileLanes;
          const Float4 v = to_float4((words >> (8 * k + P * f)) & kMask) * factor;
          store4(at, kFirst ? v : load4<Float4>(at) + v);
        }
      }
    }
  }
}

template <bool kFirst>
void unpack_plane(uint32_t bits, const std::byte* in, uint32_t chunks, float weight, float* out) {
  switch (bits) {
    case 8: return unpack_plane<8, kFirst>(in, chunks, weight, out);
    case 4: return unpack_plane<4, kFirst>(in, chunks, weight, out);
    case 2: return unpack_plane<2, kFirst>(in, chunks, weight, out);
    default: return unpack_plane<1, kFirst>(in, chunks, weight, out);
  }
}

}  // namespace

Lanes::Lanes(uint32_t lanes, uint32_t depth, uint32_t bits)
    : lanes_(lanes), depth_(depth), bits_(bits), tiles_((lanes + kTileLanes - 1) / kTileLanes) {
  uint32_t left = bits;
  while (left > 0) {
    Plane& plane = planes_[plane_count_++];
    plane.bits = std::min(8u, std::bit_floor(left));
    left -= plane.bits;
    plane.shift = left;
    const uint32_t positions = 32 / plane.bits;
    plane.chunks = (depth + positions - 1) / positions;
    plane.offset = bytes_;
    bytes_ += static_cast<size_t>(tiles_) * plane.chunks * kTileLanes * sizeof(uint32_t);
  }
}

void Lanes::layout(LayoutPlane (&planes)[4]) const {
  static_assert(kMostPlanes == 4);
  for (uint32_t p = 0; p < kMostPlanes; ++p) {
    planes[p] = LayoutPlane();
    if (p < plane_count_)
      planes[p] = {planes_[p].bits, planes_[p].shift, planes_[p].chunks, static_cast<uint32_t>(planes_[p].offset)};
  }
}

PackedSide Lanes::packed_side() const {
  PackedSide side;
  side.bits = bits_;
  side.depth = depth_;
  for (uint32_t p = 0; p < plane_count_; ++p) side.planes[p] = {planes_[p].bits, planes_[p].chunks, planes_[p].offset};
  side.middle = 0.5f * static_cast<float>((1u << bits_) - 1u);
  return side;
}

void Lanes::pack(const uint16_t* codes, size_t lane_stride, size_t depth_stride, std::byte* out) const {
  for (uint32_t p = 0; p < plane_count_; ++p) {
    const Plane& plane = planes_[p];
    const uint32_t positions = 32 / plane.bits;
    const uint32_t mask = (1u << plane.bits) - 1u;
    std::byte* at = out + plane.offset;
    for (uint32_t tile = 0; tile < tiles_; ++tile) {
      for (uint32_t chunk = 0; chunk < plane.chunks; ++chunk) {
        for (uint32_t l = 0; l < kTileLanes; ++l) {
          const uint32_t lane = tile * kTileLanes + l;
          const uint32_t first = chunk * positions;
          const uint32_t count = lane < lanes_ ? std::min(positions, depth_ - first) : 0;
          uint32_t word = 0;
          for (uint32_t i = 0; i < count; ++i) {
            const uint32_t code = codes[lane * lane_stride + (first + i) * depth_stride];
            word |= ((code >> plane.shift) & mask) << (8 * (i % 4) + plane.bits * (i / 4));
          }
          std::memcpy(at, &word, sizeof word);
          at += sizeof word;
        }
      }
    }
  }
}

uint32_t Lanes::get(const std::byte* in, uint32_t lane, uint32_t position) const {
  uint32_t code = 0;
  for (uint32_t p = 0; p < plane_count_; ++p) {
    const Plane& plane = planes_[p];
    const uint32_t positions = 32 / plane.bits;
    const size_t index =
        (static_cast<size_t>(lane / kTileLanes) * plane.chunks + position / positions) * kTileLanes + lane % kTileLanes;
    uint32_t word;
    std::memcpy(&word, in + plane.offset + index * sizeof word, sizeof word);
    const uint32_t i = position % positions;
    code |= ((word >> (8 * (i % 4) + plane.bits * (i / 4))) & ((1u << plane.bits) - 1u)) << plane.shift;
  }
  return code;
}

void Lanes::unpack_tile(const std::byte* in, uint32_t tile, uint32_t depth, float* out) const {
  const uint32_t wanted = depth == 0 ? depth_ : std::min(depth, depth_);
  for (uint32_t p = 0; p < plane_count_; ++p) {
    const Plane& plane = planes_[p];
    const uint32_t positions = 32 / plane.bits;
    const uint32_t chunks = (wanted + positions - 1) / positions;
    const std::byte* at = in + plane.offset + static_cast<size_t>(tile) * plane.chunks * kTileLanes * sizeof(uint32_t);
    const float weight = static_cast<float>(1u << plane.shift);
    if (p == 0) {
      unpack_plane<true>(plane.bits, at, chunks, weight, out);
    } else {
      unpack_plane<false>(plane.bits, at, chunks, weight, out);
    }
  }
}

}  // namespace tierkv::quant
