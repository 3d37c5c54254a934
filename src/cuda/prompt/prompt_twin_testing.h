// prompt_twin_testing.h — the scalar twin of the kernels for many queries (prompt.h): the same descriptors, the same scratch of
// halves, the same states and merge, in plain loops. With TIERKV_SIMT prompt_on_host() runs the kernels themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/f16.h"
#include "cuda/launch/prompt.h"
#include "cuda/plan/twin_testing.h"
#include "tierkv/cache.h"

#ifdef TIERKV_SIMT
#include "cuda/prompt/prompt_kernel_testing.h"
#endif

namespace tierkv::cuda::testing {

class PromptTwin {
 public:
  explicit PromptTwin(const PromptLaunch& launch) : launch_(launch), d_(launch.head_dim), dim_(prompt_dim(launch.head_dim)) {}

  void run(PromptStep step) const {
    if (step == PromptStep::unpack) {
      for (uint32_t v = 0; v < launch_.view_count; ++v) unpack(launch_.views[v]);
    } else if (step == PromptStep::attend) {
      for (uint32_t i = 0; i < launch_.item_count; ++i) attend(launch_.items[i]);
    } else {
      for (uint32_t t = 0; t < launch_.tile_count; ++t) merge(launch_.tiles[t]);
    }
  }

 private:
  uint8_t* keys_of(uint32_t tile) const { return launch_.scratch + size_t{tile} * key_tile_bytes(dim_); }
  uint8_t* values_of(uint32_t tile) const { return keys_of(tile) + key_tile_side(dim_); }

  void unpack(const PromptView& view) const {
    Launch shape;
    shape.head_dim = d_;
    const Twin reader(shape, 0);
    const CodecDesc& codec = launch_.codecs[view.codec];
    const ViewDesc desc{view.keys, view.values, view.first_position, 0, view.rows, kNoMask, view.codec};
    for (uint32_t row = 0; row < view.filled; ++row) {
      const uint32_t to = view.to + row, tile = to / kKeyTile, in = to % kKeyTile;
      launch_.key_positions[to] = prompt_position(launch_, view, row);
      std::vector<float> key(dim_), value(dim_);
      if (launch_.key_positions[to] != kNowhere) {
        key = reader.plain_key(codec, desc, row), value = reader.plain_value(codec, desc, row);
        if (launch_.value_frame) quant::to_frame(quant::Frame::hadamard, value.data(), 1, d_);
        key.resize(dim_), value.resize(dim_);
      }
      for (uint32_t c = 0; c < dim_; ++c) {
        if (!(std::fabs(key[c]) <= 65504.0f) || !(std::fabs(value[c]) <= 65504.0f)) launch_.failed[view.work] = 1;
        store(keys_of(tile) + key_at(in, c), key[c]);
        store(values_of(tile) + value_at(dim_, in, c), value[c]);
      }
    }
  }
  static void store(uint8_t* at, float x) {
    const uint16_t half = f32_to_f16(x);
    std::memcpy(at, &half, sizeof half);
  }

  float query(const PromptRows& rows, uint32_t token, uint32_t head, uint32_t c) const {
    const int64_t at = token * rows.token_stride + head * rows.head_stride + c;
    if (static_cast<DType>(rows.type) == DType::f32) return static_cast<const float*>(rows.queries)[at];
    return short_value(static_cast<const uint16_t*>(rows.queries)[at], static_cast<DType>(rows.type) == DType::bf16);
  }

  bool sees(uint32_t at, uint32_t position) const {
    if (position == kNowhere || (launch_.causal && position > at)) return false;
    return launch_.window == 0 || static_cast<uint64_t>(position) + launch_.window > at;
  }

