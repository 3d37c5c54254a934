#include "solve/kvquant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "calib/synthetic_statistics.h"

namespace tierkv::solve {

using namespace calib;

namespace {

constexpr SyntheticShape kSmall{2, 4, 2, 32, 512, 5, true};

const Statistics& statistics() {
  static const Statistics s = SyntheticModel(kSmall).statistics();
  return s;
}

const KvquantTables& tables() {
  static const KvquantTables t = solve_kvquant(statistics(), nullptr).value();
  return t;
}

float laplacian(std::mt19937& rng) {
  std::exponential_distribution<float> size(1.0f);
  return (rng() & 1u) != 0 ? size(rng) : -size(rng);
}

// One head's keys of the sample before RoPE.
std::vector<float> plain_keys(const Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim;
  const Turner turner(s.ropes[layer], d);
  std::vector<float> rows(static_cast<size_t>(s.sampled()) * d);
  for (uint32_t i = 0; i < s.sampled(); ++i) {
    float* row = rows.data() + static_cast<size_t>(i) * d;
    for (uint32_t c = 0; c < d; ++c)
      row[c] = f16_to_f32(s.layers[layer].keys[(static_cast<size_t>(i) * s.model.kv_heads + head) * d + c]);
    turner.turn(row, 1, -static_cast<int64_t>(s.positions[i]), row);
  }
  return rows;
}

TEST(Kvquant, RangesLeaveOutOnePercentOfEachChannel) {
  const Statistics& s = statistics();
  const uint32_t d = s.model.head_dim;
  const std::vector<float> rows = plain_keys(s, 1, 1);
  const KvquantHead& head = tables().head(1, 1);
  for (uint32_t c = 0; c < d; ++c) {
    uint32_t below = 0, above = 0;
    for (uint32_t i = 0; i < s.sampled(); ++i) {
      below += rows[i * d + c] < head.low[c] ? 1u : 0u;
      above += rows[i * d + c] > head.high[c] ? 1u : 0u;
    }
    EXPECT_EQ(below, s.sampled() / 200) << "channel " << c;
    EXPECT_EQ(above, s.sampled() / 200) << "channel " << c;
  }
}

TEST(Kvquant, RangesAreThoseBeforeRope) {
  // The same keys further along the text: after RoPE they are others, before it they are the same.
  Statistics far = statistics();
  const uint32_t d = far.model.head_dim, heads = far.model.kv_heads;
  const Turner turner(far.ropes[0], d);
  for (LayerSample& sample : far.layers) {
    std::vector<float> rows(sample.keys.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = f16_to_f32(sample.keys[i]);
    turner.turn(rows.data(), far.sampled() * heads, 3001, rows.data());
    for (size_t i = 0; i < rows.size(); ++i) sample.keys[i] = f32_to_f16(rows[i]);
  }
  for (uint32_t& position : far.positions) position += 3001;
  const KvquantTables other = solve_kvquant(far, nullptr).value();
  for (size_t h = 0; h < other.heads.size(); ++h) {
    for (uint32_t c = 0; c < d; ++c) {
      EXPECT_NEAR(other.heads[h].low[c], tables().heads[h].low[c], 0.02);
      EXPECT_NEAR(other.heads[h].high[c], tables().heads[h].high[c], 0.02);
    }
  }
}

// Sample values by a rule of their number.
template <class Fn>
Statistics with_values(Fn&& fn) {
  Statistics s = statistics();
  for (LayerSample& sample : s.layers) {
    for (size_t i = 0; i < sample.values.size(); ++i) sample.values[i] = f32_to_f16(fn(i));
  }
  return s;
}

TEST(Kvquant, CodebooksBeatAUniformGridOnLaplacianValues) {
  std::mt19937 rng(11);
  const Statistics s = with_values([&](size_t) { return laplacian(rng); });
  const KvquantTables t = solve_kvquant(s, nullptr).value();
  const uint32_t d = 32, tokens = 128;
  std::vector<float> rows(tokens * d);
  for (float& x : rows) x = laplacian(rng);
  std::vector<uint8_t> taken(rows.size(), 0);
  pick_value_outliers(rows.data(), tokens, d, kvquant_outliers(tokens, d), taken.data());
  for (const uint32_t bits : {3u, 4u}) {  // at 2 bits variance is kept instead
    const KvquantCodebook& book = t.codebook(0, KvquantTensor::values, bits);
    double learnt = 0, uniform = 0;
    for (uint32_t r = 0; r < tokens; ++r) {
      float low = 1e9f, high = -1e9f;
      for (uint32_t c = 0; c < d; ++c) {
        if (!taken[r * d + c]) low = std::min(low, rows[r * d + c]), high = std::max(high, rows[r * d + c]);
      }
      for (uint32_t c = 0; c < d; ++c) {
        if (taken[r * d + c]) continue;
        const float half = 0.5f * (high - low), x = (rows[r * d + c] - low) / half - 1.0f,
                    top = static_cast<float>((1u << bits) - 1);
        learnt += std::pow(half * (book.levels[book.code(x)] - x), 2);
        uniform += std::pow(half * (std::round((x + 1) / 2 * top) / top * 2 - 1 - x), 2);
      }
    }
    EXPECT_LT(learnt, (bits == 3 ? 0.85 : 0.9) * uniform) << bits << " bits";
  }
}

TEST(Kvquant, CodebooksServeTheChannelsThatMatter) {
  std::mt19937 rng(12);
  std::uniform_real_distribution<float> flat(-1.0f, 1.0f);
  Statistics s = with_values([&](size_t i) { return i % 2 == 0 ? flat(rng) : 0.2f * laplacian(rng); });
  const auto widest_gap = [&](uint32_t looked_at) {  // outermost against the one in the middle
    for (PairSums& sums : s.pairs) {
      sums.value.assign(32 * 32, 0.0);
      for (uint32_t c = looked_at; c < 32; c += 2) sums.value[c * 32 + c] = 1.0;
    }
    const KvquantTables t = solve_kvquant(s, nullptr).value();
    const std::vector<float>& levels = t.codebook(0, KvquantTensor::values, 3).levels;
    return (levels[7] - levels[6]) / (levels[4] - levels[3]);
  };
  EXPECT_NEAR(widest_gap(0), 1.0, 0.3);
  EXPECT_GT(widest_gap(1), 1.5);
}

TEST(Kvquant, TwoBitLevelsKeepMeanAndVariance) {
  Statistics s = statistics();
  for (PairSums& sums : s.pairs) sums = {};  // all channels alike
  const KvquantTables t = solve_kvquant(s, nullptr).value();
  const KvquantCodebook& book = t.codebook(0, KvquantTensor::keys, 2);
  double weight = 0, in = 0, in2 = 0, out = 0, out2 = 0;
  for (uint32_t h = 0; h < 2; ++h) {
    const std::vector<float> rows = plain_keys(s, 0, h);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double low = t.head(0, h).low[i % 32], half = 0.5 * (t.head(0, h).high[i % 32] - low), x = (rows[i] - low) / half - 1.0,
                   w = half * half;
      if (std::fabs(x) > 1.0) continue;
      const double y = book.levels[book.code(static_cast<float>(x))];
      weight += w, in += w * x, in2 += w * x * x, out += w * y, out2 += w * y * y;
    }
  }
  in /= weight, out /= weight;
  EXPECT_NEAR(out, in, 0.01);
  EXPECT_NEAR((out2 / weight - out * out) / (in2 / weight - in * in), 1.0, 0.01);
}

TEST(Kvquant, OutliersAreTheFarValuesAndExactlyAsManyAsAsked) {
  const uint32_t d = 32, tokens = 16;
  std::mt19937 rng(13);
  std::uniform_real_distribution<float> flat(-1.0f, 1.0f);
  std::vector<float> rows(tokens * d);
  for (float& x : rows) x = flat(rng);
  rows[3 * d + 7] = 9.0f, rows[3 * d + 8] = 8.9f, rows[3 * d + 9] = 8.8f;  // worth little one at a time
  rows[5 * d + 1] = -4.0f;
  for (const uint32_t budget : {4u, 5u, 20u, 128u}) {
    std::vector<uint8_t> taken(rows.size(), 0);
    pick_value_outliers(rows.data(), tokens, d, budget, taken.data());
    EXPECT_EQ(static_cast<uint32_t>(std::count(taken.begin(), taken.end(), 1)), budget);
    for (const uint32_t i : {3 * d + 7, 3 * d + 8, 3 * d + 9, 5 * d + 1}) EXPECT_TRUE(taken[i]) << "budget " << budget;
  }
  // Nothing stands out: still as many as asked, none twice.
  std::vector<float> flat_rows(rows.size(), 2.5f);
  std::vector<uint8_t> taken(rows.size(), 0);
  pick_value_outliers(flat_rows.data(), tokens, d, 5, taken.data());
  EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), 5);
}

