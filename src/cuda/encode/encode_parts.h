// encode_parts.h — a part of a work from rows to bytes, of every kind of layout: what a thread block runs (encode.cu), and tests
// on the processor.
#pragma once

#include "cuda/encode/decode_block.h"
#include "cuda/encode/encode_guide.h"

namespace tierkv::cuda {

// --- packed (block_grid.cc, lanes.cc)

// Every value becomes its code, as a float.
TIERKV_BOTH void code_values(const Team& team, const quant::SideLayout& side, const EncodeShared& at) {
  const uint32_t d = side.head_dim;
  const float top = static_cast<float>((1u << side.bits) - 1u);
  for (uint32_t t = team.warp(); t < side.tokens; t += team.warps()) {
    const uint32_t first = side.by_channel ? t / side.group * d : t;
    for (uint32_t c = team.lane(); c < d; c += team.lanes()) {
      const uint32_t entry = first + (side.by_channel ? c : side.groups == 1 ? 0 : c / side.group * side.tokens);
      float* const x = at.x + t * at.pitch + c;
      const float scale = at.scale[entry];
      *x = scale > 0.0f ? round_to_even(least_of(most_of((*x - at.lo[entry]) / scale, 0.0f), top)) : 0.0f;
    }
  }
  team.sync();
}

TIERKV_BOTH void pack_codes(const Team& team, const EncodeDesc& work, const quant::SideCoding& coding, const EncodeShared& at) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t lanes = coding.values ? side.head_dim : side.tokens, depth = coding.values ? side.tokens : side.head_dim;
  const uint32_t along = coding.values ? at.pitch : 1, across = coding.values ? 1 : at.pitch;
  TIERKV_UNROLL
  for (uint32_t p = 0; p < quant::kMostPlanes; ++p) {
    const quant::LayoutPlane& plane = side.planes[p];
    if (plane.bits == 0) continue;
    const uint32_t positions = 32 / plane.bits, mask = (1u << plane.bits) - 1u;
    auto* const words = reinterpret_cast<uint32_t*>(work.out + plane.offset);
    for (uint32_t i = team.thread; i < lanes * plane.chunks; i += team.threads) {
      const uint32_t lane = i / (kTile * plane.chunks) * kTile + i % kTile, first = i / kTile % plane.chunks * positions;
      const uint32_t count = depth - first < positions ? depth - first : positions;
      const float* const x = at.x + lane * across + first * along;
      uint32_t word = 0;
      for (uint32_t k = 0; k < count; ++k) {
        const float value = x[k * along];  // of rows that are refused anything, not a number even
        const uint32_t code = value > 0.0f && value < 65536.0f ? static_cast<uint32_t>(value) : 0u;
        word |= ((code >> plane.shift) & mask) << (8 * (k % 4) + plane.bits * (k / 4));
      }
      words[i] = word;
    }
  }
}

// `guide`: null, or what codes are to keep their errors out of.
template <bool kDecodes>
TIERKV_BOTH void encode_packed(const Team& team, const EncodeLaunch& launch, const EncodeDesc& work,
                               const quant::SideCoding& coding, const quant::GuideTables* guide, float* memory) {
  const quant::SideLayout& side = coding.layout;
  const EncodeShared at = share(coding, memory);
  take_rows<kDecodes>(team, launch, work, 0, side.tokens, side.head_dim, at.pitch, at.x);
  if (side.even) {
    auto* const spread = reinterpret_cast<int32_t*>(at.errors);  // there is room for 20 floats a token
    auto* const words = reinterpret_cast<uint16_t*>(spread + side.head_dim + 1);
    even_channels(team, work, side, at, spread, words, spread + side.head_dim);
    refuse_large(team, work, side.tokens, side.head_dim, at.pitch, at.x);
    team.sync();
  }
  if (side.hadamard) {
    rotate_rows(team, side.head_dim, side.tokens, at.pitch, at.x);
    refuse_large(team, work, side.tokens, side.head_dim, at.pitch, at.x);
    team.sync();
  }
  if (side.mean_at != 0 && !side.even) {
    center_channels(team, work, side, at);
    refuse_large(team, work, side.tokens, side.head_dim, at.pitch, at.x);
    team.sync();
  }
  fit_ranges(team, coding, at);
  if (coding.fit == quant::FitKind::midrise) {
    try_steps(team, coding, at);
    choose_steps(team, coding, at);
  }
  bool guided = false;
  EncodeGuide rule{};
  if (guide != nullptr) {
    rule = share_guide(side, memory + encode_own_floats(coding));
    const quant::GuideTables tables = *guide;
    guided = make_rule(team, work, side, tables, rule);
  }
  encode_meta(team, work, coding, at, launch.log8, coding.keep_fit_codes && !guided);
  if (guided) answer_for_errors(team, side, at, rule);
  code_values(team, side, at);
  pack_codes(team, work, coding, at);
}

// --- rows16 (half.cc)

