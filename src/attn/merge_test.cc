// merge() by itself: partial softmaxes of any maxima, some of them empty, become the one that double precision gives over all rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "attn/attention.h"
#include "quant/isa.h"
#include "quant/registry.h"

namespace tierkv::attn {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr uint32_t kDim = 48, kQueries = 2, kGroup = 3, kRows = kQueries * kGroup;

// What one run of keys gives every row of a tile: its scores, and its values.
struct Part {
  std::vector<std::vector<float>> scores;  // [row of the tile][key]
  std::vector<std::vector<float>> values;  // [key][kDim]
};

class Parts {
 public:
  explicit Parts(uint32_t seed) : rng_(seed) {}

  // `keys` keys whose scores lie around `middle`; a row of the tile in `blind` sees none of them.
  void add(uint32_t keys, float middle, float spread, std::vector<uint32_t> blind = {}) {
    Part part;
    for (uint32_t row = 0; row < kRows; ++row) {
      const bool sees = std::find(blind.begin(), blind.end(), row) == blind.end();
      std::vector<float>& scores = part.scores.emplace_back(keys);
      for (float& s : scores) s = sees ? middle + spread * normal_(rng_) : kHidden;
    }
    for (uint32_t k = 0; k < keys; ++k) {
      for (float& v : part.values.emplace_back(kDim)) v = normal_(rng_);
    }
    parts_.push_back(std::move(part));
  }

  // As attend_partial() leaves them: sums against the part's own maximum.
  std::vector<Partial> partials() const {
    std::vector<Partial> all;
    for (const Part& part : parts_) {
      Partial& p = all.emplace_back();
      for (const auto& scores : part.scores) {
        float top = kHidden;
        for (const float s : scores) top = std::max(top, s);
        double sum = 0.0;
        std::vector<double> out(kDim, 0.0);
        for (size_t k = 0; k < scores.size() && top != kHidden; ++k) {
          const double weight = std::exp(static_cast<double>(scores[k]) - top);
          sum += weight;
          for (uint32_t c = 0; c < kDim; ++c) out[c] += weight * part.values[k][c];
        }
        p.max.push_back(top);
        p.sum.push_back(static_cast<float>(sum));
        p.out.insert(p.out.end(), out.begin(), out.end());
      }
    }
    return all;
  }

  std::vector<double> expected(uint32_t row, const float* sink) const {
    double top = sink ? *sink : -INFINITY;
    for (const Part& part : parts_) {
      for (const float s : part.scores[row]) top = std::max<double>(top, s);
    }
    double sum = sink ? std::exp(*sink - top) : 0.0;
    std::vector<double> out(kDim, 0.0);
    for (const Part& part : parts_) {
      for (size_t k = 0; k < part.values.size(); ++k) {
        if (part.scores[row][k] == kHidden) continue;
        const double weight = std::exp(part.scores[row][k] - top);
        sum += weight;
        for (uint32_t c = 0; c < kDim; ++c) out[c] += weight * part.values[k][c];
      }
    }
    for (double& x : out) x = sum > 0.0 ? x / sum : 0.0;
    return out;
  }

 private:
  std::mt19937 rng_;
  std::normal_distribution<float> normal_;
  std::vector<Part> parts_;
};

void expect_merged(const Parts& parts, const std::vector<float>& sinks = {}, AttendParams params = {}) {
  params.head_dim = kDim;
  QueryTile tile;
  tile.queries = kQueries;
  tile.group = kGroup;
  tile.sink_logits = sinks.empty() ? nullptr : sinks.data();
  std::vector<float> out(kRows * kDim, -9.0f);
  merge(parts.partials(), tile, params, out.data());
  for (uint32_t row = 0; row < kRows; ++row) {
    const std::vector<double> want = parts.expected(row, sinks.empty() ? nullptr : &sinks[row % kGroup]);
    for (uint32_t c = 0; c < kDim; ++c) ASSERT_NEAR(out[row * kDim + c], want[c], 2e-6) << "row " << row << ", channel " << c;
  }
}

TEST(Merge, OnePartialIsDividedByItsSum) {
  Parts parts(1);
  parts.add(100, 3.0f, 2.0f);
  expect_merged(parts);
}

TEST(Merge, PartialsOfDifferentMaximaAreOneSoftmax) {
  for (const float apart : {0.0f, 1.0f, 10.0f, 40.0f}) {
    Parts parts(2);
    parts.add(64, -apart, 1.5f);
    parts.add(1, 0.0f, 1.5f);
    parts.add(200, apart, 1.5f);
    parts.add(33, 0.5f * apart, 4.0f);
    expect_merged(parts);
  }
}

// exp() of what is this far below the maximum is zero, and of the other way round infinite.
TEST(Merge, MaximaBeyondTheRangeOfExpDoNotOverflow) {
  Parts parts(3);
  parts.add(20, -3e4f, 1.0f);
  parts.add(20, 500.0f, 1.0f);
  parts.add(20, -500.0f, 1.0f);
  expect_merged(parts);
  expect_merged(parts, {501.0f, -3e4f, 3e4f});
}

TEST(Merge, PartialsThatARowSawNothingOfTakeNoPart) {
  Parts parts(4);
  parts.add(16, 0.0f, 1.0f, {0, 1, 2});
  parts.add(0, 0.0f, 1.0f);
  parts.add(16, -20.0f, 1.0f, {5});
  parts.add(16, 5.0f, 1.0f, {0, 1, 2, 3, 4, 5});
  expect_merged(parts);
  expect_merged(parts, {0.5f, -4.0f, 2.0f});
}

TEST(Merge, ARowThatSawNothingAtAllGetsZeros) {
  Parts parts(5);
  parts.add(16, 0.0f, 1.0f, {1, 4});
  parts.add(16, 0.0f, 1.0f, {1, 4});
  expect_merged(parts);
  expect_merged(parts, {0.0f, 1.0f, 2.0f});
  expect_merged(Parts(6));  // no partial
  expect_merged(Parts(6), {0.0f, 1.0f, 2.0f});
}

TEST(Merge, SinkLogitsTakeMassOnceAndGiveNothing) {
  for (const std::vector<float>& sinks : {std::vector<float>{0.0f, 3.0f, -3.0f}, {12.0f, 30.0f, -90.0f}}) {
    Parts parts(7);
    parts.add(50, 0.0f, 2.0f);
    parts.add(50, 8.0f, 2.0f);
    parts.add(50, -8.0f, 2.0f);
    expect_merged(parts, sinks);
  }
}

// Scores are capped before a partial is made: neither a maximum nor a sink's logit may be capped again.
TEST(Merge, SoftcapIsNotAppliedTwice) {
  Parts parts(8);
  parts.add(50, 2.0f, 0.5f);
  parts.add(50, -2.0f, 0.5f);
  AttendParams params;
  params.softcap = 1.0f;
  params.scale = 0.1f;
  expect_merged(parts, {}, params);
  expect_merged(parts, {4.0f, -4.0f, 0.0f}, params);
}

// --- attend_partial() and merge() over real blocks: however they are cut, the answer is that of one softmax over decoded rows.

struct Cut {
  static constexpr uint32_t kTokens = 32, kBlocks = 7;
  std::vector<std::unique_ptr<quant::Codec>> codecs;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<BlockView> views;
  std::vector<float> keys, values, queries;

