#include "learn/layer.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "learn/products.h"
#include "learn/rows.h"

namespace tierkv::learn {
namespace {

constexpr uint32_t kBatch = 64;     // rows that are multiplied out together
constexpr uint32_t kFewRows = 8;    // below it they are added one by one, straight to the sums
constexpr uint32_t kPart = 16;      // queries of a task
constexpr uint32_t kHeldEvery = 8;  // sampled tokens: one of them only checks

uint32_t hash_of(uint64_t seq, uint32_t position) { return static_cast<uint32_t>(mixed(mixed(seq) ^ position) >> 32); }

bool within(uint32_t hash, uint32_t level) { return level == 0 || hash >> (32 - level) == 0; }

bool fits(const std::vector<float>& row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::fabs(x) <= kMaxF16; });
}

template <class T>
size_t size_of(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

}  // namespace

LayerLearner::LayerLearner(const LearnShape& shape, const calib::Turner& turner, uint32_t window, const std::vector<float>& gram,
                           uint32_t capacity)
    : shape_(shape), turner_(turner), window_(window), capacity_(capacity) {
  const size_t square = static_cast<size_t>(shape.dim) * shape.dim;
  traces_.assign(shape.heads, shape.dim);
  if (gram.size() == square * shape.heads) {
    float most = 0.0f;
    for (const float x : gram) most = std::max(most, std::fabs(x));
    finite_ = std::isfinite(most);
    gram_unit_ = most > 0.0f && finite_ ? most : 1.0f;
    gram_.resize(gram.size());
    std::transform(gram.begin(), gram.end(), gram_.begin(), [&](float x) { return f32_to_f16(x / gram_unit_); });
    for (uint32_t h = 0; h < shape.heads; ++h) {
      traces_[h] = 0.0;
      for (uint32_t c = 0; c < shape.dim; ++c) traces_[h] += gram[h * square + static_cast<size_t>(c) * shape.dim + c];
    }
  }
  sums_ = empty_layer(shape.kv_heads, shape.heads, shape.dim);
  slots_.reserve(capacity);
  rows_.reset(new uint16_t[static_cast<size_t>(capacity) * shape.kv_heads * 2 * shape.dim]);
  lengths_.reset(new float[static_cast<size_t>(capacity) * shape.heads]);
}

size_t LayerLearner::fixed_bytes(const LearnShape& shape, bool has_gram) {
  const size_t square = static_cast<size_t>(shape.dim) * shape.dim;
  const size_t head = triangle(shape.dim) * (sizeof(double) + kKinds * sizeof(float)) + shape.dim * sizeof(double);
  return shape.kv_heads * head + (has_gram ? shape.heads * square * sizeof(uint16_t) : 0);
}

size_t LayerLearner::token_bytes(const LearnShape& shape) {
  return static_cast<size_t>(shape.kv_heads) * 2 * shape.dim * sizeof(uint16_t) + shape.heads * sizeof(float) + sizeof(Slot);
}

void LayerLearner::add_rows(uint64_t seq, uint32_t position, const RowsView& keys, const RowsView& values) {
  std::lock_guard lock(mutex_);
  for (uint32_t h = 0; h < shape_.kv_heads; ++h) add_moments(h, position, keys);
  take(seq, position, keys, values);
}

// REQUIRES: mutex_ held, as the others that are private and not const.
void LayerLearner::add_moments(uint32_t head, uint32_t position, const RowsView& keys) {
  const uint32_t dim = shape_.dim, end = position + keys.tokens;
  HeadSums& sums = sums_.heads[head];
  std::vector<float> rows(static_cast<size_t>(std::min(kBatch, (keys.tokens + 3) / 4 * 4)) * dim), square;
  if (keys.tokens >= kFewRows) square.assign(static_cast<size_t>(dim) * dim, 0.0f);
  for (uint32_t at = std::max(position, shape_.sinks); at < end;) {
    const uint32_t start = calib::block_start(at, shape_.sinks, shape_.block),
                   last = std::min({end, start + shape_.block, at + kBatch});
    uint32_t count = 0;
    for (; at < last; ++at) {
      const bool ok = to_floats(keys, at - position, head, rows.data() + static_cast<size_t>(count) * dim);
      finite_ &= ok;
      count += ok;
    }
    turner_.turn(rows.data(), count, -static_cast<int64_t>(start), rows.data());
    sums.keys += count;
    for (uint32_t i = 0; i < count; ++i) {
      const float* row = rows.data() + static_cast<size_t>(i) * dim;
      for (uint32_t c = 0; c < dim; ++c) sums.key[c] += row[c];
      double* to = sums.square.data();
      for (uint32_t r = 0; r < dim && square.empty(); ++r) {
        for (uint32_t c = r; c < dim; ++c) *to++ += static_cast<double>(row[r]) * row[c];
      }
    }
    if (square.empty()) continue;
    std::fill(rows.begin() + static_cast<ptrdiff_t>(count) * dim, rows.begin() + static_cast<ptrdiff_t>((count + 3) / 4 * 4) * dim,
              0.0f);
    add_products(rows.data(), (count + 3) / 4 * 4, dim, square.data());
  }
  double* to = sums.square.data();
  for (uint32_t r = 0; r < dim && !square.empty(); ++r) {
    for (uint32_t c = r; c < dim; ++c) *to++ += square[static_cast<size_t>(r) * dim + c];
  }
}

