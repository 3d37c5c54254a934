#include "cache/choose_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "quant/key_box.h"
#include "quant/row_sums.h"

namespace tierkv::cache {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The reach of a hundred rows is about so many times the deviation of one.
constexpr float kDeviations = 2.5f;

// A threshold is found by halves: 2^-20 of the range of estimates is closer than they are.
constexpr int kHalves = 20;

// Where floats end a block may have anything.
float within_range(float score) { return std::isfinite(score) ? score : std::numeric_limits<float>::max(); }

// What is left out as a part of all there is, when it is `times` what is known of the rest.
double part_of_all(double times) { return std::isinf(times) ? 1.0 : times / (1.0 + times); }

// The sum of those that are not below `least`. In sixteen parts, which the compiler makes vectors of. The size is a multiple.
float sum_from(const std::vector<float>& x, float least) {
  float parts[16] = {};
  for (size_t i = 0; i < x.size(); i += 16) {
    for (size_t k = 0; k < 16; ++k) parts[k] += x[i + k] >= least ? x[i + k] : 0.0f;
  }
  return std::accumulate(parts, parts + 16, 0.0f);
}

BlockChoice counted(std::vector<uint8_t> read) {
  BlockChoice out;
  out.left_out = static_cast<size_t>(std::count(read.begin(), read.end(), uint8_t{0}));
  out.read = std::move(read);
  return out;
}

}  // namespace

BlockChooser::BlockChooser(std::span<const float> queries, std::span<const float> known, const attn::AttendParams& params,
                           size_t blocks)
    : queries_(queries),
      known_(known),
      params_(params),
      stride_((blocks + 15) / 16 * 16),
      bounds_(stride_ * known.size(), kNothing),
      estimates_(stride_ * known.size(), kNothing) {}

void BlockChooser::add(const std::byte* summary, uint32_t count) {
  if (count != counted_) log_rows_ = std::log(static_cast<float>(counted_ = count));  // nearly all have the same
  const float log_rows = log_rows_, cap = params_.softcap;
  const auto capped = [&](float score) { return cap > 0.0f ? cap * std::tanh(score / cap) : score; };
  quant::BoxScore scores[kMostDecodingRows];
  const bool there = quant::has_box(summary, params_.head_dim);
  for (uint32_t first = 0; first < rows(); first += kMostDecodingRows) {
    const uint32_t n = std::min(rows() - first, kMostDecodingRows);
    if (there) {
      quant::box_scores(summary, params_.head_dim, queries_.data() + static_cast<size_t>(first) * params_.head_dim, n, scores);
    } else {
      std::fill_n(scores, n, quant::BoxScore{0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()});
    }
    for (uint32_t i = 0; i < n; ++i) {
      const float middle = params_.scale * scores[i].middle, spread = params_.scale * scores[i].spread;
      const float deviation = spread / kDeviations;
      const size_t at = (first + i) * stride_ + blocks_;
      bounds_[at] = within_range(log_rows + capped(middle + params_.scale * scores[i].reach));
      // The mean of e^x over a normal distribution, and no more than its highest row would give.
      estimates_[at] = within_range(log_rows + capped(middle + std::min(0.5f * deviation * deviation, spread)));
    }
  }
  ++blocks_;
}

BlockChoice BlockChooser::finish(std::vector<uint8_t> read) const {
  BlockChoice out = counted(std::move(read));
  if (out.left_out == 0) return out;
  std::vector<float> left(stride_, kNothing);
  for (uint32_t r = 0; r < rows(); ++r) {
    for (size_t b = 0; b < blocks_; ++b) left[b] = out.read[b] ? kNothing : bounds(r)[b];
    std::fill(left.begin() + static_cast<ptrdiff_t>(blocks_), left.end(), kNothing);
    const auto n = static_cast<uint32_t>(stride_);
    const float top = quant::largest(left.data(), n);
    if (top == kNothing) continue;
    const double all = std::log(static_cast<double>(quant::exp_sum(left.data(), n, top))) + top;
    const double times = std::isinf(known_[r]) ? std::numeric_limits<double>::infinity() : std::exp(all - known_[r]);
    out.left_out_mass = std::max(out.left_out_mass, part_of_all(times));
  }
  return out;
}

