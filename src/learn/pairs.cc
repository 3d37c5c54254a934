#include "learn/pairs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "learn/products.h"
#include "learn/rows.h"
#include "quant/row_sums.h"

namespace tierkv::learn {
namespace {

constexpr uint32_t kBatch = 32;           // rows that wait to be multiplied out together
constexpr uint32_t kTogether = 4;         // queries whose scores are computed at once
constexpr float kLeastShare = 1 / 24.0f;  // of a query's weight: a block below it is drawn by lot
constexpr float kNowhere = -1e30f;        // a score that e^x makes nothing of

uint32_t padded(uint32_t n) { return (n + 15) / 16 * 16; }

struct BlockRange {
  uint32_t start, first, last;  // its first position; sampled rows
};

class Adder {
 public:
  Adder(const HeadView& head, const SampledRows& sample, const QueryRows& queries, PairPart& part)
      : head_(head), sample_(sample), queries_(queries), part_(part), dim_(head.shape.dim), group_(head.shape.group()) {
    const size_t most = static_cast<size_t>(kTogether) * group_;
    stride_ = padded(sample.count());
    q_.resize(most * dim_);
    o_.resize(most * dim_);
    go_.resize(most * dim_);
    scores_.resize(most * stride_);
    dots_.resize(most * stride_);
    w_.resize(stride_);
    scratch_.resize(16 * static_cast<size_t>(dim_));
    waiting_.resize(static_cast<size_t>(kBatch) * dim_);
    const LearnShape& shape = head.shape;
    for (uint32_t s = 0; s < sample.count(); ++s) {
      const uint32_t start = calib::block_start(sample.positions[s], shape.sinks, shape.block);
      if (blocks_.empty() || blocks_.back().start != start) blocks_.push_back({start, s, s});
      blocks_.back().last = s + 1;
    }
  }

