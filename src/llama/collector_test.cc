// Tests of the collector on made-up attention: its sums are those of the formulas, written out in double.
#include "llama/collector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/f16.h"

namespace tierkv::llama {
namespace {

constexpr uint32_t kDim = 32, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads, kLayers = 3;
constexpr float kScale = 0.3f;

ModelShape made_up_shape() {
  ModelShape shape;
  shape.layers = kLayers;
  shape.heads = kHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kDim;
  shape.window = {0, 50, 20};  // the last never reaches the archive
  shape.ropes.resize(kLayers);
  for (uint16_t p = 0; p < kDim / 2; ++p) {
    shape.ropes[0].push_back({p, static_cast<uint16_t>(p + kDim / 2), std::pow(50.0, -p / 16.0)});
  }
  return shape;
}

// One window of one layer, and its attention in double.
struct Text {
  Text(uint32_t tokens, uint32_t layer_window, float softcap_, const std::vector<float>& sinks_, uint32_t seed)
      : n(tokens), window(layer_window), softcap(softcap_), sinks(sinks_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(n * kHeads * kDim);
    k.resize(n * kKvHeads * kDim);
    v.resize(k.size());
    squares.resize(n);
    for (float& x : q) x = normal(random);
    for (uint16_t& x : k) x = f32_to_f16(normal(random));
    for (uint16_t& x : v) x = f32_to_f16(normal(random));
    for (float& x : squares) x = 5.0f + std::fabs(normal(random));
    out.resize(q.size());
    for (uint32_t t = 0; t < n; ++t) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const std::vector<double> p = probabilities(t, h);
        for (uint32_t c = 0; c < kDim; ++c) {
          double sum = 0.0;
          for (uint32_t s = 0; s <= t; ++s) sum += p[s] * value(s, h / kGroup, c);
          out[(t * kHeads + h) * kDim + c] = static_cast<float>(sum);
        }
      }
    }
  }

  double key(uint32_t s, uint32_t h, uint32_t c) const { return f16_to_f32(k[(s * kKvHeads + h) * kDim + c]); }
  double value(uint32_t s, uint32_t h, uint32_t c) const { return f16_to_f32(v[(s * kKvHeads + h) * kDim + c]); }
  const float* query(uint32_t t, uint32_t h) const { return q.data() + (t * kHeads + h) * kDim; }

  std::vector<double> probabilities(uint32_t t, uint32_t h) const {
    std::vector<double> p(t + 1, 0.0);
    double sum = sinks.empty() ? 0.0 : std::exp(sinks[h]);
    for (uint32_t s = window != 0 && t + 1 > window ? t + 1 - window : 0; s <= t; ++s) {
      double score = 0.0;
      for (uint32_t c = 0; c < kDim; ++c) score += key(s, h / kGroup, c) * query(t, h)[c];
      score *= kScale;
      if (softcap > 0.0f) score = softcap * std::tanh(score / softcap);
      sum += p[s] = std::exp(score);
    }
    for (double& x : p) x /= sum;
    return p;
  }

  uint32_t n, window;
  float softcap;
  std::vector<float> sinks, q, out, squares;
  std::vector<uint16_t> k, v;
};

std::vector<double> turned(const calib::Rope& pairs, const float* q, double by) {
  std::vector<double> row(q, q + kDim);
  for (const calib::RopePair& pair : pairs) {
    const double a = row[pair.a], b = row[pair.b], c = std::cos(by * pair.angle), s = std::sin(by * pair.angle);
    row[pair.a] = a * c - b * s;
    row[pair.b] = a * s + b * c;
  }
  return row;
}

void add_product(std::vector<double>& matrix, double w, const std::vector<double>& row) {
  for (uint32_t i = 0; i < kDim; ++i) {
    for (uint32_t j = 0; j < kDim; ++j) matrix[i * kDim + j] += w * row[i] * row[j];
  }
}

double trace(const std::vector<double>& matrix) {
  double sum = 0.0;
  for (uint32_t i = 0; i < kDim; ++i) sum += matrix[i * kDim + i];
  return sum;
}

void expect_near(const std::vector<double>& ours, const std::vector<double>& truth, const char* what) {
  double worst = 0.0, size = 0.0;
  ASSERT_EQ(ours.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    worst = std::max(worst, std::fabs(ours[i] - truth[i]));
    size = std::max(size, std::fabs(truth[i]));
  }
  EXPECT_GT(size, 0.0) << what;
  EXPECT_LT(worst, 1e-4 * size) << what;
}

