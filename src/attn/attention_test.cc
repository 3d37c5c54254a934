#include "attn/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/isa.h"
#include "quant/registry.h"

namespace tierkv::attn {
namespace {

using quant::BlockShape;
using quant::Side;

// Blocks of one head, encoded, and the same rows decoded again for the plain computation.
struct Blocks {
  uint32_t dim;
  std::vector<std::unique_ptr<quant::Codec>> codecs;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<uint32_t>> lists;
  std::vector<BlockView> views;
  std::vector<std::vector<float>> keys, values;  // by row
  std::vector<uint32_t> positions;
  std::mt19937 rng;

  explicit Blocks(uint32_t d, unsigned seed) : dim(d), rng(seed) { lists.reserve(100); }

  // `dead` rows (by index) keep their slot and lose their position.
  void add(const char* codec, uint32_t tokens, uint32_t rows, uint32_t first, std::vector<uint32_t> dead = {},
           bool listed = false) {
    const auto pair = quant::parse_codec_pair(codec).value();
    std::normal_distribution<float> normal;
    std::vector<float> raw[2];
    BlockView view;
    view.ctx.first_position = first;
    view.rows = rows;
    if (listed || !dead.empty()) {
      std::vector<uint32_t>& list = lists.emplace_back(tokens, kDeadPosition);
      for (uint32_t t = 0; t < rows; ++t) list[t] = first + t;
      for (const uint32_t t : dead) list[t] = kDeadPosition;
      view.ctx.positions = list.data();
    }
    for (int side = 0; side < 2; ++side) {
      raw[side].resize(static_cast<size_t>(tokens) * dim);
      for (float& x : raw[side]) x = normal(rng);
      codecs.push_back(
          quant::make_codec(side ? pair.value : pair.key, side ? Side::value : Side::key, BlockShape{tokens, dim}).value());
      const quant::Codec& c = *codecs.back();
      bytes.emplace_back(c.bytes());
      ASSERT_TRUE(c.encode(raw[side].data(), view.ctx, bytes.back()).ok());
      c.decode(bytes.back(), view.ctx, 0, tokens, raw[side].data());
      (side ? view.value_codec : view.key_codec) = &c;
    }
    view.keys = bytes[bytes.size() - 2];
    view.values = bytes.back();
    views.push_back(view);
    for (uint32_t t = 0; t < rows; ++t) {
      const auto row = [&](int side) {
        return std::vector<float>(raw[side].begin() + static_cast<ptrdiff_t>(t) * dim,
                                  raw[side].begin() + static_cast<ptrdiff_t>(t + 1) * dim);
      };
      keys.push_back(row(0));
      values.push_back(row(1));
      positions.push_back(view.position(t));
    }
  }
};

struct Answer {
  std::vector<double> out;
  std::vector<double> mass;  // by row of Blocks
};

Answer plain(const Blocks& b, const float* query, uint32_t at, const AttendParams& p, const float* sink) {
  Answer a{std::vector<double>(b.dim, 0.0), std::vector<double>(b.keys.size(), 0.0)};
  double top = sink ? *sink : -INFINITY;
  std::vector<double> score(b.keys.size(), -INFINITY);
  for (size_t i = 0; i < b.keys.size(); ++i) {
    const uint64_t key = b.positions[i];
    if (key == kDeadPosition || (p.causal && key > at) || (p.window && key + p.window <= at)) continue;
    double s = 0.0;
    for (uint32_t c = 0; c < b.dim; ++c) s += static_cast<double>(query[c]) * b.keys[i][c];
    s *= p.scale;
    if (p.softcap > 0.0f) s = p.softcap * std::tanh(s / p.softcap);
    score[i] = s;
    top = std::max(top, s);
  }
  double sum = sink ? std::exp(*sink - top) : 0.0;
  for (size_t i = 0; i < score.size(); ++i) sum += a.mass[i] = std::isinf(score[i]) ? 0.0 : std::exp(score[i] - top);
  for (size_t i = 0; i < score.size(); ++i) {
    if (a.mass[i] == 0.0) continue;
    a.mass[i] /= sum;
    for (uint32_t c = 0; c < b.dim; ++c) a.out[c] += a.mass[i] * b.values[i][c];
  }
  return a;
}

class Recorder final : public MassObserver {
 public:
  Recorder(const Blocks& b, uint32_t queries) : mass(queries, std::vector<double>(b.keys.size(), 0.0)) {
    size_t at = 0;
    for (const BlockView& view : b.views) first_.push_back(at), at += view.rows;
  }
  void add(uint32_t query, uint32_t view, const float* m, uint32_t rows) override {
    EXPECT_EQ(query, ended);
    for (uint32_t t = 0; t < rows; ++t) mass[query][first_[view] + t] += m[t];
  }
  void end_query(uint32_t query) override { EXPECT_EQ(query, ended++); }

  std::vector<std::vector<double>> mass;
  uint32_t ended = 0;

