#include "llama/pair_sums.h"

#include <algorithm>
#include <cmath>

#include "learn/products.h"
#include "quant/row_sums.h"

namespace tierkv::llama {

using namespace learn;

namespace {

constexpr uint32_t kBatch = 32;     // rows that wait to be multiplied out together
constexpr float kNowhere = -1e30f;  // a score that softmax makes nothing of

uint32_t padded(uint32_t n) { return (n + 15) / 16 * 16; }

}  // namespace

void PairTask::begin(const HeadWindow& head, uint32_t positions) {
  head_ = head;
  const size_t square = static_cast<size_t>(head.dim) * head.dim, stride = padded(positions);
  key_block.assign(square, 0.0f);
  key_plain.assign(square, 0.0f);
  queries.assign(square, 0.0f);
  value.assign(head.group, 0.0f);
  weight.assign(positions, 0.0f);
  influence.assign(positions, 0.0f);
  rows = 0;
  pairs = 0;
  q_.resize(static_cast<size_t>(head.group) * head.dim);
  go_.resize(q_.size());
  scores_.resize(head.group * stride);
  dots_.resize(head.group * stride);
  w_.resize(stride);
  scratch_.resize(16 * static_cast<size_t>(head.dim));
  for (Rows* waiting : {&block_rows_, &plain_rows_, &query_rows_}) {
    waiting->values.resize(static_cast<size_t>(kBatch) * head.dim);
    waiting->count = 0;
  }
}

float* PairTask::next(Rows& waiting, std::vector<float>& into) {
  if (waiting.count == kBatch) flush(waiting, into);
  return waiting.values.data() + static_cast<size_t>(waiting.count++) * head_.dim;
}

void PairTask::flush(Rows& waiting, std::vector<float>& into) {
  const uint32_t count = (waiting.count + 3) / 4 * 4;
  std::fill(waiting.values.begin() + static_cast<ptrdiff_t>(waiting.count) * head_.dim,
            waiting.values.begin() + static_cast<ptrdiff_t>(count) * head_.dim, 0.0f);
  add_products(waiting.values.data(), count, head_.dim, into.data());
  waiting.count = 0;
}

void PairTask::finish() {
  flush(block_rows_, key_block);
  flush(plain_rows_, key_plain);
  flush(query_rows_, queries);
}

void PairTask::add(const SeenQuery& query) {
  const uint32_t dim = head_.dim, t = query.position;
  const uint32_t low = head_.window != 0 && t + 1 > head_.window ? t + 1 - head_.window : 0;
  const uint32_t first = std::max(low, head_.sinks), last = t + 1 > head_.distance ? t + 1 - head_.distance : 0;
  for (uint32_t i = 0; i < head_.group; ++i) {
    const float* q = query.rows + i * query.head_stride;
    std::copy_n(q, dim, q_.data() + static_cast<size_t>(i) * dim);
    std::copy_n(q, dim, next(query_rows_, queries));
  }
  rows += head_.group;
  if (first >= last) return;
  const uint32_t seen = t + 1 - low, count = last - first;
  const size_t stride = padded(seen);
  dot_rows(head_.keys + static_cast<size_t>(low) * dim, seen, dim, q_.data(), head_.group, scores_.data(), stride, scratch_.data());
  for (uint32_t i = 0; i < head_.group; ++i) {
    const float* o = query.out + static_cast<size_t>(i) * dim;
    float* go = go_.data() + static_cast<size_t>(i) * dim;
    if (head_.gram == nullptr) {
      std::copy_n(o, dim, go);
      continue;
    }
    const float* gram = head_.gram + static_cast<size_t>(i) * dim * dim;
    for (uint32_t c = 0; c < dim; ++c) go[c] = dot(gram + static_cast<size_t>(c) * dim, o, dim);
  }
  dot_rows(head_.values + static_cast<size_t>(first) * dim, count, dim, go_.data(), head_.group, dots_.data(), padded(count),
           scratch_.data());
  for (uint32_t i = 0; i < head_.group; ++i) {
    float* scores = scores_.data() + i * stride;
    const float norm = soften(query, i, scores, seen);
    add_head(query, i, first, last, scores + (first - low), norm);
  }
  pairs += static_cast<uint64_t>(count) * head_.group;
}

// Scores become e^(score - the largest); what each has to be multiplied with to be a probability is returned.
float PairTask::soften(const SeenQuery& query, uint32_t i, float* scores, uint32_t n) const {
  const uint32_t all = padded(n);
  if (query.softcap > 0.0f) {
    for (uint32_t s = 0; s < n; ++s) scores[s] = query.softcap * std::tanh(scores[s] * query.scale / query.softcap);
  } else {
    for (uint32_t s = 0; s < n; ++s) scores[s] *= query.scale;
  }
  std::fill(scores + n, scores + all, kNowhere);
  float top = quant::largest(scores, all);
  if (query.sink_logits != nullptr) top = std::max(top, query.sink_logits[i]);
  float sum = quant::exp_sum(scores, all, top);
  if (query.sink_logits != nullptr) sum += std::exp(query.sink_logits[i] - top);
  return 1.0f / sum;
}

void PairTask::add_head(const SeenQuery& query, uint32_t i, uint32_t first, uint32_t last, const float* p, float norm) {
  const uint32_t dim = head_.dim, count = last - first;
  const float* dots = dots_.data() + static_cast<size_t>(i) * padded(count);
  const float* lengths = head_.lengths + i * head_.stride + first;
  const float* o = query.out + static_cast<size_t>(i) * dim;
  const float own = dot(go_.data() + static_cast<size_t>(i) * dim, o, dim), square = norm * norm;
  const float inverse = query.residual == 0.0f ? 0.0f : 1.0f / query.residual;  // NaN stays one, and is found
  const float* q = q_.data() + static_cast<size_t>(i) * dim;
  const float loud = dot(q, q, dim);
  float *mass = weight.data() + first, *reach = influence.data() + first;
  float* w = w_.data();
  for (uint32_t s = 0; s < count; ++s) {
    const float p2 = p[s] * p[s] * square;
    const float moved = lengths[s] - 2.0f * dots[s] + own;
    mass[s] += p2;
    w[s] = p2 * (moved > 0.0f ? moved : 0.0f) * inverse * query.scale * query.scale;
    reach[s] += w[s] * loud;
  }
  value[i] += sum_of(count, [p](uint32_t s) { return p[s] * p[s]; }) * square * inverse;
  for (uint32_t at = first; at < last;) {
    const uint32_t start = calib::block_start(at, head_.sinks, head_.block), end = std::min(last, start + head_.block);
    add_block(q, start, w + (at - first), at, end - at, mixed(query.seed + i) ^ start);
    at = end;
  }
}

void PairTask::add_block(const float* q, uint32_t start, const float* w, uint32_t first, uint32_t count, uint64_t seed) {
  const float sum = sum_of(count, [w](uint32_t s) { return w[s]; });
  if (sum == 0.0f) return;
  const float root = std::sqrt(sum);
  float* row = next(block_rows_, key_block);
  head_.turner->turn(q, 1, -static_cast<int64_t>(start), row);
  for (uint32_t c = 0; c < head_.dim; ++c) row[c] *= root;
  float left = sum * static_cast<float>(mixed(seed) >> 40) * 0x1p-24f;
  uint32_t chosen = 0;
  while (chosen + 1 < count && left >= w[chosen]) left -= w[chosen++];
  while (chosen > 0 && w[chosen] == 0.0f) --chosen;  // rounding ran past the last that counts
  row = next(plain_rows_, key_plain);
  head_.turner->turn(q, 1, -static_cast<int64_t>(first + chosen), row);
  for (uint32_t c = 0; c < head_.dim; ++c) row[c] *= root;
}

}  // namespace tierkv::llama
