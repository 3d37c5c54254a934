// tile_map.h — which row, channel and code a lane of a warp holds in the general path (tiles.cuh): the same code for a device and,
// in tests, for the processor.
//
// A tensor-core product of 16x8x16 wants rows g and g+8 and positions 2t, 2t+1, 2t+8, 2t+9 along the sum of lane (g, t). What lies
// in memory is four neighbouring positions, one byte of a word each (lanes.h). The order of a sum is free, so lane t's four
// positions are 4t..4t+3: slot 2t+i of the sum is position 4t+i, slot 2t+8+i is 4t+2+i. Rows take the same order, so that a result
// is the next product's operand once it is transposed.
#pragma once

#include "cuda/launch/reading.h"

namespace tierkv::cuda {

// Position, of 16, of row or slot g; slot g + 8 is two behind it.
TIERKV_BOTH uint32_t tile_position(uint32_t g) { return 4 * (g / 2) + g % 2; }

// Where one plane has four positions of 16 rows' codes, step after step of 16: the word of row `row` of a tile lies at
// at + (j >> pairs)·step + 4·row, its codes begin at bit place + (j odd ? odd : 0) of every byte.
struct PlaneWords {
  uint32_t at, step, pairs, place, odd, mask, shift;
  TIERKV_BOTH uint32_t offset(uint32_t j) const { return at + (j >> pairs) * step; }
  TIERKV_BOTH uint32_t codes(uint32_t word, uint32_t j) const { return (word >> (place + (j % 2) * odd) & mask) << shift; }
};
TIERKV_BOTH uint32_t fields_log2(uint32_t bits) { return bits == 8 ? 0 : bits == 4 ? 1 : bits == 2 ? 2 : 3; }

// Keys: rows are tokens of the tile that begins at `first`; step j is channels 16j + 4t .. of lane t.
TIERKV_BOTH PlaneWords key_words(const quant::LayoutPlane& plane, uint32_t first, uint32_t t) {
  const uint32_t f = fields_log2(plane.bits), mask = ((1u << plane.bits) - 1u) * 0x01010101u;
  const uint32_t at = plane.offset + (first / kTile * plane.chunks + (t >> f)) * 64;
  return {at,         f == 3 ? 64u : (4u >> f) * 64u, f == 3 ? 1u : 0u, (t & ((1u << f) - 1u)) * plane.bits, f == 3 ? 4u : 0u, mask,
          plane.shift};
}
// Values: rows are channels of tile j; the positions are tokens first + 4t .. of lane t.
TIERKV_BOTH PlaneWords value_words(const quant::LayoutPlane& plane, uint32_t first, uint32_t t) {
  const uint32_t f = fields_log2(plane.bits), mask = ((1u << plane.bits) - 1u) * 0x01010101u, quad = first / 4 + t;
  return {plane.offset + (quad >> f) * 64, plane.chunks * 64, 0, (quad & ((1u << f) - 1u)) * plane.bits, 0, mask, plane.shift};
}

// Where the staged path has number n of a row of codes, and which number it has at place n: the middle two of four change places.
TIERKV_BOTH uint32_t staged_place(uint32_t n) { return (n & ~3u) | (n & 1u) << 1 | (n >> 1 & 1u); }

// 16 neighbouring positions of one lane (lanes.h), from 16·step on of lane `row` of tile `tile`: where one plane has the first of
// their words, each 64 bytes behind the other; and what these say, a code in each byte. 8 bits are four words, 4 two, less one.
TIERKV_BOTH uint32_t sixteen_at(const quant::LayoutPlane& plane, uint32_t tile, uint32_t step, uint32_t row) {
  return plane.offset + (tile * plane.chunks + step * plane.bits / 2) * 64 + row * 4;
}
TIERKV_BOTH void add_sixteen(const quant::LayoutPlane& plane, const uint32_t (&words)[4], uint32_t step, uint32_t (&codes)[4]) {
  const uint32_t mask = ((1u << plane.bits) - 1u) * 0x01010101u, from = plane.bits == 1 ? step % 2 * 4 : 0;
  TIERKV_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t word = plane.bits == 8 ? words[k] : plane.bits == 4 ? words[k / 2] : words[0];
    const uint32_t place = plane.bits == 8 ? 0 : plane.bits == 4 ? k % 2 * 4 : from + k * plane.bits;
    codes[k] |= (word >> place & mask) << plane.shift;
  }
}

// Where components 4·quad .. of klt's keys are: the word of a token, the place in its bytes, the width.
struct WordQuad {
  uint32_t word, place, bits;
};
TIERKV_BOTH WordQuad word_quad(const quant::SideLayout& side, uint32_t quad) {
  const uint32_t wide = side.words[2], middle = side.words[1];
  if (quad < wide) return {quad, 0, 8};
  if (quad < wide + 2 * middle) return {wide + (quad - wide) / 2, (quad - wide) % 2 * 4, 4};
  const uint32_t rest = quad - wide - 2 * middle;
  return {wide + middle + rest / 4, rest % 4 * 2, 2};
}
// The word of row 0 of the tile that begins at `first`; row r is 4·r bytes on.
TIERKV_BOTH uint32_t word_offset(const quant::SideLayout& side, const WordQuad& at, uint32_t first) {
  return (first / kTile * (side.words[0] + side.words[1] + side.words[2]) + at.word) * 64;
}
TIERKV_BOTH uint32_t word_codes(uint32_t word, const WordQuad& at) {
  return word >> at.place & ((1u << at.bits) - 1u) * 0x01010101u;
}

// What is taken off codes of so many bits, so that they lie around zero; klt's middle is half a step less.
TIERKV_BOTH uint32_t code_middle(uint32_t bits) { return 1u << (bits - 1u); }

// Whether the staged path can: one scale a row or a channel.
inline bool fits_staged(const quant::SideLayout& side) {
  return side.kind == quant::LayoutKind::rows16 || (side.kind == quant::LayoutKind::packed && side.groups == 1);
}

// Whether the general path can read a side: codes fit into bytes, and runs of 16 never straddle a tile, a group or the end.
inline bool fits_tiles(const quant::SideLayout& side) {
  if (side.head_dim % kTile != 0 || side.head_dim > 256) return false;
  if (side.kind == quant::LayoutKind::rows16) return true;
  if (side.tokens % kTile != 0) return false;
  if (side.kind == quant::LayoutKind::words) return side.components <= side.head_dim;
  return side.bits <= 8 && (side.group % kTile == 0 || side.groups == 1);
}

}  // namespace tierkv::cuda
