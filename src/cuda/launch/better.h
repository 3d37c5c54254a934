// better.h — the rows of a block that are kept better (quant/overlaid.h), as a device has them beside the bytes of the base.
//
// Three bits a channel in an error frame of the codec's own would have to be turned back block by block, for every query. A device
// gets the rows instead: in plain channels of a block at position 0 (keys; what turns a block's query turns it for them too) or in
// the codec's frame (values), as halves in the order of tensor-core operands. That is 256 bytes a row of 128, and the error frame
// is nobody's business here: device_form() asks the codec.
//
// Layout:   [the base's bytes, padded to 16][f32 scale of each row][u32 index of each row][halves]. Rows are padded to a multiple
//           of four; those that are not there have scale 0 and an index past every block.
// Keys:     halves of [32 channels][row][t of 4]: eight of channels 2t, 2t+1, 2t+8, 2t+9, 2t+16, ...: a lane's operands of two
//           steps. Row = scale·halves, which lie within (-1, 1).
// Values:   [pair of rows][channel]: two halves. Row = scale·2^12·halves: so small, because products of codes are (fast.cuh).
#pragma once

#include "cuda/launch/reading.h"
#include "quant/layout.h"

namespace tierkv::cuda {

inline constexpr float kBetterValue = 4096.0f;
inline constexpr uint32_t kNoRow = 0xFFFFu;

TIERKV_BOTH uint32_t padded_rows(uint32_t better) { return (better + 3) / 4 * 4; }
TIERKV_BOTH uint32_t padded_bytes(uint32_t bytes) { return (bytes + 15) / 16 * 16; }
// Where halves begin, behind scales and indices.
TIERKV_BOTH uint32_t better_halves(uint32_t better) { return padded_rows(better) * 8; }
TIERKV_BOTH uint32_t better_bytes(uint32_t better, uint32_t dim) {
  return better == 0 ? 0 : better_halves(better) + padded_rows(better) * ((dim + 31) / 32 * 32) * 2;
}
// Bytes of a side on a device.
TIERKV_BOTH uint32_t device_bytes(const quant::SideLayout& side, uint32_t better) {
  return better == 0 ? side.bytes : padded_bytes(side.bytes) + better_bytes(better, side.head_dim);
}

// `at`: of a block's better rows.
TIERKV_BOTH float better_scale(const uint8_t* at, uint32_t row) { return load_float(at + 4 * row); }
TIERKV_BOTH uint32_t better_index(const uint8_t* at, uint32_t better, uint32_t row) {
  return load_word(at + 4 * (padded_rows(better) + row));
}
// Offset of the half of a row and a channel.
TIERKV_BOTH uint32_t better_key_at(uint32_t better, uint32_t row, uint32_t channel) {
  const uint32_t in = channel % 32, t = in % 8 / 2;
  return better_halves(better) + ((channel / 32 * padded_rows(better) + row) * 4 + t) * 16 + (in / 8 * 2 + in % 2) * 2;
}
TIERKV_BOTH uint32_t better_value_at(uint32_t better, uint32_t row, uint32_t channel, uint32_t dim) {
  return better_halves(better) + (row / 2 * ((dim + 31) / 32 * 32) + channel) * 4 + row % 2 * 2;
}
TIERKV_BOTH float better_key(const uint8_t* at, uint32_t better, uint32_t row, uint32_t channel) {
  return better_scale(at, row) * half_value(load_short(at + better_key_at(better, row, channel)));
}
TIERKV_BOTH float better_value(const uint8_t* at, uint32_t better, uint32_t row, uint32_t channel, uint32_t dim) {
  return better_scale(at, row) * kBetterValue * half_value(load_short(at + better_value_at(better, row, channel, dim)));
}

}  // namespace tierkv::cuda
