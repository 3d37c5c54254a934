// decode_block.h — rows of blocks that are coded anew, read out of their codes: the bits that their codec's decode() gives, in
// memory that the team of encode_block.h shares.
//
// reading.h reads for attention, which takes powers where the codec has a table of levels. Here a level is the table's, and every
// sum is the codec's own: affine.h, meta.h, centered.h, rotated.h and even.h are the reference.
#pragma once

#include "cuda/encode/encode_meta.h"

namespace tierkv::cuda {

// Entry i of a block's metadata, as decode_meta() has it.
TIERKV_BOTH ScaleOffset stored_grid(const quant::SideLayout& side, const uint8_t* meta, uint32_t i, const float* log8) {
  const uint32_t n = entries_of(side), run = i / kMetaRun, in_run = i % kMetaRun;
  if (side.meta == quant::MetaKind::log8_scale) {
    const float scale = load_float(meta) * log8[meta[4 + i]];
    return {scale, -side.zero * scale};
  }
  if (side.meta == quant::MetaKind::log8_pair) {
    const uint8_t* const at = meta + run * (12 + 2 * kMetaRun);
    const uint32_t left = n - run * kMetaRun, count = left < kMetaRun ? left : kMetaRun;
    return {load_float(at) * log8[at[12 + in_run]],
            load_float(at + 4) + load_float(at + 8) * static_cast<float>(at[12 + count + in_run])};
  }
  if (side.meta == quant::MetaKind::log4_pair) {
    const uint8_t* const at = meta + run * (16 + kMetaRun);
    const uint32_t code = at[16 + in_run];
    float levels[16];
    nibble_levels(load_float(at), load_float(at + 4), levels);
    return {levels[code & 15u], load_float(at + 8) + load_float(at + 12) * static_cast<float>(code >> 4)};
  }
  return meta_entry(side, meta, i, n);
}

// Rows first..first+count-1 on their grids, into x[count][pitch]. Neighbouring threads have neighbouring lanes, whose words lie
// together.
TIERKV_BOTH void unpack_rows(const Team& team, const quant::SideLayout& side, bool values, const float* log8, const uint8_t* bytes,
                             uint32_t first, uint32_t count, uint32_t pitch, float* x) {
  const uint32_t d = side.head_dim, end = first + count, lanes = values ? d : count;
  const uint32_t first_quad = values ? first / kQuad : 0, end_quad = values ? (end + kQuad - 1) / kQuad : d / kQuad;
  for (uint32_t i = team.thread; i < lanes * (end_quad - first_quad); i += team.threads) {
    const uint32_t lane = i % lanes + (values ? 0 : first), quad = first_quad + i / lanes;
    float levels[kQuad];
    unpack_quad(side, bytes, lane, quad, levels);
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kQuad; ++k) {
      const uint32_t token = values ? quad * kQuad + k : lane, channel = values ? lane : quad * kQuad + k;
      if (token < first || token >= end) continue;
      const uint32_t entry = side.by_channel ? token / side.group * d + channel : channel / side.group * side.tokens + token;
      const ScaleOffset grid = stored_grid(side, bytes + side.meta_at, entry, log8);
      x[(token - first) * pitch + channel] = grid.offset + grid.scale * levels[k];
    }
  }
  team.sync();
}

// What was taken from the channels comes back.
TIERKV_BOTH void restore_channels(const Team& team, const quant::SideLayout& side, const uint8_t* bytes, uint32_t count,
                                  uint32_t pitch, float* x) {
  const uint32_t d = side.head_dim, groups = team.groups(d);
  for (uint32_t i = team.thread; i < d * groups; i += team.threads) {
    const uint32_t c = i % d;
    const ChannelTerms terms = channel_terms(side, bytes, c);
    for (uint32_t t = i / d; t < count; t += groups) x[t * pitch + c] = x[t * pitch + c] * terms.factor + terms.mean;
  }
  team.sync();
}

// Rows first..first+count-1 of a block into x[count][pitch]. REQUIRES: decodable().
TIERKV_BOTH void decode_rows(const Team& team, const quant::SideCoding& coding, const float* log8, const uint8_t* bytes,
                             uint32_t first, uint32_t count, uint32_t pitch, float* x) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t d = side.head_dim;
  if (side.kind == quant::LayoutKind::rows16) {
    for (uint32_t t = team.warp(); t < count; t += team.warps()) {
      for (uint32_t c = team.lane(); c < d; c += team.lanes())
        x[t * pitch + c] = short_value(load_short(bytes + 2 * ((first + t) * d + c)), side.bf16 != 0);
    }
    team.sync();
    return;
  }
  unpack_rows(team, side, coding.values != 0, log8, bytes, first, count, pitch, x);
  if (side.mean_at != 0 && !side.even) restore_channels(team, side, bytes, count, pitch, x);
  if (side.hadamard) {
    transform_rows(team, d, count, pitch, x);
    sign_rows(team, d, count, pitch, x);
  }
  if (side.even) restore_channels(team, side, bytes, count, pitch, x);
}

// Rows `first` to first+count-1 of a work into x[count][pitch], wherever they come from. `kDecodes`: as encode_part() has it.
template <bool kDecodes>
TIERKV_BOTH void take_rows(const Team& team, const EncodeLaunch& launch, const EncodeDesc& work, uint32_t first, uint32_t count,
                           uint32_t dim, uint32_t pitch, float* x) {
  if (!kDecodes || work.num_blocks == 0) return load_rows(team, work, first, count, dim, pitch, x);
  uint32_t at = 0;  // the work's row that the block at hand begins with
  for (uint32_t b = 0; b < work.num_blocks; ++b) {
    const DecodeDesc block = work.blocks[b];
    const uint32_t begin = at < first ? first : at, end = at + block.count < first + count ? at + block.count : first + count;
    if (begin < end) {
      const quant::SideCoding coding = launch.codings[block.coding];
      decode_rows(team, coding, launch.log8, block.bytes, block.first + (begin - at), end - begin, pitch,
                  x + (begin - first) * pitch);
    }
    at += block.count;
  }
  refuse_large(team, work, count, dim, pitch, x);
  team.sync();
}

}  // namespace tierkv::cuda