class CollectorTest : public testing::Test {
 protected:
  CollectorTest() {
    options_.block = 16;
    options_.sinks = 3;
    options_.distance = 24;
    options_.sample_tokens = 40;
    options_.query_stride = 1;
    std::mt19937 random(99);
    std::normal_distribution<float> normal;
    for (uint32_t i = 0; i < kLayers; ++i) {
      std::vector<float>& gram = weights_.emplace_back().gram;
      gram.resize(kHeads * kDim * kDim);
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t r = 0; r < 40; ++r) {
          float row[kDim];
          for (float& x : row) x = 0.2f * normal(random);
          for (uint32_t a = 0; a < kDim * kDim; ++a) gram[h * kDim * kDim + a] += row[a / kDim] * row[a % kDim];
        }
      }
      for (uint32_t w = 0; w < 2; ++w) {
        texts_.emplace_back(w == 0 ? 96 : 81, shape_.window[i], i == 1 ? 2.0f : 0.0f,
                            i == 0 ? std::vector<float>{0.5f, 1.0f, -1.0f, 2.0f} : std::vector<float>(), 10 * i + w + 1);
      }
    }
  }
  const Text& text(uint32_t layer, uint32_t window) const { return texts_[layer * 2 + window]; }

  Result<calib::Statistics> collect(uint32_t threads, uint32_t chunk) {
    ThreadPool pool(threads);
    Collector collector(shape_, {96, 81}, options_, weights_, pool);
    for (uint32_t w = 0; w < 2; ++w) {
      collector.begin_window();
      for (uint32_t at = 0; at < text(0, w).n; at += chunk) {
        const uint32_t count = std::min(chunk, text(0, w).n - at);
        for (uint32_t i = 0; i < kLayers; ++i) {
          const Text& of = text(i, w);
          collector.residual(i, at, std::span(of.squares).subspan(at, count));
          AttentionSeen seen;
          seen.layer = i;
          seen.position = at;
          seen.queries = RowsView::f32(of.query(at, 0), count, kHeads, kDim);
          seen.keys = RowsView::dense(of.k.data() + at * kKvHeads * kDim, DType::f16, count, kKvHeads, kDim);
          seen.values = RowsView::dense(of.v.data() + at * kKvHeads * kDim, DType::f16, count, kKvHeads, kDim);
          seen.out = of.out.data() + at * kHeads * kDim;
          seen.scale = kScale;
          seen.softcap = of.softcap;
          seen.sink_logits = of.sinks.empty() ? nullptr : of.sinks.data();
          collector.observe(seen);
        }
      }
      if (Status status = collector.end_window(); !status.ok()) return status;
    }
    pairs_ = collector.pairs();
    return collector.finish();
  }

  // |W_O(v_s - o_t)|²
  double moved(const Text& of, uint32_t layer, uint32_t t, uint32_t s, uint32_t h) const {
    double sum = 0.0;
    for (uint32_t a = 0; a < kDim; ++a) {
      for (uint32_t b = 0; b < kDim; ++b) {
        const auto difference = [&](uint32_t c) { return of.value(s, h / kGroup, c) - of.out[(t * kHeads + h) * kDim + c]; };
        sum += weights_[layer].gram[(h * kDim + a) * kDim + b] * difference(a) * difference(b);
      }
    }
    return sum;
  }

  ModelShape shape_ = made_up_shape();
  CollectorOptions options_;
  std::vector<OutputWeights> weights_;
  std::vector<Text> texts_;
  uint64_t pairs_ = 0;
};

TEST_F(CollectorTest, SumsAreThoseOfTheFormulas) {
  options_.block = 1;  // every block is one key, which leaves key_plain nothing to draw
  const auto plain = collect(2, 17);
  options_.block = 16;
  const auto statistics = collect(2, 17);
  ASSERT_TRUE(statistics.ok() && plain.ok()) << statistics.status().to_string();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t kv = 0; kv < kKvHeads; ++kv) {
      std::vector<double> block(kDim * kDim), single(kDim * kDim), value(kDim * kDim), queries(kDim * kDim);
      std::vector<double> weight(statistics->sampled(), 0.0), influence(statistics->sampled(), 0.0);
      uint64_t count = 0;
      uint32_t second = 1;  // the first sampled token of the second window
      while (statistics->positions[second] > statistics->positions[second - 1]) ++second;
      for (uint32_t w = 0; w < 2; ++w) {
        const Text& of = text(layer, w);
        for (uint32_t t = options_.sinks + options_.distance; t < of.n; ++t) {
          for (uint32_t h = kv * kGroup; h < (kv + 1) * kGroup; ++h) {
            const std::vector<double> p = of.probabilities(t, h);
            add_product(queries, 1.0, std::vector<double>(of.query(t, h), of.query(t, h) + kDim));
            ++count;
            for (uint32_t s = options_.sinks; s + options_.distance <= t; ++s) {
              if (p[s] == 0.0) continue;
              const double residual = of.squares[t], errors = p[s] * p[s] * moved(of, layer, t, s, h) / residual * kScale * kScale;
              add_product(block, errors,
                          turned(shape_.ropes[layer], of.query(t, h), -static_cast<double>(calib::block_start(s, 3, 16))));
              add_product(single, errors, turned(shape_.ropes[layer], of.query(t, h), -static_cast<double>(s)));
              for (uint32_t a = 0; a < kDim * kDim; ++a)
                value[a] += p[s] * p[s] / residual * weights_[layer].gram[h * kDim * kDim + a];
              for (uint32_t i = 0; i < statistics->sampled(); ++i) {
                if (statistics->positions[i] != s || (i >= second) != (w == 1)) continue;
                weight[i] += p[s] * p[s];
                for (uint32_t c = 0; c < kDim; ++c) influence[i] += errors * of.query(t, h)[c] * of.query(t, h)[c];
              }
            }
          }
        }
      }
      const calib::PairSums& sums = statistics->pair_sums(layer, kv);
      expect_near(sums.key_block, block, "key_block");
      expect_near(plain->pair_sums(layer, kv).key_plain, single, "key_plain");
      expect_near(plain->pair_sums(layer, kv).key_block, single, "key_block of single keys");
      expect_near(sums.value, value, "value");
      expect_near(sums.queries, queries, "queries");
      EXPECT_EQ(sums.query_count, count);
      EXPECT_NEAR(trace(sums.key_plain), trace(block), 1e-4 * trace(block));  // turning keeps lengths
      std::vector<double> our_weight, our_influence;
      for (uint32_t i = 0; i < statistics->sampled(); ++i) {
        our_weight.push_back(statistics->layers[layer].weight[i * kKvHeads + kv]);
        our_influence.push_back(statistics->layers[layer].influence[i * kKvHeads + kv]);
      }
      expect_near(our_weight, weight, "weight");
      expect_near(our_influence, influence, "influence");
    }
  }
}