  explicit Cut(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const char* names[] = {"fp16", "rot2", "kivi4-g16", "bf16"};
    bytes.reserve(2 * kBlocks);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      BlockView view;
      view.rows = kTokens;
      view.ctx.first_position = b * kTokens;
      for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
        std::vector<float> rows(kTokens * kDim);
        for (float& x : rows) x = normal(rng) * (b == 3 && side == quant::Side::key ? 6.0f : 1.0f);
        codecs.push_back(quant::make_codec(*quant::parse_codec(names[b % 4]), side, {kTokens, kDim}).value());
        const quant::Codec& codec = *codecs.back();
        bytes.emplace_back(codec.bytes());
        EXPECT_TRUE(codec.encode(rows.data(), view.ctx, bytes.back()).ok());
        codec.decode(bytes.back(), view.ctx, 0, kTokens, rows.data());
        std::vector<float>& all = side == quant::Side::key ? keys : values;
        all.insert(all.end(), rows.begin(), rows.end());
        (side == quant::Side::key ? view.key_codec : view.value_codec) = &codec;
        (side == quant::Side::key ? view.keys : view.values) = bytes.back();
      }
      views.push_back(view);
    }
    for (uint32_t i = 0; i < kRows * kDim; ++i) queries.push_back(normal(rng));
  }

  std::vector<double> expected(uint32_t row, uint32_t at, const AttendParams& p, const float* sink) const {
    std::vector<double> score(kBlocks * kTokens, -INFINITY), out(kDim, 0.0);
    double top = sink ? *sink : -INFINITY;
    for (uint32_t t = 0; t < score.size() && t <= at; ++t) {
      double s = 0.0;
      for (uint32_t c = 0; c < kDim; ++c) s += static_cast<double>(queries[row * kDim + c]) * keys[t * kDim + c];
      s *= p.scale;
      score[t] = p.softcap > 0.0f ? p.softcap * std::tanh(s / p.softcap) : s;
      top = std::max(top, score[t]);
    }
    double sum = sink ? std::exp(*sink - top) : 0.0;
    for (const double s : score) sum += std::isinf(s) ? 0.0 : std::exp(s - top);
    for (uint32_t t = 0; t < score.size(); ++t) {
      if (std::isinf(score[t])) continue;
      for (uint32_t c = 0; c < kDim; ++c) out[c] += std::exp(score[t] - top) / sum * values[t * kDim + c];
    }
    return out;
  }
};

TEST(Merge, HoweverBlocksAreCutTheAnswerIsTheSame) {
  const Cut blocks(9);
  const uint32_t positions[kQueries] = {100, Cut::kBlocks * Cut::kTokens - 1};  // the first query sees nothing of the last blocks
  const float sinks[kGroup] = {1.0f, -2.0f, 5.0f};
  const double tolerance = quant::active_kernels() ? 1e-3 : 1e-4;
  for (const float softcap : {0.0f, 2.5f}) {
    for (const float* sink : {static_cast<const float*>(nullptr), sinks}) {
      for (uint32_t run = 1; run <= Cut::kBlocks; ++run) {  // views of a partial
        AttendParams params;
        params.head_dim = kDim;
        params.scale = 0.4f;
        params.softcap = softcap;
        const QueryTile tile{blocks.queries.data(), kQueries, kGroup, positions, sink};
        std::vector<Partial> partials;
        Scratch scratch;
        for (uint32_t first = 0; first < Cut::kBlocks; first += run) {
          const auto views = std::span(blocks.views).subspan(first, std::min(run, Cut::kBlocks - first));
          attend_partial(views, tile, params, partials.emplace_back(), scratch);
        }
        std::vector<float> out(kRows * kDim, -9.0f);
        merge(partials, tile, params, out.data());
        for (uint32_t row = 0; row < kRows; ++row) {
          const auto want = blocks.expected(row, positions[row / kGroup], params, sink ? &sink[row % kGroup] : nullptr);
          for (uint32_t c = 0; c < kDim; ++c)
            ASSERT_NEAR(out[row * kDim + c], want[c], tolerance) << "runs of " << run << ", row " << row << ", softcap " << softcap;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::attn
