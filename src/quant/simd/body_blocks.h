// body_blocks.h — whole blocks: values to codes and back. See body_codes.h.
//
// Every result has the bits of the scalar code (grid.cc, lanes.cc, frame.cc): groups lie one a lane, so that the sums of a group
// run in its own order whatever the width of a register, and nothing that rounds is fused.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

// --- codes

// The grid of lanes `lane`.. at a position, and the code of a value on it.
TIERKV_INLINE F grid_at(const PackedSide& side, const LaneGrids& grids, const float* entries, uint32_t lane, uint32_t position) {
  if (grids.per_lane) return load(entries + static_cast<size_t>(position / side.group) * side.across + lane);
  return splat(entries[static_cast<size_t>(lane / side.group) * side.across + position]);
}

TIERKV_INLINE I uniform_code(F v, F scale, F offset, F top) {
  const F zero = splat(0.0f);
  const F code = nearest(min(max(div(sub(v, offset), scale), zero), top));
  return to_words(pick_less(zero, scale, code, zero));
}

TIERKV_INLINE I table_code(F v, F scale, const float* middles, uint32_t count) {
  const F half = mul(splat(0.5f), scale);
  I code = zero_words();
  for (uint32_t k = 0; k < count; ++k) code = count_above(code, v, mul(half, splat(middles[k])));
  return code;
}

// Codes as bytes, four positions a word, in the layout of an 8-bit plane.
template <bool kPerLane>
TIERKV_INLINE void code_bytes(const PackedSide& side, const LaneGrids& grids, uint32_t lane, const float* x, size_t stride,
                              uint8_t* bytes) {
  const uint32_t levels = 1u << side.bits;
  const F top = splat(static_cast<float>(levels - 1));
  F scale = splat(0.0f), offset = scale;
  const auto code = [&](uint32_t p) __attribute__((always_inline)) {
    if (!kPerLane) {
      scale = grid_at(side, grids, grids.scales, lane, p);
      offset = grid_at(side, grids, grids.offsets, lane, p);
    }
    const F v = load(x + p * stride);
    return grids.middles ? table_code(v, scale, grids.middles, levels - 1) : uniform_code(v, scale, offset, top);
  };
  for (uint32_t p = 0; p < side.depth; p += 4) {
    if (kPerLane && p % side.group == 0) {
      scale = grid_at(side, grids, grids.scales, lane, p);
      offset = grid_at(side, grids, grids.offsets, lane, p);
    }
    const I low = bit_or(code(p), left<8>(code(p + 1))), high = bit_or(left<16>(code(p + 2)), left<24>(code(p + 3)));
    store_words(bytes + static_cast<size_t>(p) * kTile, bit_or(low, high));
  }
}

template <int P>
TIERKV_INLINE void pack_plane(const uint8_t* bytes, uint32_t depth, uint32_t chunks, uint32_t shift, uint8_t* out) {
  constexpr uint32_t kFields = 8 / P;
  const I mask = splat_word(static_cast<int32_t>(0x01010101u * ((1u << P) - 1u)));
  for (uint32_t j = 0; j < chunks; ++j) {
    for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
      const auto field = [&](uint32_t f) __attribute__((always_inline)) {
        const uint32_t word = j * kFields + f;  // of four positions
        if (word * 4 >= depth) return zero_words();
        return bit_and(right_by(load_words(bytes + static_cast<size_t>(word) * kTileRow + part), shift), mask);
      };
      I packed = field(0);
      if constexpr (kFields > 1) packed = bit_or(packed, left<P % 8>(field(1)));
      if constexpr (kFields > 2) packed = bit_or(packed, bit_or(left<2 * P % 8>(field(2)), left<3 * P % 8>(field(3))));
      if constexpr (kFields > 4) {
        packed = bit_or(packed, bit_or(left<4 * P % 8>(field(4)), left<5 * P % 8>(field(5))));
        packed = bit_or(packed, bit_or(left<6 * P % 8>(field(6)), left<7 * P % 8>(field(7))));
      }
      store_words(out + static_cast<size_t>(j) * kTileRow + part, packed);
    }
  }
}

void encode_tile(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const float* x, size_t stride, std::byte* out,
                 uint8_t* bytes) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    if (grids.per_lane) code_bytes<true>(side, grids, tile * kTile + l, x + l, stride, bytes + static_cast<size_t>(l) * 4);
    else code_bytes<false>(side, grids, tile * kTile + l, x + l, stride, bytes + static_cast<size_t>(l) * 4);
  }
  uint32_t shift = side.bits;
  for (const PackedSide::Plane& plane : side.planes) {
    if (plane.bits == 0) break;
    shift -= plane.bits;
    uint8_t* at = reinterpret_cast<uint8_t*>(out) + plane.offset + static_cast<size_t>(tile) * plane.chunks * kTileRow;
    switch (plane.bits) {
      case 8: pack_plane<8>(bytes, side.depth, plane.chunks, shift, at); break;
      case 4: pack_plane<4>(bytes, side.depth, plane.chunks, shift, at); break;
      case 2: pack_plane<2>(bytes, side.depth, plane.chunks, shift, at); break;
      default: pack_plane<1>(bytes, side.depth, plane.chunks, shift, at); break;
    }
  }
}