 private:
  std::vector<size_t> first_;
};

void compare(const Blocks& b, uint32_t group, std::vector<uint32_t> positions, AttendParams p, bool with_sinks) {
  std::normal_distribution<float> normal;
  std::mt19937 rng(5);
  const auto queries = static_cast<uint32_t>(positions.size());
  const double tolerance = quant::active_kernels() ? 1e-3 : 1e-4;
  std::vector<float> rows(static_cast<size_t>(queries) * group * b.dim), sinks(group);
  for (float& x : rows) x = normal(rng);
  for (float& x : sinks) x = normal(rng);
  p.head_dim = b.dim;
  const QueryTile tile{rows.data(), queries, group, positions.data(), with_sinks ? sinks.data() : nullptr};
  std::vector<float> out(rows.size(), -9.0f), observed(rows.size(), -9.0f);
  Scratch scratch;
  attend(b.views, tile, p, out.data(), scratch);
  Recorder recorder(b, queries);
  attend(b.views, tile, p, observed.data(), scratch, &recorder);  // the same scratch: nothing may leak from the first call
  EXPECT_EQ(out, observed) << "an observer changes nothing";
  EXPECT_EQ(recorder.ended, queries);
  for (uint32_t q = 0; q < queries; ++q) {
    std::vector<double> mass(b.keys.size(), 0.0);
    for (uint32_t g = 0; g < group; ++g) {
      const size_t at = (static_cast<size_t>(q) * group + g) * b.dim;
      const Answer a = plain(b, rows.data() + at, positions[q], p, with_sinks ? &sinks[g] : nullptr);
      for (uint32_t c = 0; c < b.dim; ++c)
        ASSERT_NEAR(out[at + c], a.out[c], tolerance) << "query " << q << ", head " << g << ", channel " << c;
      for (size_t i = 0; i < mass.size(); ++i) mass[i] += a.mass[i];
    }
    for (size_t i = 0; i < mass.size(); ++i) ASSERT_NEAR(recorder.mass[q][i], mass[i], tolerance) << "query " << q << ", row " << i;
  }
}

TEST(Attend, MixedCodecsAndFramesAreOneSoftmax) {
  for (const uint32_t dim : {32u, 80u, 128u}) {
    Blocks b(dim, dim);
    b.add("fp16", 4, 4, 0);
    b.add("rot2", 64, 64, 4);
    b.add("rot3/kivi2-g16", 64, 40, 68);
    b.add("kivi4-g16/rot4", 32, 32, 132);
    b.add("bf16", 64, 21, 164);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (const uint32_t group : {1u, 3u, 8u}) {
      compare(b, group, {184}, {.scale = scale}, false);
      compare(b, group, {10, 11, 70, 140, 500}, {.scale = scale}, false);
      compare(b, group, {0, 184}, {.scale = scale, .causal = false}, true);
      compare(b, group, {100, 184, 190}, {.scale = 0.5f, .softcap = 3.0f}, true);
      compare(b, group, {20, 90, 184, 230}, {.scale = scale, .window = 50}, false);
      compare(b, group, {20, 90}, {.scale = scale, .causal = false, .window = 50}, true);
    }
  }
}

TEST(Attend, DeadRowsTakeNoPart) {
  Blocks b(64, 1);
  b.add("kivi8-g16", 32, 30, 0, {0, 3, 4, 17});
  b.add("fp16", 32, 32, 40, {}, true);
  b.add("fp16", 16, 16, 90, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  compare(b, 2, {5, 29, 60, 200}, {.scale = 0.125f}, false);
  compare(b, 2, {60}, {.scale = 0.125f, .causal = false, .window = 30}, false);
}

TEST(Attend, AQueryThatSeesNothingGetsZeros) {
  Blocks b(32, 2);
  b.add("fp16", 16, 16, 50);
  compare(b, 2, {3, 49, 50}, {.scale = 1.0f}, false);
  compare(b, 2, {3, 49, 50}, {.scale = 1.0f}, true);
  compare(b, 1, {500}, {.scale = 1.0f, .window = 10}, false);
  Blocks empty(32, 3);
  compare(empty, 1, {0}, {.scale = 1.0f}, false);
  compare(empty, 1, {0}, {.scale = 1.0f}, true);
}

TEST(Attend, SharpScoresDoNotOverflow) {
  Blocks b(64, 4);
  for (uint32_t i = 0; i < 6; ++i) b.add("fp16", 32, 32, i * 32);
  compare(b, 2, {191, 20}, {.scale = 60.0f}, false);
  compare(b, 2, {191, 20}, {.scale = 1e-6f}, false);
}

TEST(Attend, PositionsNearTheEndOfTheRangeDoNotWrap) {
  const uint32_t last = kDeadPosition - 1;
  Blocks b(32, 5);
  b.add("fp16", 16, 16, last - 31);
  b.add("fp16", 16, 16, last - 15);
  compare(b, 1, {last, last - 20}, {.scale = 0.2f, .window = 20}, false);
  compare(b, 1, {last}, {.scale = 0.2f, .window = 0x40000000u}, false);
}

}  // namespace
}  // namespace tierkv::attn