TIERKV_BOTH void encode_rows16(const Team& team, const EncodeDesc& work, const quant::SideLayout& side) {
  auto* const out = reinterpret_cast<uint16_t*>(work.out);
  bool good = true;
  for (uint32_t t = team.warp(); t < side.tokens; t += team.warps()) {
    for (uint32_t c = team.lane(); c < side.head_dim; c += team.lanes()) {
      const float value = load_row_value(work, t, c);
      good = good && fabsf(value) <= kMostMagnitude && (side.bf16 || fabsf(value) < 65520.0f);
      out[t * side.head_dim + c] = side.bf16 ? to_bf16(value) : to_half(value);
    }
  }
  if (!good) *work.refused = 1;
}

// --- words (klt.cc): tokens of a tile turned to the block's frame, multiplied with the basis, and rounded down

TIERKV_BOTH void turn_rows(const Team& team, const quant::SideLayout& side, uint32_t position, uint32_t pitch, float* x) {
  if (position == 0) return;
  for (uint32_t i = team.thread; i < kTile * side.pairs; i += team.threads) {
    const uint32_t pair = i % side.pairs;
    float cosine, sine;
    turn_of(side, position, pair, cosine, sine);
    sine = -sine;
    float* const row = x + i / side.pairs * pitch;
    float &first = row[side.turned[2 * pair]], &second = row[side.turned[2 * pair + 1]];
    const float a = first, b = second;
    first = a * cosine - b * sine;
    second = a * sine + b * cosine;
  }
  team.sync();
}

// Components of four tokens a thread, so that the basis is read once for them.
TIERKV_BOTH void project_rows(const Team& team, const quant::SideCoding& coding, uint32_t pitch, const float* x, float* levels) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t d = coding.layout.head_dim, n = coding.padded;
  for (uint32_t i = team.thread; i < kTile / kAtOnce * n; i += team.threads) {
    const uint32_t j = i % n, token = i / n * kAtOnce;
    float sums[kAtOnce];
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) sums[k] = coding.shift[j];
    for (uint32_t c = 0; c < d; ++c) {
      const float part = coding.analysis[c * n + j];
      TIERKV_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k) sums[k] += x[(token + k) * pitch + c] * part;
    }
    TIERKV_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) levels[(token + k) * n + j] = sums[k];
  }
  team.sync();
}

template <bool kDecodes>
TIERKV_BOTH void encode_words(const Team& team, const EncodeLaunch& launch, const EncodeDesc& work, const quant::SideCoding& coding,
                              uint32_t tile, float* memory) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t pitch = side.head_dim + 1, total = side.words[0] + side.words[1] + side.words[2];
  float* const levels = memory + kTile * pitch;
  take_rows<kDecodes>(team, launch, work, tile * kTile, kTile, side.head_dim, pitch, memory);
  turn_rows(team, side, work.first_position, pitch, memory);
  project_rows(team, coding, pitch, memory, levels);
  auto* const words = reinterpret_cast<uint32_t*>(work.out) + tile * total * kTile;
  for (uint32_t i = team.thread; i < kTile * total; i += team.threads) {
    const uint32_t word = i / kTile, token = i % kTile;
    uint32_t bits = 8, first = 4 * word;
    if (word >= side.words[2] + side.words[1]) {
      bits = 2, first = 4 * side.words[2] + 8 * side.words[1] + 16 * (word - side.words[2] - side.words[1]);
    } else if (word >= side.words[2]) {
      bits = 4, first = 4 * side.words[2] + 8 * (word - side.words[2]);
    }
    const float most = static_cast<float>((1u << bits) - 1u);
    uint32_t packed = 0;
    for (uint32_t k = 0; k < 32 / bits; ++k) {
      const float below = floorf(levels[token * coding.padded + first + k]);
      const uint32_t code = below > 0.0f ? static_cast<uint32_t>(least_of(below, most)) : 0u;
      packed |= code << (k % 4 * 8 + k / 4 * bits);
    }
    words[i] = packed;
  }
}

// `kDecodes`: launch.decodes. Where nothing is decoded registers need not hold what decoding would.
template <bool kDecodes>
TIERKV_BOTH void encode_part(const Team& team, const EncodeLaunch& launch, const EncodePart& part, float* memory) {
  // Copies: what is written could otherwise be any of it, and would be fetched again and again.
  const EncodeDesc work = launch.works[part.work];
  const quant::SideCoding coding = launch.codings[work.coding];
  const quant::GuideTables* const guide = work.guide == kNoGuide ? nullptr : launch.guides + work.guide;
  if (coding.layout.kind == quant::LayoutKind::packed) encode_packed<kDecodes>(team, launch, work, coding, guide, memory);
  else if (coding.layout.kind == quant::LayoutKind::words) encode_words<kDecodes>(team, launch, work, coding, part.tile, memory);
  else encode_rows16(team, work, coding.layout);
}

}  // namespace tierkv::cuda