  void attend(const PromptItem& item) const {
    const QueryTileDesc& tile = launch_.tiles[item.tile];
    const PromptRows& rows = launch_.rows[tile.rows_of];
    for (uint32_t r = 0; r < tile.rows; ++r) {
      const uint32_t token = (tile.first + r) / launch_.group, head = tile.first_head + (tile.first + r) % launch_.group;
      const uint32_t at = launch_.query_positions[rows.first_position + token];
      std::vector<double> q(d_), out(d_);
      for (uint32_t c = 0; c < d_; ++c) q[c] = query(rows, token, head, c);
      double top = -INFINITY, sum = 0.0;
      for (uint32_t k = item.first_key * kKeyTile; k < (item.first_key + item.keys) * kKeyTile; ++k) {
        if (!sees(at, launch_.key_positions[k])) continue;
        const auto* const keys = keys_of(k / kKeyTile);
        const auto* const values = values_of(k / kKeyTile);
        double score = 0.0;
        for (uint32_t c = 0; c < d_; ++c) score += q[c] * half_value(load_short(keys + key_at(k % kKeyTile, c)));
        score *= launch_.scale;
        if (launch_.softcap > 0.0f) score = launch_.softcap * std::tanh(score / launch_.softcap);
        score *= 1.4426950408889634;
        const double next = std::max(top, score), shrink = std::exp2(top - next), weight = std::exp2(score - next);
        top = next, sum = sum * shrink + weight;
        for (uint32_t c = 0; c < d_; ++c) {
          out[c] = out[c] * shrink + weight * half_value(load_short(values + value_at(dim_, k % kKeyTile, c)));
        }
      }
      keep(item, r, top, sum, out);
    }
  }

  void keep(const PromptItem& item, uint32_t r, double top, double sum, const std::vector<double>& out) const {
    const size_t at = size_t{item.slot} * kQueryTile + r;
    float* const to = launch_.state_out + at * d_;
    double old = 0.0, fresh = 1.0;
    if (item.continues && launch_.state_top[at] > -INFINITY) {
      const double both = std::max<double>(top, launch_.state_top[at]);
      old = std::exp2(launch_.state_top[at] - both), fresh = std::exp2(top - both);
      top = both;
    }
    for (uint32_t c = 0; c < d_; ++c) to[c] = static_cast<float>((old != 0.0 ? old * to[c] : 0.0) + fresh * out[c]);
    launch_.state_sum[at] = static_cast<float>((old != 0.0 ? old * launch_.state_sum[at] : 0.0) + fresh * sum);
    launch_.state_top[at] = static_cast<float>(top);
  }

  void merge(const QueryTileDesc& tile) const {
    const PromptRows& rows = launch_.rows[tile.rows_of];
    for (uint32_t r = 0; r < tile.rows; ++r) {
      const uint32_t token = (tile.first + r) / launch_.group, head = tile.first_head + (tile.first + r) % launch_.group;
      const double sink = launch_.sink_logits ? launch_.sink_logits[head] * 1.4426950408889634 : -INFINITY;
      double top = sink;
      const auto slot_row = [&](uint32_t s) { return size_t{launch_.slots[tile.first_slot + s]} * kQueryTile + r; };
      for (uint32_t s = 0; s < tile.slots; ++s) top = std::max<double>(top, launch_.state_top[slot_row(s)]);
      double sum = sink > -INFINITY ? std::exp2(sink - top) : 0.0;
      std::vector<double> sums(d_);
      for (uint32_t s = 0; s < tile.slots; ++s) {
        const size_t at = slot_row(s);
        if (launch_.state_top[at] == -INFINITY) continue;
        const double share = std::exp2(launch_.state_top[at] - top);
        sum += share * launch_.state_sum[at];
        for (uint32_t c = 0; c < d_; ++c) sums[c] += share * launch_.state_out[at * d_ + c];
      }
      std::vector<float> out(sums.begin(), sums.end());
      if (launch_.value_frame) quant::from_frame(quant::Frame::hadamard, out.data(), 1, d_);
      const size_t to = static_cast<size_t>(token) * rows.query_heads + head;
      for (uint32_t c = 0; c < d_; ++c) rows.out[to * d_ + c] = sum > 0.0 ? static_cast<float>(out[c] / sum) : 0.0f;
      if (rows.lse) rows.lse[to] = sum > 0.0 ? static_cast<float>((top + std::log2(sum)) / 1.4426950408889634) : -INFINITY;
    }
  }

  const PromptLaunch& launch_;
  const uint32_t d_, dim_;
};

#ifdef TIERKV_SIMT
// Which of the two ways to attend a test wants.
inline bool& prompts_as_hopper() {
  static bool hopper = false;
  return hopper;
}
#endif

// A step of a launch. Memory is the processor's.
inline void prompt_on_host(const PromptLaunch& launch, PromptStep step) {
#ifdef TIERKV_SIMT
  static simt::Machine machine;
  static uint32_t steps = 0;  // in turn, not both: states that an earlier round left are changed
  const bool turned = steps++ % 2 != 0;
  const auto order = turned ? simt::Machine::Order::last_to_first : simt::Machine::Order::first_to_last;
  PromptKernels(launch, machine, order, prompts_as_hopper()).run(step);
#else
  PromptTwin(launch).run(step);
#endif
}

}  // namespace tierkv::cuda::testing