void LayerLearner::take(uint64_t seq, uint32_t position, const RowsView& keys, const RowsView& values) {
  std::vector<float> key(shape_.dim), value(shape_.dim);
  size_t measured = slots_.size();
  for (uint32_t t = 0; t < keys.tokens; ++t) {
    if (position + t < shape_.sinks) continue;
    const uint32_t hash = hash_of(seq, position + t);
    if (!within(hash, level_)) continue;
    if (slots_.size() == capacity_) {
      measure(measured, slots_.size() - measured);
      while (slots_.size() == capacity_ && level_ < 31) thin();
      measured = slots_.size();
      if (slots_.size() == capacity_ || !within(hash, level_)) continue;
    }
    const size_t slot = slots_.size();
    bool ok = true;
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      ok = ok && to_floats(keys, t, h, key.data()) && to_floats(values, t, h, value.data());
      finite_ &= ok;
      ok = ok && fits(key) && fits(value);
      if (!ok) break;
      std::transform(key.begin(), key.end(), key_row(slot, h), f32_to_f16);
      std::transform(value.begin(), value.end(), value_row(slot, h), f32_to_f16);
    }
    if (ok) slots_.push_back({seq, position + t, hash, false});
  }
  measure(measured, slots_.size() - measured);
}

// |W_O v|² of slots that are new.
void LayerLearner::measure(size_t first, size_t count) {
  constexpr uint32_t kTogether = 16;
  const uint32_t dim = shape_.dim, group = shape_.group();
  std::vector<float> v(static_cast<size_t>(kTogether) * dim), y(v.size()), scratch(16 * static_cast<size_t>(dim));
  for (size_t from = first; from < first + count; from += kTogether) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(kTogether, first + count - from));
    for (uint32_t h = 0; h < shape_.heads; ++h) {
      for (uint32_t i = 0; i < n && h % group == 0; ++i) {
        const uint16_t* row = value_row(from + i, h / group);
        for (uint32_t c = 0; c < dim; ++c) v[static_cast<size_t>(i) * dim + c] = f16_to_f32(row[c]);
      }
      const uint16_t* gram = gram_.empty() ? nullptr : gram_.data() + static_cast<size_t>(h) * dim * dim;
      times_gram(gram, gram_unit_, v.data(), n, dim, y.data(), scratch.data());
      for (uint32_t i = 0; i < n; ++i) {
        const size_t at = static_cast<size_t>(i) * dim;
        lengths_[(from + i) * shape_.heads + h] = dot(v.data() + at, y.data() + at, dim);
      }
    }
  }
}

// Half of the tokens go. Those that stay keep their order.
void LayerLearner::thin() {
  ++level_;
  const size_t row = static_cast<size_t>(shape_.kv_heads) * 2 * shape_.dim;
  size_t to = 0;
  for (size_t from = 0; from < slots_.size(); ++from) {
    if (!within(slots_[from].hash, level_)) continue;
    if (to != from) {
      slots_[to] = slots_[from];
      std::copy_n(rows_.get() + from * row, row, rows_.get() + to * row);
      std::copy_n(lengths_.get() + from * shape_.heads, shape_.heads, lengths_.get() + to * shape_.heads);
    }
    ++to;
  }
  slots_.resize(to);
}

void LayerLearner::gather(uint64_t seq, uint32_t head, uint32_t first, uint32_t last, SampledRows& out) const {
  const uint32_t dim = shape_.dim, group = shape_.group();
  std::vector<uint32_t> chosen;
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.seq == seq && !slot.gone && slot.position >= first && slot.position <= last) chosen.push_back(i);
  }
  out.stands_for = std::ldexp(1.0f, static_cast<int>(level_));
  const size_t n = chosen.size();
  out.positions.resize(n);
  out.keys.resize(n * dim);
  out.values.resize(n * dim);
  out.lengths.resize(n * group);
  out.sizes.resize(n);
  for (size_t i = 0; i < n; ++i) {
    out.positions[i] = slots_[chosen[i]].position;
    std::copy_n(key_row(chosen[i], head), dim, out.keys.data() + i * dim);
    const uint16_t* value = value_row(chosen[i], head);
    std::copy_n(value, dim, out.values.data() + i * dim);
    for (uint32_t g = 0; g < group; ++g)
      out.lengths[g * n + i] = lengths_[chosen[i] * static_cast<size_t>(shape_.heads) + head * group + g];
    out.sizes[i] = sum_of(dim, [value](uint32_t c) { return f16_to_f32(value[c]) * f16_to_f32(value[c]); });
  }
}