// --- and back

void unpack_codes(const PackedSide& side, uint32_t tile, const std::byte* codes, uint32_t positions, uint8_t* bytes) {
  PackedSide plain = side;
  plain.levels = nullptr;
  unpack_bytes(plain, tile_at(side, codes, tile), (positions + 15) / 16, bytes, nullptr);
}

template <int K, bool kTable>
TIERKV_INLINE F value_of(I word, const Table16& table, F scale, F offset) {
  const I code = bit_and(right<8 * K>(word), splat_word(255));
  return add(offset, mul(scale, kTable ? table.at(code) : to_floats(code)));
}

template <bool kTable>
TIERKV_INLINE void decode_columns(const PackedSide& side, const LaneGrids& grids, uint32_t tile, uint32_t first, uint32_t count,
                                  float* out, size_t stride, const uint8_t* bytes, const Table16& table) {
  const uint32_t end = first + count;
  for (uint32_t p = first / 4 * 4; p < end; p += 4) {
    for (uint32_t l = 0; l < kTile; l += kLanes) {
      const uint32_t lane = tile * kTile + l;
      const I word = load_words(bytes + static_cast<size_t>(p) * kTile + l * 4);
      const auto put = [&](uint32_t at, F v) __attribute__((always_inline)) {
        if (at >= first && at < end) store(out + (at - first) * stride + l, v);
      };
      const auto scale = [&](uint32_t at) __attribute__((always_inline)) { return grid_at(side, grids, grids.scales, lane, at); };
      const auto offset = [&](uint32_t at) __attribute__((always_inline)) { return grid_at(side, grids, grids.offsets, lane, at); };
      put(p, value_of<0, kTable>(word, table, scale(p), offset(p)));
      put(p + 1, value_of<1, kTable>(word, table, scale(p + 1), offset(p + 1)));
      put(p + 2, value_of<2, kTable>(word, table, scale(p + 2), offset(p + 2)));
      put(p + 3, value_of<3, kTable>(word, table, scale(p + 3), offset(p + 3)));
    }
  }
}

constexpr float kNoTable[16] = {};

void decode_columns(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const std::byte* codes, uint32_t first,
                    uint32_t count, float* out, size_t stride, uint8_t* bytes) {
  unpack_codes(side, tile, codes, first + count, bytes);
  const Table16 table(grids.table ? grids.table : kNoTable);
  if (grids.table) decode_columns<true>(side, grids, tile, first, count, out, stride, bytes, table);
  else decode_columns<false>(side, grids, tile, first, count, out, stride, bytes, table);
}

template <bool kTable, bool kPerLane>
TIERKV_INLINE void decode_rows(const PackedSide& side, const LaneGrids& grids, uint32_t tile, float* out, size_t stride,
                               const uint8_t* bytes, const Table16& table) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    const uint32_t lane = tile * kTile + l;
    F scale = splat(0.0f), offset = scale;
    for (uint32_t p = 0; p < side.depth; p += kLanes) {
      if (kPerLane) {
        scale = grid_at(side, grids, grids.scales, lane, p);
        offset = grid_at(side, grids, grids.offsets, lane, p);
      }
      const auto s = [&](uint32_t at) __attribute__((always_inline)) {
        return kPerLane ? scale : grid_at(side, grids, grids.scales, lane, at);
      };
      const auto z = [&](uint32_t at) __attribute__((always_inline)) {
        return kPerLane ? offset : grid_at(side, grids, grids.offsets, lane, at);
      };
      F v[kLanes];
      for (uint32_t k = 0; k < kLanes; k += 4) {
        const I word = load_words(bytes + static_cast<size_t>(p + k) * kTile + l * 4);
        v[k] = value_of<0, kTable>(word, table, s(p + k), z(p + k));
        v[k + 1] = value_of<1, kTable>(word, table, s(p + k + 1), z(p + k + 1));
        v[k + 2] = value_of<2, kTable>(word, table, s(p + k + 2), z(p + k + 2));
        v[k + 3] = value_of<3, kTable>(word, table, s(p + k + 3), z(p + k + 3));
      }
      transpose(v);
      for (uint32_t k = 0; k < kLanes; ++k) store(out + (l + k) * stride + p, v[k]);
    }
  }
}

void decode_rows(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const std::byte* codes, float* out, size_t stride,
                 uint8_t* bytes) {
  unpack_codes(side, tile, codes, side.depth, bytes);
  const Table16 table(grids.table ? grids.table : kNoTable);
  if (grids.table) {
    if (grids.per_lane) decode_rows<true, true>(side, grids, tile, out, stride, bytes, table);
    else decode_rows<true, false>(side, grids, tile, out, stride, bytes, table);
  } else {
    if (grids.per_lane) decode_rows<false, true>(side, grids, tile, out, stride, bytes, table);
    else decode_rows<false, false>(side, grids, tile, out, stride, bytes, table);
  }
}

}  // namespace
}  // namespace tierkv::quant
