// AttendWork::lse: the log of every row's sum of e^score, whichever way a piece of work is cut up.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attn/cpu_backend.h"
#include "base/f16.h"
#include "quant/registry.h"

namespace tierkv::attn {
namespace {

constexpr uint32_t kDim = 48, kKvHeads = 2, kGroup = 3, kHeads = kKvHeads * kGroup;

// `rows` tokens in FP16 views of both KV heads, and queries for the newest of them.
struct Fixture {
  Fixture(uint32_t rows, uint32_t queries) : count(rows) {
    std::mt19937 rng(rows + queries);
    std::normal_distribution<float> normal;
    const auto pair = quant::parse_codec_pair("fp16").value();
    heads.resize(kKvHeads);
    stored.resize(kKvHeads);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      for (uint32_t first = 0; first < rows; first += kMaxViewRows) {
        const uint32_t n = std::min(kMaxViewRows, rows - first);
        BlockView view;
        for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
          codecs.push_back(quant::make_codec(side == quant::Side::key ? pair.key : pair.value, side, {n, kDim}).value());
          std::vector<float> block(static_cast<size_t>(n) * kDim);
          for (float& x : block) x = normal(rng);
          bytes.push_back(std::make_unique<std::vector<std::byte>>(codecs.back()->bytes()));
          EXPECT_TRUE(codecs.back()->encode(block.data(), {}, *bytes.back()).ok());
          codecs.back()->decode(*bytes.back(), {}, 0, n, block.data());
          if (side == quant::Side::key) stored[h].insert(stored[h].end(), block.begin(), block.end());
          (side == quant::Side::key ? view.key_codec : view.value_codec) = codecs.back().get();
          (side == quant::Side::key ? view.keys : view.values) = *bytes.back();
        }
        view.ctx.first_position = first;
        view.rows = n;
        heads[h].push_back(view);
      }
    }
    query.resize(static_cast<size_t>(queries) * kHeads * kDim);
    for (float& x : query) x = normal(rng);
    for (uint32_t q = 0; q < queries; ++q) positions.push_back(rows - queries + q);
    out.resize(query.size());
    lse.assign(static_cast<size_t>(queries) * kHeads, -9.0f);
    for (auto& views : heads) work.heads.emplace_back(views);
    work.queries = RowsView::f32(query.data(), queries, kHeads, kDim);
    work.positions = positions.data();
    work.out = out.data();
    work.lse = lse.data();
    work.params.head_dim = kDim;
    work.params.scale = 0.3f;
  }

  double expected(uint32_t q, uint32_t head) const {
    const float* row = query.data() + (static_cast<size_t>(q) * kHeads + head) * kDim;
    double sum = work.sink_logits ? std::exp(static_cast<double>(work.sink_logits[head])) : 0.0;
    for (uint32_t t = 0; t <= positions[q]; ++t) {
      double score = 0.0;
      for (uint32_t c = 0; c < kDim; ++c) score += static_cast<double>(row[c]) * stored[head / kGroup][t * kDim + c];
      score *= work.params.scale;
      if (work.params.softcap > 0.0f) score = work.params.softcap * std::tanh(score / work.params.softcap);
      sum += std::exp(score);
    }
    return std::log(sum);
  }

  void check() {
    cpu_backend().attend({&work, 1}, [](uint32_t n, const std::function<void(uint32_t)>& task) {
      for (uint32_t i = 0; i < n; ++i) task(i);
    });
    ASSERT_TRUE(work.status.ok());
    for (uint32_t q = 0; q < positions.size(); ++q) {
      for (uint32_t h = 0; h < kHeads; ++h)
        ASSERT_NEAR(lse[q * kHeads + h], expected(q, h), 2e-3) << "query " << q << ", head " << h << " of " << count << " rows";
    }
  }

  uint32_t count;
  std::vector<std::unique_ptr<quant::Codec>> codecs;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes;
  std::vector<std::vector<BlockView>> heads;
  std::vector<std::vector<float>> stored;
  std::vector<float> query, out, lse;
  std::vector<uint32_t> positions;
  AttendWork work;
};

// 40 queries are tiles, 1 is parts (one or several, merged), and whoever wants to know the mass changes nothing.
TEST(Lse, IsTheLogOfTheSumHoweverTheWorkIsCut) {
  for (const auto& [rows, queries] : {std::pair{700u, 40u}, {700u, 1u}, {3000u, 1u}, {3000u, 2u}, {5u, 5u}}) {
    Fixture plain(rows, queries);
    plain.check();
    Fixture observed(rows, queries);
    std::vector<float> sums(rows);
    observed.work.mass.assign(kKvHeads, {0, sums.data(), {}, rows});
    observed.check();
  }
}

TEST(Lse, CountsSinkLogitsAndSoftcap) {
  const std::vector<float> sinks = {7.0f, -3.0f, 0.0f, 12.0f, 2.0f, 5.0f};
  for (const auto& [rows, queries] : {std::pair{300u, 20u}, {3000u, 1u}}) {
    Fixture f(rows, queries);
    f.work.sink_logits = sinks.data();
    f.work.params.softcap = 1.5f;
    f.check();
  }
}

TEST(Lse, OutputsAreTheSameBitsWithAndWithoutIt) {
  for (const auto& [rows, queries] : {std::pair{700u, 40u}, {3000u, 1u}}) {
    Fixture with(rows, queries), without(rows, queries);
    without.work.lse = nullptr;
    with.check();
    cpu_backend().attend({&without.work, 1}, [](uint32_t n, const std::function<void(uint32_t)>& task) {
      for (uint32_t i = 0; i < n; ++i) task(i);
    });
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(without.lse[0], -9.0f);
  }
}

// A row that sees nothing: no key is at or before its position.
TEST(Lse, OfNothingIsMinusInfinity) {
  Fixture f(64, 1);
  f.work.params.window = 1;
  f.positions[0] = 500;
  cpu_backend().attend({&f.work, 1}, [](uint32_t n, const std::function<void(uint32_t)>& task) {
    for (uint32_t i = 0; i < n; ++i) task(i);
  });
  for (const float x : f.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace tierkv::attn
