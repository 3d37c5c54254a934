// lanes.h — codes of 1..16 bits, packed so that one shift and one mask yield four neighbours in four byte lanes.
//
// Layout:   a code is split into bit planes of 8, 4, 2 and 1 bits, widest first: 3 = 2+1, 5 = 4+1, 7 = 4+2+1, 11 = 8+2+1, 16 = 8+8.
//           The first plane holds the most significant bits, so it alone is a coarser version of the same grid. Planes follow
//           one another whole. A plane of p bits is an array of 32-bit little-endian words: lanes in tiles of 16; in a tile, for
//           each chunk of 32/p positions along the depth, 16 words, one per lane. Position 4·f + k of a chunk lies in byte k of the
//           word, in bits p·f .. p·f+p-1 of that byte.
//           Keys: lane = token, depth = channel. Values: lane = channel, depth = token. Four consecutive positions of a lane
//           end up in the four bytes of one word, which is what an 8-bit dot-product instruction adds up, and nothing else is.
// Padding:  lanes to 16 and the depth to a whole word of each plane, with zero codes. Depths in steps of 32 lose nothing.
// Threads:  immutable after construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/kernels.h"

namespace tierkv::quant {

struct LayoutPlane;

inline constexpr uint32_t kTileLanes = 16;

class Lanes {
 public:
  // REQUIRES: lanes >= 1, depth >= 1, 1 <= bits <= 16.
  Lanes(uint32_t lanes, uint32_t depth, uint32_t bits);

  size_t bytes() const { return bytes_; }
  uint32_t tiles() const { return tiles_; }

  // The codes as the kernels want them described; groups and levels are the codec's to fill in. REQUIRES: bits <= 8.
  PackedSide packed_side() const;

  // The planes as layout.h has them.
  void layout(LayoutPlane (&planes)[4]) const;

  // Floats a buffer for unpack_tile() needs: the depth rounded up to whole words of the narrowest plane, 16 lanes each.
  size_t tile_floats() const { return static_cast<size_t>((depth_ + 31u) / 32u) * 32u * kTileLanes; }

  // codes[lane*lane_stride + position*depth_stride] must be below 2^bits. Writes all bytes() bytes.
  void pack(const uint16_t* codes, size_t lane_stride, size_t depth_stride, std::byte* out) const;

  uint32_t get(const std::byte* in, uint32_t lane, uint32_t position) const;

  // out[position*16 + lane in tile] = code, for positions below `depth` (0: all). Writes at most tile_floats() floats.
  void unpack_tile(const std::byte* in, uint32_t tile, uint32_t depth, float* out) const;

 private:
  struct Plane {
    uint32_t bits = 0;    // 8, 4, 2 or 1
    uint32_t shift = 0;   // of its bits in the code
    uint32_t chunks = 0;  // words per lane
    size_t offset = 0;    // of its first byte
  };
  uint32_t lanes_, depth_, bits_, tiles_;
  uint32_t plane_count_ = 0;
  Plane planes_[4];
  size_t bytes_ = 0;
};

}  // namespace tierkv::quant
