// body_codes.h — reading packed codes, in the vocabulary of one of avx512.h, avx2.h, neon.h, which is included first: so for all of
// body_*.h, which are the kernels themselves.
//
// A tile is 16 lanes, in 16/kLanes vectors that never meet. A unit is 16 positions of every lane: four vectors of four bytes a
// lane.
#pragma once

#include "quant/kernels.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kTile = 16;
constexpr uint32_t kTileRow = kTile * 4;  // bytes of one word per lane
constexpr uint32_t kMaxBatch = 8;         // rows of factors at a time

TIERKV_INLINE constexpr uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Fetches what comes next, a part at every step of the work at hand.
class Prefetcher {
 public:
  // The last two lines come first: better rows lie there (overlaid.h), and a block with some begins with them.
  Prefetcher(const Ahead& ahead, uint32_t steps) : at_(ahead.at), end_(ahead.at + ahead.bytes) {
    if (ahead.bytes >= 128) prefetch(end_ - 128), prefetch(end_ - 64);
    part_ = steps == 0 ? 0 : ((ahead.bytes + 63) / 64 + steps - 1) / steps * 64;
  }
  TIERKV_INLINE void step() {
    const std::byte* to = static_cast<size_t>(end_ - at_) > part_ ? at_ + part_ : end_;
    for (; at_ < to; at_ += 64) prefetch(at_);
  }

 private:
  const std::byte *at_, *end_;
  size_t part_;
};

// --- reading codes

// Four vectors of bytes: positions 16u .. 16u+15 of kLanes lanes, from a plane of P bits.
template <int P>
TIERKV_INLINE void plane_unit(const uint8_t* base, uint32_t u, I* out) {
  if constexpr (P == 8) {
    for (int g = 0; g < 4; ++g) out[g] = load_words(base + (static_cast<size_t>(u) * 4 + g) * kTileRow);
  } else if constexpr (P == 4) {
    const I mask = splat_word(0x0F0F0F0F);
    const I a = load_words(base + static_cast<size_t>(u) * 2 * kTileRow),
            b = load_words(base + (static_cast<size_t>(u) * 2 + 1) * kTileRow);
    out[0] = bit_and(a, mask);
    out[1] = bit_and(right<4>(a), mask);
    out[2] = bit_and(b, mask);
    out[3] = bit_and(right<4>(b), mask);
  } else if constexpr (P == 2) {
    const I mask = splat_word(0x03030303);
    const I w = load_words(base + static_cast<size_t>(u) * kTileRow);
    out[0] = bit_and(w, mask);
    out[1] = bit_and(right<2>(w), mask);
    out[2] = bit_and(right<4>(w), mask);
    out[3] = bit_and(right<6>(w), mask);
  } else {
    const I mask = splat_word(0x01010101);
    const I w = right_by(load_words(base + static_cast<size_t>(u / 2) * kTileRow), u % 2 * 4);
    out[0] = bit_and(w, mask);
    out[1] = bit_and(right<1>(w), mask);
    out[2] = bit_and(right<2>(w), mask);
    out[3] = bit_and(right<3>(w), mask);
  }
}

constexpr int widest_plane(int bits) { return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }

template <int kBits>
TIERKV_INLINE void read_unit(const uint8_t* const* base, uint32_t part, uint32_t u, I* out) {
  constexpr int kHigh = widest_plane(kBits), kLow = kBits - kHigh;
  plane_unit<kHigh>(base[0] + part, u, out);
  if constexpr (kLow > 0) {
    I low[4];
    read_unit<kLow>(base + 1, part, u, low);
    for (int g = 0; g < 4; ++g) out[g] = bit_or(left<kLow>(out[g]), low[g]);
  }
}

struct TileAt {
  const uint8_t* base[4];
};
TIERKV_INLINE TileAt tile_at(const PackedSide& side, const std::byte* codes, uint32_t tile) {
  TileAt at;
  for (int p = 0; p < 4; ++p) {
    const PackedSide::Plane& plane = side.planes[p];
    at.base[p] = reinterpret_cast<const uint8_t*>(codes) + plane.offset + static_cast<size_t>(tile) * plane.chunks * kTileRow;
  }
  return at;
}

// A tile as bytes, in the layout of an 8-bit plane. With a codebook: the high bytes of its levels, and the low ones in a second
// tile.
template <int kBits>
void unpack_bytes(const TileAt& tile, const uint8_t* levels, uint32_t units, uint8_t* out, uint8_t* low) {
  static const uint8_t kNone[32] = {};
  const ByteTable high_table(levels ? levels : kNone), low_table(levels ? levels + 16 : kNone);
  for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
    for (uint32_t u = 0; u < units; ++u) {
      I codes[4];
      read_unit<kBits>(tile.base, part, u, codes);
      for (uint32_t g = 0; g < 4; ++g) {
        const size_t at = (static_cast<size_t>(u) * 4 + g) * kTileRow + part;
        store_words(out + at, levels ? high_table.at(codes[g]) : codes[g]);
        if (levels) store_words(low + at, low_table.at(codes[g]));
      }
    }
  }
}

void unpack_bytes(const PackedSide& side, const TileAt& tile, uint32_t units, uint8_t* out, uint8_t* low) {
  switch (side.bits) {
    case 1: return unpack_bytes<1>(tile, side.levels, units, out, low);
    case 2: return unpack_bytes<2>(tile, side.levels, units, out, low);
    case 3: return unpack_bytes<3>(tile, side.levels, units, out, low);
    case 4: return unpack_bytes<4>(tile, side.levels, units, out, low);
    case 5: return unpack_bytes<5>(tile, side.levels, units, out, low);
    case 6: return unpack_bytes<6>(tile, side.levels, units, out, low);
    case 7: return unpack_bytes<7>(tile, side.levels, units, out, low);
    default: return unpack_bytes<8>(tile, side.levels, units, out, low);
  }
}

}  // namespace
}  // namespace tierkv::quant