std::vector<std::byte> written(const KvquantTables& t) {
  ByteWriter out;
  t.write(out);
  return out.bytes();
}

Result<KvquantTables> read(std::span<const std::byte> bytes, const ModelId& model) {
  ByteReader in(bytes);
  return KvquantTables::read(in, model);
}

TEST(Kvquant, TablesComeBackFromTheirBytes) {
  const std::vector<std::byte> bytes = written(tables());
  const auto back = read(bytes, statistics().model);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(written(*back), bytes);
  EXPECT_EQ(back->head(1, 0).high, tables().head(1, 0).high);
}

TEST(Kvquant, DamagedTablesAreRefused) {
  const std::vector<std::byte> bytes = written(tables());
  for (size_t size = 0; size < bytes.size(); size += 61) {
    EXPECT_FALSE(read(std::span(bytes).first(size), statistics().model).ok()) << "cut to " << size;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf}) {
    KvquantTables t = tables();
    t.heads[1].low[3] = bad;
    EXPECT_FALSE(read(written(t), statistics().model).ok());
    t = tables();
    t.heads[2].weight[0] = bad;
    EXPECT_FALSE(read(written(t), statistics().model).ok());
    t = tables();
    t.codebooks[4].levels[2] = bad;
    EXPECT_FALSE(read(written(t), statistics().model).ok());
    t = tables();
    t.codebooks[5].edges[1] = bad;
    EXPECT_FALSE(read(written(t), statistics().model).ok());
  }
  KvquantTables t = tables();
  std::swap(t.heads[0].low, t.heads[0].high);
  EXPECT_FALSE(read(written(t), statistics().model).ok());
  t = tables();
  std::swap(t.codebooks[0].levels[0], t.codebooks[0].levels[1]);
  EXPECT_FALSE(read(written(t), statistics().model).ok());
  ModelId other = statistics().model;
  other.head_dim = 64;
  EXPECT_EQ(read(bytes, other).status().code(), StatusCode::invalid_argument);
}

