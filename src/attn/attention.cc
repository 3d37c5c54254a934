#include "attn/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/frame.h"

namespace tierkv::attn {
namespace {

using quant::Frame;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Codecs in Frame::block take the plain query and add in the plain frame.
int frame_slot(Frame frame) { return frame == Frame::hadamard ? 1 : 0; }

struct Pass {
  std::span<const BlockView> views;
  const QueryTile& tile;
  const AttendParams& params;
  Scratch& s;
  uint32_t rows;  // query rows in the tile
  bool frame_used[2] = {false, false};
  uint32_t first_query, last_query;  // smallest and largest query position
};

void prepare(Pass& p) {
  const size_t d = p.params.head_dim;
  Scratch& s = p.s;
  s.query[0].resize(p.rows * d);
  for (size_t i = 0; i < p.rows * d; ++i) s.query[0][i] = p.tile.rows[i] * p.params.scale;
  bool rotated = false;
  for (const BlockView& view : p.views) {
    rotated |= view.key_codec->frame() == Frame::hadamard;
    p.frame_used[frame_slot(view.value_codec->frame())] = true;
  }
  if (rotated) {
    s.query[1] = s.query[0];
    quant::to_frame(Frame::hadamard, s.query[1].data(), p.rows, p.params.head_dim);
  }
  for (int f = 0; f < 2; ++f) {
    if (p.frame_used[f]) s.acc[f].assign(p.rows * d, 0.0f);
  }
  s.row_max.assign(p.rows, kHidden);
  s.row_sum.assign(p.rows, 0.0f);
  p.first_query = *std::min_element(p.tile.positions, p.tile.positions + p.tile.queries);
  p.last_query = *std::max_element(p.tile.positions, p.tile.positions + p.tile.queries);
}

bool invisible(const Pass& p, const BlockView& view) {
  if (view.rows == 0) return true;
  if (view.ctx.positions) return false;  // may hold dead rows: looked at one by one
  const uint32_t first = view.ctx.first_position;
  const uint32_t last = first + view.rows - 1;
  if (p.params.causal && first > p.last_query) return true;
  return p.params.window && static_cast<uint64_t>(last) + p.params.window <= p.first_query;
}

bool fully_visible(const Pass& p, const BlockView& view) {
  if (view.ctx.positions) return false;
  const uint32_t first = view.ctx.first_position;
  if (p.params.causal && first + view.rows - 1 > p.first_query) return false;
  return !p.params.window || static_cast<uint64_t>(first) + p.params.window > p.last_query;
}

void mask(const Pass& p, const BlockView& view, float* scores) {
  for (uint32_t i = 0; i < p.rows; ++i) {
    const uint64_t at = p.tile.positions[i / p.tile.group];
    float* row = scores + static_cast<size_t>(i) * view.rows;
    for (uint32_t t = 0; t < view.rows; ++t) {
      const uint64_t key = view.position(t);
      const bool hidden = key == kDeadPosition || (p.params.causal && key > at) || (p.params.window && key + p.params.window <= at);
      if (hidden) row[t] = kHidden;
    }
  }
}

// Scores of one view, softcapped and masked: scores[i*view.rows + t].
void score_view(const Pass& p, const BlockView& view, float* scores) {
  const int slot = frame_slot(view.key_codec->frame());
  view.key_codec->scores(view.keys, view.ctx, p.s.query[slot].data(), p.rows, view.rows, scores, view.rows, p.s.codec);
  if (p.params.softcap > 0.0f) {
    const float cap = p.params.softcap;
    for (size_t i = 0; i < static_cast<size_t>(p.rows) * view.rows; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
  }
  if (!fully_visible(p, view)) mask(p, view, scores);
}

// Turns scores into weights against the running maximum, rescaling what was summed so far when the maximum moved.
void absorb(Pass& p, const BlockView& view, float* scores) {
  Scratch& s = p.s;
  const size_t d = p.params.head_dim;
  bool any = false;
  for (uint32_t i = 0; i < p.rows; ++i) {
    float* row = scores + static_cast<size_t>(i) * view.rows;
    const float top = *std::max_element(row, row + view.rows);
    const float old = s.row_max[i];
    if (top > old) {
      s.row_max[i] = top;
      if (old != kHidden) {
        const float shrink = std::exp(old - top);
        s.row_sum[i] *= shrink;
        for (int f = 0; f < 2; ++f) {
          if (!p.frame_used[f]) continue;
          float* acc = s.acc[f].data() + i * d;
          for (size_t c = 0; c < d; ++c) acc[c] *= shrink;
        }
      }
    }
    if (top == kHidden) {
      std::fill(row, row + view.rows, 0.0f);
      continue;
    }
    any = true;
    float sum = 0.0f;
    for (uint32_t t = 0; t < view.rows; ++t) {
      row[t] = std::exp(row[t] - s.row_max[i]);
      sum += row[t];
    }
    s.row_sum[i] += sum;
  }
  if (!any) return;
  const int slot = frame_slot(view.value_codec->frame());
  view.value_codec->accumulate(view.values, view.ctx, scores, view.rows, p.rows, view.rows, s.acc[slot].data(), s.codec);
}

void finish(Pass& p, float* out) {
  Scratch& s = p.s;
  const size_t d = p.params.head_dim;
  if (p.frame_used[1]) quant::from_frame(Frame::hadamard, s.acc[1].data(), p.rows, p.params.head_dim);
  for (uint32_t i = 0; i < p.rows; ++i) {
    float* row = out + i * d;
    float scale = 1.0f;
    if (p.tile.sink_logits) {
      // The sink's logit joins the softmax with a value of zero: it only adds to the sum.
      const float sink = p.tile.sink_logits[i % p.tile.group];
      const float top = std::max(s.row_max[i], sink);
      const float shrink = s.row_max[i] == kHidden ? 0.0f : std::exp(s.row_max[i] - top);
      s.row_sum[i] = s.row_sum[i] * shrink + std::exp(sink - top);
      s.row_max[i] = top;
      scale = shrink;
    }
    const float norm = s.row_sum[i] > 0.0f ? scale / s.row_sum[i] : 0.0f;
    for (size_t c = 0; c < d; ++c) {
      float sum = 0.0f;
      if (p.frame_used[0]) sum += s.acc[0][i * d + c];
      if (p.frame_used[1]) sum += s.acc[1][i * d + c];
      row[c] = sum * norm;
    }
  }
}

// Now that every row's maximum and sum are known, the kept raw scores become mass.
void report(Pass& p, MassObserver& observer) {
  Scratch& s = p.s;
  for (uint32_t q = 0; q < p.tile.queries; ++q) {
    for (uint32_t v = 0; v < p.views.size(); ++v) {
      const uint32_t n = p.views[v].rows;
      if (invisible(p, p.views[v])) continue;
      s.mass.assign(n, 0.0f);
      for (uint32_t g = 0; g < p.tile.group; ++g) {
        const uint32_t i = q * p.tile.group + g;
        if (!(s.row_sum[i] > 0.0f)) continue;
        const float* raw = s.kept.data() + s.kept_at[v] + static_cast<size_t>(i) * n;
        const float norm = 1.0f / s.row_sum[i];
        for (uint32_t t = 0; t < n; ++t) {
          if (raw[t] != kHidden) s.mass[t] += std::exp(raw[t] - s.row_max[i]) * norm;
        }
      }
      observer.add(q, v, s.mass.data(), n);
    }
    observer.end_query(q);
  }
}

}  // namespace

void attend(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, float* out, Scratch& scratch,
            MassObserver* observer) {
  if (tile.queries == 0) return;
  Pass p{views, tile, params, scratch, tile.queries * tile.group, {}, 0, 0};
  prepare(p);
  scratch.scores.resize(static_cast<size_t>(p.rows) * kMaxViewRows);
  scratch.kept.clear();
  scratch.kept_at.assign(views.size(), 0);
  for (size_t v = 0; v < views.size(); ++v) {
    const BlockView& view = views[v];
    if (invisible(p, view)) continue;
    score_view(p, view, scratch.scores.data());
    if (observer) {
      scratch.kept_at[v] = scratch.kept.size();
      scratch.kept.insert(scratch.kept.end(), scratch.scores.begin(), scratch.scores.begin() + static_cast<ptrdiff_t>(p.rows) * view.rows);
    }
    absorb(p, view, scratch.scores.data());
  }
  finish(p, out);
  if (observer) report(p, *observer);
}

}  // namespace tierkv::attn
