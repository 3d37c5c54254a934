#include "attn/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/frame.h"
#include "quant/isa.h"
#include "quant/row_sums.h"

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
  ++s.codec.queries_id;
  s.codec.coarse = p.params.coarse;
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
    float* row = scores + static_cast<size_t>(i) * row_stride(view);
    for (uint32_t t = 0; t < view.rows; ++t) {
      const uint64_t key = view.position(t);
      const bool hidden = key == kDeadPosition || (p.params.causal && key > at) || (p.params.window && key + p.params.window <= at);
      if (hidden) row[t] = kHidden;
    }
  }
}

// Scores of one view, softcapped and masked: scores[i*row_stride(view) + t].
void score_view(const Pass& p, const BlockView& view, float* scores) {
  const int slot = frame_slot(view.key_codec->frame());
  const uint32_t stride = row_stride(view);
  view.key_codec->scores(view.keys, view.ctx, p.s.query[slot].data(), p.rows, view.rows, scores, stride, p.s.codec);
  for (uint32_t i = 0; i < p.rows; ++i) {
    float* row = scores + static_cast<size_t>(i) * stride;
    if (p.params.softcap > 0.0f) {
      for (uint32_t t = 0; t < view.rows; ++t) row[t] = p.params.softcap * std::tanh(row[t] / p.params.softcap);
    }
    std::fill(row + view.rows, row + stride, kHidden);
  }
  if (!fully_visible(p, view)) mask(p, view, scores);
}

// Turns scores into weights against the running maximum, rescaling what was summed so far when the maximum moved. `kept`, where
// given, gets the weights too.
void absorb(Pass& p, const BlockView& view, float* scores, uint16_t* kept) {
  Scratch& s = p.s;
  const size_t d = p.params.head_dim;
  const uint32_t stride = row_stride(view);
  bool any = false;
  for (uint32_t i = 0; i < p.rows; ++i) {
    float* row = scores + static_cast<size_t>(i) * stride;
    const float top = quant::largest(row, stride);
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
      std::fill(row, row + stride, 0.0f);
      if (kept) std::fill_n(kept + i * size_t{stride}, stride, uint16_t{0});
      continue;
    }
    any = true;
    s.row_sum[i] += kept ? quant::exp_sum_kept(row, stride, s.row_max[i], kept + i * size_t{stride})
                         : quant::exp_sum(row, stride, s.row_max[i]);
  }
  if (!any || p.params.weigh_only) return;
  const int slot = frame_slot(view.value_codec->frame());
  view.value_codec->accumulate(view.values, view.ctx, scores, stride, p.rows, view.rows, s.acc[slot].data(), s.codec);
}

// The sums of both frames, in the plain one: sums[row*head_dim + c].
const float* plain_sums(Pass& p) {
  Scratch& s = p.s;
  if (!p.frame_used[1]) {
    if (!p.frame_used[0]) s.acc[0].assign(static_cast<size_t>(p.rows) * p.params.head_dim, 0.0f);
    return s.acc[0].data();
  }
  quant::from_frame(Frame::hadamard, s.acc[1].data(), p.rows, p.params.head_dim);
  if (!p.frame_used[0]) return s.acc[1].data();
  for (size_t i = 0; i < s.acc[1].size(); ++i) s.acc[0][i] += s.acc[1][i];
  return s.acc[0].data();
}

// A sink's logit joins the softmax of a row with a value of zero: it only adds to the sum. Returns what the row's outputs shrink
// by.
float join_sink(const float* sink, float& top, float& sum) {
  if (!sink) return 1.0f;
  const float both = std::max(top, *sink);
  const float shrink = top == kHidden ? 0.0f : std::exp(top - both);
  sum = sum * shrink + std::exp(*sink - both);
  top = both;
  return shrink;
}

bool all_finite(const float* x, size_t n) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (const quant::Kernels* kernels = quant::active_kernels()) return kernels->within(x, static_cast<uint32_t>(n), kLargest);
  return std::all_of(x, x + n, [](float value) { return std::fabs(value) <= kLargest; });
}