TEST(Kvquant, StatisticsThatSayNothingAreRefused) {
  const auto refused = [](auto&& spoil) {
    Statistics s = statistics();
    spoil(s);
    const auto solved = solve_kvquant(s, nullptr);
    EXPECT_EQ(solved.status().code(), StatusCode::invalid_argument);
  };
  refused([](Statistics& s) { s.layers[1].keys[77] = 0x7E00; });   // NaN
  refused([](Statistics& s) { s.layers[0].values[9] = 0xFC00; });  // -infinity
  refused([](Statistics& s) { s.pairs[3].key_plain[0] = std::nan(""); });
  refused([](Statistics& s) { s.pairs[0].value[33] = -1.0; });
  refused([](Statistics& s) { s.pairs.pop_back(); });
  refused([](Statistics& s) { s.layers[1].keys.pop_back(); });
  refused([](Statistics& s) { s.ropes.clear(); });
  refused([](Statistics& s) { s.positions.resize(100); });
}

TEST(Kvquant, ALayerWithoutPairsStillHasTables) {
  Statistics s = statistics();
  for (uint32_t h = 0; h < 2; ++h) s.pairs[h] = {};
  const auto t = solve_kvquant(s, nullptr);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->head(0, 0).low, tables().head(0, 0).low);
  EXPECT_LT(t->codebook(0, KvquantTensor::keys, 4).levels.front(), t->codebook(0, KvquantTensor::keys, 4).levels.back());
}

}  // namespace
}  // namespace tierkv::solve