TEST_F(CollectorTest, TheSampleIsTheSameTokensEverywhere) {
  const auto statistics = collect(1, 40);
  ASSERT_TRUE(statistics.ok()) << statistics.status().to_string();
  EXPECT_EQ(statistics->sampled(), 40u);
  EXPECT_EQ(statistics->tokens, 96u + 81u);
  uint32_t window = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    const uint32_t position = statistics->positions[i];
    if (i > 0 && position < statistics->positions[i - 1]) ++window;
    EXPECT_GE(position, options_.sinks);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const Text& of = text(layer, window);
      for (uint32_t c = 0; c < kKvHeads * kDim; ++c) {
        ASSERT_EQ(statistics->layers[layer].keys[i * kKvHeads * kDim + c], of.k[position * kKvHeads * kDim + c]);
        ASSERT_EQ(statistics->layers[layer].values[i * kKvHeads * kDim + c], of.v[position * kKvHeads * kDim + c]);
      }
    }
  }
  EXPECT_EQ(window, 1u);
}

TEST_F(CollectorTest, LayersThatNeverReachTheArchiveStayZero) {
  const auto statistics = collect(2, 32);
  ASSERT_TRUE(statistics.ok());
  for (uint32_t kv = 0; kv < kKvHeads; ++kv) {
    const calib::PairSums& sums = statistics->pair_sums(2, kv);
    EXPECT_EQ(trace(sums.key_block) + trace(sums.key_plain) + trace(sums.value), 0.0);
    EXPECT_EQ(sums.query_count, 0u);
  }
}

TEST_F(CollectorTest, ThreadsDoNotChangeABit) {
  options_.query_stride = 3;
  const auto one = collect(1, 48);
  const auto three = collect(3, 48);
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_GT(pairs_, 0u);
  for (size_t i = 0; i < one->pairs.size(); ++i) {
    EXPECT_EQ(one->pairs[i].key_block, three->pairs[i].key_block);
    EXPECT_EQ(one->pairs[i].key_plain, three->pairs[i].key_plain);
    EXPECT_EQ(one->pairs[i].value, three->pairs[i].value);
    EXPECT_EQ(one->pairs[i].queries, three->pairs[i].queries);
  }
  for (size_t i = 0; i < one->layers.size(); ++i) {
    EXPECT_EQ(one->layers[i].weight, three->layers[i].weight);
    EXPECT_EQ(one->layers[i].influence, three->layers[i].influence);
  }
}

TEST_F(CollectorTest, EveryNthQueryStandsForNOfThem) {
  const auto all = collect(2, 48);
  options_.query_stride = 2;
  const auto some = collect(2, 48);
  ASSERT_TRUE(all.ok() && some.ok());
  EXPECT_NEAR(trace(some->pair_sums(0, 0).key_block) / trace(all->pair_sums(0, 0).key_block), 1.0, 0.3);
  EXPECT_NEAR(trace(some->pair_sums(0, 1).value) / trace(all->pair_sums(0, 1).value), 1.0, 0.3);
}

TEST_F(CollectorTest, WithoutWeightsTheIdentityServes) {
  weights_.clear();
  const auto statistics = collect(2, 48);
  ASSERT_TRUE(statistics.ok());
  const std::vector<double>& value = statistics->pair_sums(0, 0).value;
  EXPECT_GT(value[0], 0.0);
  EXPECT_EQ(value[1], 0.0);
  EXPECT_EQ(value[0], value[kDim + 1]);
  EXPECT_GT(trace(statistics->pair_sums(0, 0).key_block), 0.0);
}

TEST_F(CollectorTest, NamesTheLayerThatIsNotFinite) {
  texts_[2].q[50 * kHeads * kDim] = NAN;  // layer 1, first window
  const Status status = collect(1, 48).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("layer 1"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tierkv::llama