// One row of output from its sums, which may be the same memory; top and sum then count the sink too. False: something is not
// finite. The row is then zeros, and its sum too, so that it has no mass.
bool normalise(const float* sums, const float* sink, float& top, float& sum, size_t d, float* out) {
  const bool finite = top == kHidden || std::isfinite(top);
  const float scale = join_sink(sink, top, sum);
  const float norm = sum > 0.0f ? scale / sum : 0.0f;
  for (size_t c = 0; c < d; ++c) out[c] = sums[c] * norm;
  if (finite && std::isfinite(sum) && all_finite(out, d)) return true;
  std::fill(out, out + d, 0.0f);
  sum = 0.0f;
  return false;
}

const float* sink_of(const QueryTile& tile, uint32_t row) {
  return tile.sink_logits ? tile.sink_logits + row % tile.group : nullptr;
}

float log_sum(float top, float sum) { return sum > 0.0f ? top + std::log(sum) : kHidden; }

bool finish(Pass& p, float* out, float* lse) {
  Scratch& s = p.s;
  const size_t d = p.params.head_dim;
  const float* sums = plain_sums(p);
  bool finite = true;
  for (uint32_t i = 0; i < p.rows; ++i) {
    finite &= normalise(sums + i * d, sink_of(p.tile, i), s.row_max[i], s.row_sum[i], d, out + i * d);
    if (lse) lse[i] = log_sum(s.row_max[i], s.row_sum[i]);
  }
  return finite;
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
        const float* raw = s.kept.data() + s.kept_at[v] + static_cast<size_t>(i) * row_stride(p.views[v]);
        const float norm = 1.0f / s.row_sum[i];
        for (uint32_t t = 0; t < n; ++t) {
          if (raw[t] != kHidden) s.mass[t] += std::exp(raw[t] - s.row_max[i]) * norm;
        }
      }
      observer.add(p.tile.first + q, v, s.mass.data(), n);
    }
    observer.end_query(p.tile.first + q);
  }
}

constexpr uint32_t kFewRows = 16;  // with more, the work on a block hides the wait for the next

// The keys that come first are asked for before queries are prepared: nobody asked for them ahead. Their end first, where better
// rows lie.
void fetch_first(std::span<const BlockView> views, uint32_t rows) {
  if (views.empty() || rows > kFewRows) return;
  const std::span<const std::byte> keys = views[0].keys;
  for (size_t at = 0; at < keys.size(); at += 64) __builtin_prefetch(keys.data() + keys.size() - 1 - at);
}

// All at once: a vector that grows by and by copies what it has again and again. One that was as long before is not touched.
void reserve_weights(const Pass& p) {
  size_t rows = 0, views = 0;
  for (size_t v = p.params.weigh_from; v < p.views.size(); ++v, ++views) rows += row_stride(p.views[v]);
  p.s.weighed.views.reserve(views);
  if (rows * p.rows > p.s.weighed.weights.size()) p.s.weighed.weights.resize(rows * p.rows);
  p.s.weighed.tops.reserve(views * p.rows + 16);  // to whole vectors (mass.h)
}

void run_views(Pass& p, bool keep) {
  Scratch& s = p.s;
  s.weighed.clear();
  reserve_weights(p);
  s.scores.resize(static_cast<size_t>(p.rows) * kMaxViewRows);
  s.kept.clear();
  s.kept_at.assign(p.views.size(), 0);
  for (size_t v = 0; v < p.views.size(); ++v) {
    const BlockView& view = p.views[v];
    if (invisible(p, view)) continue;
    const bool few = p.rows <= kFewRows;
    s.codec.ahead = few ? quant::Ahead{view.values.data(), view.values.size()} : quant::Ahead();
    score_view(p, view, s.scores.data());
    if (keep) {
      s.kept_at[v] = s.kept.size();
      s.kept.insert(s.kept.end(), s.scores.begin(), s.scores.begin() + static_cast<ptrdiff_t>(p.rows) * row_stride(view));
    }
    s.codec.ahead =
        few && v + 1 < p.views.size() ? quant::Ahead{p.views[v + 1].keys.data(), p.views[v + 1].keys.size()} : quant::Ahead();
    if (v < p.params.weigh_from) {
      absorb(p, view, s.scores.data(), nullptr);
      continue;
    }
    absorb(p, view, s.scores.data(), s.weighed.next(static_cast<size_t>(p.rows) * row_stride(view)));
    s.weighed.views.push_back(static_cast<uint32_t>(v));
    s.weighed.tops.insert(s.weighed.tops.end(), s.row_max.begin(), s.row_max.end());
  }
}

}  // namespace

