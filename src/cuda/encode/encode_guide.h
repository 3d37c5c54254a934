// encode_guide.h — codes of even's keys whose errors answer for each other (even.cc guided_by(), error_feedback.cc, block_grid.cc
// answer_for_errors()), part of encode_block.h.
#pragma once

#include "cuda/encode/encode_block.h"

namespace tierkv::cuda {

inline constexpr uint32_t kMostLooks = 32;  // quant::kMostDirections
inline constexpr float kEverywhere = 0.1f;  // even.cc

// What a rule takes beside the rows.
struct EncodeGuide {
  float* metric;  // [head_dim][pitch]; the rule once it is made: row c has what channel c answers for those before it
  float* rows;    // [max(tokens, kMostLooks)][pitch]: directions; later what is wanted of each value
  float* trace;
  uint32_t pitch;
};

TIERKV_BOTH uint32_t guide_rows(const quant::SideLayout& side) { return side.tokens > kMostLooks ? side.tokens : kMostLooks; }
TIERKV_BOTH uint32_t guide_floats(const quant::SideLayout& side) {
  return (side.head_dim + guide_rows(side)) * (side.head_dim + 1) + 1;
}
// What even's keys take without one.
TIERKV_BOTH uint32_t encode_own_floats(const quant::SideCoding& coding) {
  const quant::SideLayout& side = coding.layout;
  const uint32_t entries = entries_of(side), tried = entries * kCandidates, channels = side.head_dim + 1 + side.head_dim / 2;
  return side.tokens * (side.head_dim + 1) + 4 * entries + (tried > channels ? tried : channels);
}

TIERKV_BOTH EncodeGuide share_guide(const quant::SideLayout& side, float* memory) {
  EncodeGuide at{};
  at.pitch = side.head_dim + 1;
  at.metric = memory;
  at.rows = memory + side.head_dim * at.pitch;
  at.trace = at.rows + guide_rows(side) * at.pitch;
  return at;
}

TIERKV_BOTH float channel_factor(const EncodeDesc& work, const quant::SideLayout& side, uint32_t channel) {
  const auto* const words = reinterpret_cast<const uint16_t*>(work.out + side.mean_at);
  return root_power(static_cast<int16_t>(words[side.head_dim]) + (words[channel] & 7));
}

// Directions at the block's first position, as the grid sees them.
TIERKV_BOTH void turn_looks(const Team& team, const EncodeDesc& work, const quant::SideLayout& side,
                            const quant::GuideTables& guide, const EncodeGuide& at) {
  const uint32_t d = side.head_dim;
  for (uint32_t i = team.thread; i < guide.count * d; i += team.threads) at.rows[i / d * at.pitch + i % d] = guide.rows[i];
  team.sync();
  quant::SideLayout turns;  // turn_of() asks for nothing else
  turns.pairs = guide.pairs, turns.turns = guide.turns;
  for (uint32_t i = team.thread; work.first_position != 0 && i < guide.count * guide.pairs; i += team.threads) {
    const uint32_t pair = i % guide.pairs;
    float cosine, sine;
    turn_of(turns, work.first_position, pair, cosine, sine);
    float* const row = at.rows + i / guide.pairs * at.pitch;
    float &first = row[guide.turned[2 * pair]], &second = row[guide.turned[2 * pair + 1]];
    const float a = first, b = second;
    first = a * cosine - b * sine;
    second = a * sine + b * cosine;
  }
  team.sync();
  for (uint32_t c = team.thread; c < d; c += team.threads) {
    const float factor = channel_factor(work, side, c);
    for (uint32_t k = 0; k < guide.count; ++k) at.rows[k * at.pitch + c] *= factor;
  }
  team.sync();
  rotate_rows(team, d, guide.count, at.pitch, at.rows);
}

// What weighs alike everywhere, in the frame of the grid: a diagonal, turned from both sides.
TIERKV_BOTH void turn_floor(const Team& team, const EncodeDesc& work, const quant::SideLayout& side, float floor,
                            const EncodeGuide& at) {
  const uint32_t d = side.head_dim;
  for (uint32_t a = team.warp(); a < d; a += team.warps()) {
    const float factor = channel_factor(work, side, a);
    for (uint32_t b = team.lane(); b < d; b += team.lanes()) at.metric[a * at.pitch + b] = a == b ? floor * factor * factor : 0.0f;
  }
  team.sync();
  rotate_rows(team, d, d, at.pitch, at.metric);
  for (uint32_t a = team.warp(); a < d; a += team.warps()) {
    for (uint32_t b = team.lane(); b < a; b += team.lanes()) {
      const float below = at.metric[a * at.pitch + b];
      at.metric[a * at.pitch + b] = at.metric[b * at.pitch + a];
      at.metric[b * at.pitch + a] = below;
    }
  }
  team.sync();
  rotate_rows(team, d, d, at.pitch, at.metric);
}

// P = U·W·U', the rows of U in place of P (error_feedback.h). Each entry loses its parts in the order of the channels. A warp takes
// four rows at a time, so that it waits once for all of them.
TIERKV_BOTH void factor_metric(const Team& team, uint32_t d, const EncodeGuide& at) {
  constexpr uint32_t kWide = 4, kRows = 4;  // 128 channels over 32 lanes
  for (uint32_t c = d; c-- > 0;) {
    const float* const row = at.metric + c * at.pitch;
    const float own = row[c], inverse = 1.0f / (own < 1.17549435e-38f ? 1.17549435e-38f : own);
    if (team.lanes() == 1) {
      for (uint32_t j = 0; j < c; ++j) {
        const float part = row[j] * inverse;
        for (uint32_t i = 0; i <= j; ++i) at.metric[j * at.pitch + i] -= part * row[i];
      }
    } else {
      float mine[kWide];
      TIERKV_UNROLL
      for (uint32_t k = 0; k < kWide; ++k) mine[k] = team.lane() + 32 * k < c ? row[team.lane() + 32 * k] : 0.0f;
      for (uint32_t first = team.warp(); first < c; first += kRows * team.warps()) {
        float part[kRows], left[kRows][kWide];
        TIERKV_UNROLL
        for (uint32_t r = 0; r < kRows; ++r) {
          const uint32_t j = first + r * team.warps();
          part[r] = j < c ? row[j] * inverse : 0.0f;
          TIERKV_UNROLL
          for (uint32_t k = 0; k < kWide; ++k) {
            const uint32_t i = team.lane() + 32 * k;
            left[r][k] = j < c && i <= j ? at.metric[j * at.pitch + i] : 0.0f;
          }
        }
        TIERKV_UNROLL
        for (uint32_t r = 0; r < kRows; ++r) {
          const uint32_t j = first + r * team.warps();
          TIERKV_UNROLL
          for (uint32_t k = 0; k < kWide; ++k) {
            const uint32_t i = team.lane() + 32 * k;
            if (j < c && i <= j) at.metric[j * at.pitch + i] = left[r][k] - part[r] * mine[k];
          }
        }
      }
    }
    team.sync();
    for (uint32_t j = team.thread; j < c; j += team.threads)
      at.metric[c * at.pitch + j] *= inverse;  // nobody reads it before the end
  }
  team.sync();
}

// False: the guide says nothing of these rows, and codes are the nearest ones.
TIERKV_BOTH bool make_rule(const Team& team, const EncodeDesc& work, const quant::SideLayout& side, const quant::GuideTables& guide,
                           const EncodeGuide& at) {
  const uint32_t d = side.head_dim;
  turn_looks(team, work, side, guide, at);
  turn_floor(team, work, side, guide.floor, at);
  for (uint32_t a = team.warp(); a < d; a += team.warps()) {
    for (uint32_t b = team.lane(); b <= a; b += team.lanes()) {
      float sum = at.metric[a * at.pitch + b];
      for (uint32_t k = 0; k < guide.count; ++k) sum += at.rows[k * at.pitch + a] * at.rows[k * at.pitch + b];
      at.metric[a * at.pitch + b] = sum;
    }
  }
  team.sync();
  if (team.thread == 0) {
    float trace = 0.0f;
    for (uint32_t c = 0; c < d; ++c) trace += at.metric[c * at.pitch + c];
    *at.trace = trace;
  }
  team.sync();
  const float trace = *at.trace;
  if (!(trace > 0.0f) || !(trace <= 3.402823466e38f)) return false;
  for (uint32_t c = team.thread; c < d; c += team.threads)
    at.metric[c * at.pitch + c] += kEverywhere * trace / static_cast<float>(d);
  team.sync();
  factor_metric(team, d, at);
  return true;
}

// Puts every value where its grid has a level. A few threads of a warp have a token: each error is taken off what is wanted of the
// channels behind it, so that every one of those loses its parts in the order of the channels.
TIERKV_BOTH void answer_for_errors(const Team& team, const quant::SideLayout& side, const EncodeShared& at,
                                   const EncodeGuide& rule) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t d = side.head_dim, tokens = side.tokens;
  const uint32_t helpers = team.lanes() == 1 ? 1 : 8, helper = team.thread % helpers;
  const float top = static_cast<float>((1u << side.bits) - 1u);
  for (uint32_t t = team.warp(); t < tokens; t += team.warps()) {
    for (uint32_t c = team.lane(); c < d; c += team.lanes()) rule.rows[t * rule.pitch + c] = at.x[t * at.pitch + c];
  }
  team.sync();
  // A warp has four tokens, and there are sixteen of them or more: it works as a whole, or not at all.
  for (uint32_t t = team.thread / helpers; t < tokens; t += team.threads / helpers) {
    const float scale = at.scale[t], offset = at.lo[t];
    float* const values = at.x + t * at.pitch;
    float* const wanted = rule.rows + t * rule.pitch;
    for (uint32_t c = 0; c < d; ++c) {
      const float level = scale > 0.0f ? round_to_even(least_of(most_of((wanted[c] - offset) / scale, 0.0f), top)) : 0.0f;
      const float rounded = offset + scale * level, error = rounded - values[c];
      team.sync_warp();
      if (helper == 0) values[c] = rounded;
      for (uint32_t first = c + 1 + helper; first < d; first += kAtOnce * helpers) {
        float left[kAtOnce];
        TIERKV_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          const uint32_t to = first + k * helpers;
          left[k] = to < d ? wanted[to] - rule.metric[to * rule.pitch + c] * error : 0.0f;
        }
        TIERKV_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          if (first + k * helpers < d) wanted[first + k * helpers] = left[k];
        }
      }
      team.sync_warp();
    }
  }
  team.sync();
}

}  // namespace tierkv::cuda