void LayerLearner::add_queries(uint64_t seq, const QueryRows& queries, const Executor& run) {
  const uint32_t end = queries.position + queries.rows.tokens;
  std::vector<uint32_t> chosen[kKinds];
  for (uint32_t t = queries.position; t < end; ++t) {
    if (looked_at(t, queries.stride, shape_)) chosen[kind_of_query(t, queries.stride)].push_back(t);
  }
  struct Task {
    Kind kind;
    std::span<const uint32_t> positions;
    PairPart part = {};
    bool done = false;
  };
  std::vector<Task> tasks;  // of each part all KV heads
  for (const Kind kind : {kFit, kHeldOut}) {
    for (size_t from = 0; from < chosen[kind].size(); from += kPart) {
      const auto part = std::span(chosen[kind]).subspan(from, std::min<size_t>(kPart, chosen[kind].size() - from));
      for (uint32_t h = 0; h < shape_.kv_heads; ++h) tasks.push_back({kind, part});
    }
  }
  if (tasks.empty()) return;
  run(static_cast<uint32_t>(tasks.size()), [&](uint32_t index) {
    Task& task = tasks[index];
    const uint32_t head = index % shape_.kv_heads;
    try {
      const uint32_t low = window_ != 0 && task.positions.front() + 1 > window_ ? task.positions.front() + 1 - window_ : 0;
      SampledRows sample;
      gather(seq, head, low, task.positions.back() - shape_.distance, sample);
      HeadView view{shape_, &turner_, nullptr, gram_unit_, head, window_};
      if (!gram_.empty()) view.gram = gram_.data() + static_cast<size_t>(head) * shape_.group() * shape_.dim * shape_.dim;
      task.part = add_pairs(view, sample, queries, task.positions);
      task.done = true;
    } catch (const std::bad_alloc&) {  // these queries are not learnt from
    }
  });
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    if (!task.done) continue;
    finite_ &= task.part.finite;
    if (!task.part.finite) continue;
    if (i % shape_.kv_heads == 0) sums_.queries[task.kind] += task.positions.size();
    HeadSums& sums = sums_.heads[i % shape_.kv_heads];
    float* to = sums.metric[task.kind].data();
    for (uint32_t r = 0; r < shape_.dim; ++r) {
      for (uint32_t c = r; c < shape_.dim; ++c) *to++ += task.part.metric[static_cast<size_t>(r) * shape_.dim + c];
    }
    for (uint32_t g = 0; g < shape_.group(); ++g) sums.value[task.kind][g] += task.part.value[g];
    sums.weight += task.part.weight;
    sums.size += task.part.size;
  }
}

void LayerLearner::forget(uint64_t seq) noexcept {
  std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) slot.gone |= slot.seq == seq;
}

bool LayerLearner::finite() const {
  std::lock_guard lock(mutex_);
  return finite_;
}

size_t LayerLearner::bytes() const {
  std::lock_guard lock(mutex_);
  const size_t row = token_bytes(shape_) - sizeof(Slot);
  return sizeof *this + fixed_bytes(shape_, !gram_.empty()) + slots_.size() * row + size_of(slots_);
}

LayerSums LayerLearner::sums() const {
  std::lock_guard lock(mutex_);
  return sums_;
}

uint32_t LayerLearner::sampled() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(slots_.size());
}

HeadSample LayerLearner::sample(uint32_t head) const {
  HeadSample out;
  std::vector<float> row(shape_.dim);
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Kind kind = slots_[i].hash % kHeldEvery == 0 ? kHeldOut : kFit;
    const uint16_t *key = key_row(i, head), *value = value_row(i, head);
    std::transform(key, key + shape_.dim, row.begin(), f16_to_f32);
    turner_.turn(row.data(), 1, -static_cast<int64_t>(calib::block_start(slots_[i].position, shape_.sinks, shape_.block)),
                 row.data());
    out.keys[kind].insert(out.keys[kind].end(), row.begin(), row.end());
    if (kind != kHeldOut) continue;
    std::transform(value, value + shape_.dim, row.begin(), f16_to_f32);
    out.values.insert(out.values.end(), row.begin(), row.end());
  }
  return out;
}

}  // namespace tierkv::learn