bool attend(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, float* out, Scratch& scratch,
            MassObserver* observer, float* lse) {
  if (tile.queries == 0) return true;
  Pass p{views, tile, params, scratch, tile.queries * tile.group, {}, 0, 0};
  prepare(p);
  run_views(p, observer != nullptr);
  const bool finite = finish(p, out, lse);
  if (observer) report(p, *observer);
  return finite;
}

void attend_partial(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, Partial& partial,
                    Scratch& scratch) {
  fetch_first(views, tile.queries * tile.group);
  Pass p{views, tile, params, scratch, tile.queries * tile.group, {}, 0, 0};
  prepare(p);
  run_views(p, false);
  const float* sums = plain_sums(p);
  partial.max = scratch.row_max;
  partial.sum = scratch.row_sum;
  partial.out.assign(sums, sums + static_cast<size_t>(p.rows) * params.head_dim);
  partial.weighed.clear();
  if (params.weigh_from != kNoView) std::swap(partial.weighed, scratch.weighed);
}

void log_sums(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, float* lse, Scratch& scratch) {
  Pass p{views, tile, params, scratch, tile.queries * tile.group, {}, 0, 0};
  prepare(p);
  scratch.codec.ahead = quant::Ahead();
  scratch.scores.resize(static_cast<size_t>(p.rows) * kMaxViewRows);
  for (const BlockView& view : views) {
    if (invisible(p, view)) continue;
    score_view(p, view, scratch.scores.data());
    for (uint32_t i = 0; i < p.rows; ++i) {
      float* row = scratch.scores.data() + static_cast<size_t>(i) * row_stride(view);
      const float top = quant::largest(row, row_stride(view)), old = scratch.row_max[i];
      if (top == kHidden) continue;
      if (top > old) {
        scratch.row_sum[i] *= old == kHidden ? 0.0f : std::exp(old - top);
        scratch.row_max[i] = top;
      }
      scratch.row_sum[i] += quant::exp_sum(row, row_stride(view), scratch.row_max[i]);
    }
  }
  for (uint32_t i = 0; i < p.rows; ++i) {
    (void)join_sink(sink_of(tile, i), scratch.row_max[i], scratch.row_sum[i]);
    lse[i] = log_sum(scratch.row_max[i], scratch.row_sum[i]);
  }
}

bool merge(std::span<const Partial> partials, const QueryTile& tile, const AttendParams& params, float* out, float* lse) {
  const size_t d = params.head_dim;
  bool finite = true;
  for (uint32_t i = 0; i < tile.queries * tile.group; ++i) {
    float top = kHidden, total = 0.0f;
    for (const Partial& part : partials) top = std::max(top, part.max[i]);
    float* sums = out + i * d;
    std::fill(sums, sums + d, 0.0f);
    for (const Partial& part : partials) {
      if (part.max[i] == kHidden) continue;
      const float weight = std::exp(part.max[i] - top);
      total += weight * part.sum[i];
      for (size_t c = 0; c < d; ++c) sums[c] += weight * part.out[i * d + c];
    }
    finite &= normalise(sums, sink_of(tile, i), top, total, d, sums);
    if (lse) lse[i] = log_sum(top, total);
  }
  return finite;
}

}  // namespace tierkv::attn