  void add(std::span<const uint32_t> positions) {
    const auto count = static_cast<uint32_t>(positions.size()), rows = count * group_, n = sample_.count();
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = positions[i] - queries_.position;
      for (uint32_t g = 0; g < group_; ++g) {
        const uint32_t h = head_.head * group_ + g;
        const size_t to = static_cast<size_t>(i * group_ + g) * dim_;
        part_.finite &= to_floats(queries_.rows, row, h, q_.data() + to);
        std::copy_n(queries_.out + (static_cast<size_t>(row) * head_.shape.heads + h) * dim_, dim_, o_.data() + to);
      }
    }
    for (uint32_t g = 0; g < group_; ++g) {
      const uint16_t* gram = head_.gram != nullptr ? head_.gram + static_cast<size_t>(g) * dim_ * dim_ : nullptr;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t at = static_cast<size_t>(i * group_ + g) * dim_;
        times_gram(gram, head_.gram_unit, o_.data() + at, 1, dim_, go_.data() + at, scratch_.data());
      }
    }
    if (!part_.finite) return;
    dot_rows(sample_.keys.data(), n, dim_, q_.data(), rows, scores_.data(), stride_, scratch_.data());
    dot_rows(sample_.values.data(), n, dim_, go_.data(), rows, dots_.data(), stride_, scratch_.data());
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t g = 0; g < group_; ++g) add_head(positions[i], i * group_ + g, g);
    }
  }

  void flush() {
    const uint32_t count = (waiting_count_ + 3) / 4 * 4;
    std::fill(waiting_.begin() + static_cast<ptrdiff_t>(waiting_count_) * dim_,
              waiting_.begin() + static_cast<ptrdiff_t>(count) * dim_, 0.0f);
    add_products(waiting_.data(), count, dim_, part_.metric.data());
    waiting_count_ = 0;
  }

 private:
  // The sampled rows that the archive would show to a query.
  std::pair<uint32_t, uint32_t> seen_by(uint32_t position) const {
    const auto& at = sample_.positions;
    const uint32_t low = head_.window != 0 && position + 1 > head_.window ? position + 1 - head_.window : 0;
    const auto first = std::lower_bound(at.begin(), at.end(), low);
    const auto last = std::upper_bound(first, at.end(), position - head_.shape.distance);
    return {static_cast<uint32_t>(first - at.begin()), static_cast<uint32_t>(last - at.begin())};
  }

  void add_head(uint32_t position, uint32_t row, uint32_t g) {
    const auto [first, last] = seen_by(position);
    if (first == last) return;
    const uint32_t h = head_.head * group_ + g;
    float* p = scores_.data() + static_cast<size_t>(row) * stride_;
    soften(p, queries_.lse[static_cast<size_t>(position - queries_.position) * head_.shape.heads + h]);
    const float* dots = dots_.data() + static_cast<size_t>(row) * stride_;
    const float* lengths = sample_.lengths.data() + static_cast<size_t>(g) * sample_.count();
    const size_t at = static_cast<size_t>(row) * dim_;
    const float own = dot(go_.data() + at, o_.data() + at, dim_), unit = queries_.scale * queries_.scale * sample_.stands_for;
    float* w = w_.data();
    for (uint32_t s = first; s < last; ++s) {
      const float moved = lengths[s] - 2.0f * dots[s] + own;
      p[s] *= p[s];
      w[s] = p[s] * (moved > 0.0f ? moved : 0.0f) * unit;
    }
    const float* sizes = sample_.sizes.data() + first;
    const float* squares = p + first;
    const float weight = sum_of(last - first, [squares](uint32_t s) { return squares[s]; }) * sample_.stands_for;
    const float size = sum_of(last - first, [squares, sizes](uint32_t s) { return squares[s] * sizes[s]; }) * sample_.stands_for;
    const float* weights = w + first;
    const float total = sum_of(last - first, [weights](uint32_t s) { return weights[s]; });
    part_.finite &= std::isfinite(weight) && std::isfinite(size) && std::isfinite(total);
    if (!part_.finite || total <= 0.0f) return;
    part_.value[g] += weight;
    part_.weight += weight;
    part_.size += size;
    for (const BlockRange& block : blocks_) {
      if (block.last <= first || block.first >= last) continue;
      add_block(q_.data() + at, block, std::max(block.first, first), std::min(block.last, last), total * kLeastShare,
                mixed((static_cast<uint64_t>(position) << 20 | h) ^ static_cast<uint64_t>(block.start) << 40));
    }
  }

  // Scores become probabilities.
  void soften(float* scores, float lse) const {
    const uint32_t n = sample_.count();
    const float scale = queries_.scale, cap = queries_.softcap;
    for (uint32_t s = 0; s < n; ++s) scores[s] = cap > 0.0f ? cap * std::tanh(scores[s] * scale / cap) : scores[s] * scale;
    std::fill(scores + n, scores + stride_, kNowhere);
    (void)quant::exp_sum(scores, stride_, lse);
  }

  void add_block(const float* q, const BlockRange& block, uint32_t first, uint32_t last, float least, uint64_t seed) {
    const float* w = w_.data() + first;
    float weight = sum_of(last - first, [w](uint32_t s) { return w[s]; });
    if (weight < least) {
      if (weight <= least * static_cast<float>(seed >> 40) * 0x1p-24f) return;
      weight = least;
    }
    if (waiting_count_ == kBatch) flush();
    float* row = waiting_.data() + static_cast<size_t>(waiting_count_++) * dim_;
    head_.turner->turn(q, 1, -static_cast<int64_t>(block.start), row);
    const float root = std::sqrt(weight);
    for (uint32_t c = 0; c < dim_; ++c) row[c] *= root;
  }

  const HeadView& head_;
  const SampledRows& sample_;
  const QueryRows& queries_;
  PairPart& part_;
  const uint32_t dim_, group_;
  uint32_t stride_ = 0;
  std::vector<BlockRange> blocks_;
  std::vector<float> q_, o_, go_, scores_, dots_, w_, scratch_, waiting_;
  uint32_t waiting_count_ = 0;
};

}  // namespace

bool looked_at(uint32_t position, uint32_t stride, const LearnShape& shape) {
  return position % stride == 0 && position >= shape.sinks + shape.distance;
}

Kind kind_of_query(uint32_t position, uint32_t stride) { return position / stride % 8 == 5 ? kHeldOut : kFit; }

void times_gram(const uint16_t* gram, float unit, const float* x, uint32_t n, uint32_t dim, float* y, float* scratch) {
  if (gram == nullptr) {
    std::copy_n(x, static_cast<size_t>(n) * dim, y);
    return;
  }
  dot_rows(gram, dim, dim, x, n, y, dim, scratch);
  for (size_t i = 0; i < static_cast<size_t>(n) * dim; ++i) y[i] *= unit;
}

PairPart add_pairs(const HeadView& head, const SampledRows& sample, const QueryRows& queries, std::span<const uint32_t> positions) {
  PairPart part;
  part.metric.assign(static_cast<size_t>(head.shape.dim) * head.shape.dim, 0.0f);
  part.value.assign(head.shape.group(), 0.0);
  if (sample.count() == 0) return part;
  Adder adder(head, sample, queries, part);
  for (size_t from = 0; from < positions.size(); from += kTogether) {
    adder.add(positions.subspan(from, std::min<size_t>(kTogether, positions.size() - from)));
  }
  adder.flush();
  return part;
}

}  // namespace tierkv::learn