BlockChoice BlockChooser::highest(size_t count) const {
  std::vector<uint8_t> read(blocks_, 1);
  if (count >= blocks_) return finish(std::move(read));
  std::vector<float> best(blocks_, kNothing);
  for (uint32_t r = 0; r < rows(); ++r) {
    // Rows are compared by what they find in proportion to what they have already.
    const float known = std::isinf(known_[r]) ? 0.0f : known_[r];
    for (size_t b = 0; b < blocks_; ++b) best[b] = std::max(best[b], estimates(r)[b] - known);
  }
  std::vector<uint32_t> order(blocks_);
  std::iota(order.begin(), order.end(), 0u);
  const auto behind = order.begin() + static_cast<ptrdiff_t>(count);
  std::nth_element(order.begin(), behind, order.end(),
                   [&](uint32_t x, uint32_t y) { return best[x] != best[y] ? best[x] > best[y] : x < y; });
  std::for_each(behind, order.end(), [&](uint32_t b) { read[b] = 0; });
  return finish(std::move(read));
}

BlockChoice BlockChooser::bounded(double share) const {
  std::vector<uint8_t> read(blocks_, 1);
  if (share <= 0.0) return counted(std::move(read));
  // What one block may have at most, in logs, for any of it to be left out.
  const double most = std::log(share / (1.0 - share));
  struct Candidate {
    double worst;
    uint32_t block;
  };
  std::vector<Candidate> candidates;
  for (uint32_t b = 0; b < blocks_; ++b) {
    double worst = -std::numeric_limits<double>::infinity();
    for (uint32_t r = 0; r < rows(); ++r) worst = std::max(worst, static_cast<double>(bounds(r)[b]) - known_[r]);
    if (worst <= most) candidates.push_back({worst, b});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& x, const Candidate& y) { return x.worst != y.worst ? x.worst < y.worst : x.block < y.block; });
  std::vector<double> sums(rows(), 0.0), more(rows());
  double reported = 0.0;
  for (const Candidate& candidate : candidates) {
    double highest = 0.0;
    for (uint32_t r = 0; r < rows(); ++r) {
      more[r] = sums[r] + std::exp(static_cast<double>(bounds(r)[candidate.block]) - known_[r]);
      highest = std::max(highest, part_of_all(more[r]));
    }
    if (!(highest <= share)) break;
    sums.swap(more);
    read[candidate.block] = 0;
    reported = highest;
  }
  BlockChoice out = counted(std::move(read));
  out.left_out_mass = reported;
  return out;
}

BlockChoice BlockChooser::likely(double share) const {
  std::vector<uint8_t> read(blocks_, share >= 1.0 ? 1 : 0);
  std::vector<float> weights(stride_);
  for (uint32_t r = 0; share < 1.0 && blocks_ != 0 && r < rows(); ++r) {
    std::copy_n(estimates_.begin() + static_cast<ptrdiff_t>(r * stride_), stride_, weights.begin());
    const auto n = static_cast<uint32_t>(stride_);
    const float top = std::max(quant::largest(weights.data(), n), known_[r]);
    const double known = std::isinf(known_[r]) ? 0.0 : std::exp(static_cast<double>(known_[r]) - top);
    const double wanted = share * (known + quant::exp_sum(weights.data(), n, top)) - known;
    if (wanted <= 0.0) continue;
    float low = 0.0f, high = 1.0f;  // all of them are enough, more than the highest is none
    for (int i = 0; i < kHalves; ++i) {
      const float middle = 0.5f * (low + high);
      (sum_from(weights, middle) >= wanted ? low : high) = middle;
    }
    for (size_t b = 0; b < blocks_; ++b) read[b] |= weights[b] >= low ? 1 : 0;
  }
  return finish(std::move(read));
}

}  // namespace tierkv::cache
