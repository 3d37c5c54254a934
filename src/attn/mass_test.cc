// What a backend sums up for HeadMass is the softmax mass in double precision, lane by lane, whatever path the work takes: parts of
// a head, tiles of queries, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>

#include "attn/cpu_backend.h"
#include "base/thread_pool.h"
#include "quant/registry.h"

namespace tierkv::attn {
namespace {

constexpr uint32_t kDim = 32, kKvHeads = 2, kBlock = 128;

class MassTest : public ::testing::Test {
 protected:
  // `tokens` tokens of every head, the last block shorter and, where wanted, with dead rows.
  void fill(uint32_t tokens, bool dead, uint32_t group = 3, const char* codec = "rot4") {
    group_ = group;
    const auto spec = quant::parse_codec_pair(codec).value();
    key_ = quant::make_codec(spec.key, quant::Side::key, {kBlock, kDim}).value();
    value_ = quant::make_codec(spec.value, quant::Side::value, {kBlock, kDim}).value();
    positions_.resize(kBlock);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      views_[h].clear();
      for (uint32_t first = 0; first < tokens; first += kBlock) {
        BlockView view;
        view.key_codec = key_.get(), view.value_codec = value_.get();
        view.keys = encoded(*key_), view.values = encoded(*value_);
        view.ctx.first_position = first;
        view.rows = std::min(kBlock, tokens - first);
        if (dead && first + kBlock >= tokens) {
          for (uint32_t t = 0; t < kBlock; ++t) positions_[t] = t % 3 == 1 ? kDeadPosition : first + t;
          view.ctx.positions = positions_.data();
        }
        views_[h].push_back(view);
      }
    }
    tokens_ = tokens;
  }

  // The work of the newest `queries` tokens.
  AttendWork work(uint32_t queries) {
    const uint32_t heads = kKvHeads * group_;
    queries_ = gaussian(static_cast<size_t>(queries) * heads * kDim, 2.0f);
    out_.assign(queries_.size(), 0.0f);
    at_.clear();
    for (uint32_t q = 0; q < queries; ++q) at_.push_back(tokens_ - queries + q);
    AttendWork w;
    for (uint32_t h = 0; h < kKvHeads; ++h) w.heads.emplace_back(views_[h]);
    w.queries = RowsView::f32(queries_.data(), queries, heads, kDim);
    w.positions = at_.data();
    w.out = out_.data();
    w.params.head_dim = kDim;
    w.params.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    return w;
  }

  // mass[query][row] of a KV head: all query heads of its group together.
  std::vector<std::vector<double>> reference(const AttendWork& w, uint32_t head) {
    std::vector<std::vector<double>> mass(at_.size(), std::vector<double>(rows_from(head, 0), 0.0));
    std::vector<float> keys;
    std::vector<uint32_t> at;
    for (const BlockView& view : views_[head]) {
      keys.resize(keys.size() + static_cast<size_t>(view.rows) * kDim);
      view.key_codec->decode(view.keys, view.ctx, 0, view.rows, keys.data() + at.size() * kDim);
      for (uint32_t t = 0; t < view.rows; ++t) at.push_back(view.position(t));
    }
    std::vector<double> score(at.size());
    for (size_t q = 0; q < at_.size(); ++q) {
      for (uint32_t g = 0; g < group_; ++g) {
        const uint32_t query_head = head * group_ + g;
        const float* query = queries_.data() + (q * kKvHeads * group_ + query_head) * kDim;
        double top = w.sink_logits ? w.sink_logits[query_head] : -1e300, sum = 0.0;
        for (size_t i = 0; i < at.size(); ++i) {
          const bool hidden = at[i] == kDeadPosition || at[i] > at_[q] ||
                              (w.params.window && static_cast<uint64_t>(at[i]) + w.params.window <= at_[q]);
          double s = 0.0;
          for (uint32_t c = 0; c < kDim; ++c) s += static_cast<double>(query[c]) * keys[i * kDim + c];
          s *= w.params.scale;
          if (w.params.softcap > 0.0f) s = w.params.softcap * std::tanh(s / w.params.softcap);
          score[i] = hidden ? -INFINITY : s;
          top = std::max(top, score[i]);
        }
        if (w.sink_logits) sum += std::exp(w.sink_logits[query_head] - top);
        for (double& s : score) sum += s = std::exp(s - top);
        for (size_t i = 0; i < at.size(); ++i) mass[q][i] += score[i] / sum;
      }
    }
    return mass;
  }

  void attend(AttendWork& w) {
    if (pool_) {
      cpu_backend().attend({&w, 1}, [&](uint32_t count, const std::function<void(uint32_t)>& task) { pool_->run(count, task); });
    } else {
      cpu_backend().attend({&w, 1}, [](uint32_t count, const std::function<void(uint32_t)>& task) {
        for (uint32_t i = count; i-- > 0;) task(i);  // the order of tasks must not matter
      });
    }
    ASSERT_TRUE(w.status.ok()) << w.status.to_string();
  }

  // From view `from` on; the outputs are the same with and without.
  void expect_right(AttendWork w, uint32_t from, std::span<const MassLane> lanes = {}) {
    AttendWork silent = w;
    attend(silent);
    const std::vector<float> expected_out = out_;
    std::vector<std::vector<float>> sums(kKvHeads);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      const size_t rows = rows_from(h, from);
      sums[h].assign(std::max<size_t>(lanes.size(), 1) * rows, 0.25f);  // what was there before counts for nothing
      w.mass.push_back({from, sums[h].data(), lanes, rows});
    }
    attend(w);
    EXPECT_EQ(out_, expected_out) << "whoever asks for mass gets the same attention";
    const MassLane plain[1];
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      const auto mass = reference(w, h);
      const size_t skipped = rows_from(h, 0) - rows_from(h, from);
      for (size_t l = 0; l < std::max<size_t>(lanes.size(), 1); ++l) {
        expect_lane(h, lanes.empty() ? plain[0] : lanes[l], mass, skipped, sums[h].data() + l * rows_from(h, from));
      }
    }
  }

  // One lane against the masses of single queries.
  void expect_lane(uint32_t head, const MassLane& lane, const std::vector<std::vector<double>>& mass, size_t skipped,
                   const float* sums) {
    const std::vector<uint32_t> at = positions_of(head);
    double total = 0.0;
    for (size_t i = skipped; i < at.size(); ++i) {
      double least = 0.0, most = 0.0;  // equal, but for counts of what is all but equal to the threshold
      for (size_t q = 0; q < mass.size(); ++q) {
        const double weight = lane.weight ? lane.weight[q] : 1.0, given = mass[q][i];
        if (!lane.below) {
          least += weight * given, most = least;
        } else if (at[i] <= at_[q]) {
          if (given < 0.997 * lane.below[q]) least += weight;
          if (given < 1.003 * lane.below[q]) most += weight;
        }
      }
      const double got = sums[i - skipped];
      ASSERT_GE(got, least - 2e-3 * least - 1e-6) << "head " << head << ", row " << i;
      ASSERT_LE(got, most + 2e-3 * most + 1e-6) << "head " << head << ", row " << i;
      total += got;
    }
    if (skipped < at.size() && mass.size() == 1) {
      EXPECT_GT(total, 0.01) << "there was mass to be heard of";
    }
  }

  size_t rows_from(uint32_t head, uint32_t from) const {
    size_t rows = 0;
    for (size_t v = from; v < views_[head].size(); ++v) rows += views_[head][v].rows;
    return rows;
  }

  std::unique_ptr<ThreadPool> pool_;

 private:
  std::vector<uint32_t> positions_of(uint32_t head) const {
    std::vector<uint32_t> out;
    for (const BlockView& view : views_[head])
      for (uint32_t t = 0; t < view.rows; ++t) out.push_back(view.position(t));
    return out;
  }
  std::vector<float> gaussian(size_t n, float size) {
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<float> out(n);
    for (float& x : out) x = normal(rng_);
    return out;
  }
  std::span<const std::byte> encoded(const quant::Codec& codec) {
    std::vector<std::byte>& bytes = *bytes_.emplace_back(std::make_unique<std::vector<std::byte>>(codec.bytes()));
    EXPECT_TRUE(codec.encode(gaussian(kBlock * kDim, 1.0f).data(), {}, bytes).ok());
    return bytes;
  }

  std::mt19937 rng_{7};
  uint32_t group_ = 3;
  std::unique_ptr<quant::Codec> key_, value_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<BlockView> views_[kKvHeads];
  std::vector<uint32_t> positions_, at_;
  std::vector<float> queries_, out_;
  uint32_t tokens_ = 0;
};

TEST_F(MassTest, OfOneQueryOverManyParts) {
  for (const uint32_t group : {1u, 3u, 8u}) {
    fill(3000, false, group);
    for (const uint32_t from : {0u, 5u, 8u, 20u, 23u, 24u}) expect_right(work(1), from);
  }
}

TEST_F(MassTest, OfOneQueryOverOnePart) {
  for (const char* codec : {"fp16", "rot4", "kivi2-g16"}) {
    fill(300, true, 3, codec);
    for (const uint32_t from : {0u, 1u, 2u}) expect_right(work(1), from);
  }
}

TEST_F(MassTest, OfTilesOfQueries) {
  fill(1500, true);
  for (const uint32_t queries : {17u, 40u, 700u}) {
    for (const uint32_t from : {0u, 7u, 11u}) expect_right(work(queries), from);
  }
}

TEST_F(MassTest, OfMoreTilesThanThereAreSums) {
  fill(800, false, 8);
  expect_right(work(800), 0);  // 134 tiles of six queries
}

TEST_F(MassTest, OnManyThreads) {
  pool_ = std::make_unique<ThreadPool>(4);
  fill(3000, true);
  for (const uint32_t queries : {1u, 5u, 300u}) expect_right(work(queries), 0);
}

TEST_F(MassTest, WithAWindowSinksAndACap) {
  fill(1500, false);
  const std::vector<float> sinks(kKvHeads * 3, 2.0f);
  for (const uint32_t queries : {1u, 100u}) {
    AttendWork w = work(queries);
    w.params.window = 333;
    w.params.softcap = 3.0f;
    w.sink_logits = sinks.data();
    expect_right(w, 0);
    expect_right(w, 6);
  }
}

// Views that are a part of what the queries look at: mass is taken against the sums of the whole, and values are not looked at.
TEST_F(MassTest, OfAPartOfTheWhole) {
  for (const bool threads : {false, true}) {
    pool_ = threads ? std::make_unique<ThreadPool>(3) : nullptr;
    for (const auto& [tokens, queries, from] : {std::tuple{3000u, 1u, 7u}, {3000u, 1u, 22u}, {2500u, 4u, 3u}, {900u, 60u, 4u}}) {
      fill(tokens, true);
      AttendWork w = work(queries);
      const std::vector<float> sinks(kKvHeads * 3, 1.0f);
      w.sink_logits = sinks.data();
      std::vector<float> lse(static_cast<size_t>(queries) * kKvHeads * 3);
      w.lse = lse.data();
      attend(w);
      AttendWork part = w;
      part.out = nullptr, part.lse = nullptr, part.sink_logits = nullptr;
      part.whole = lse.data();
      part.params.weigh_only = true;
      std::vector<std::vector<float>> sums;
      for (uint32_t h = 0; h < kKvHeads; ++h) {
        part.heads[h] = w.heads[h].subspan(from);
        sums.emplace_back(rows_from(h, from), 0.25f);
        part.mass.push_back({0, sums[h].data(), {}, sums[h].size()});
      }
      attend(part);
      for (uint32_t h = 0; h < kKvHeads; ++h)
        expect_lane(h, MassLane(), reference(w, h), rows_from(h, 0) - rows_from(h, from), sums[h].data());
    }
  }
}

// Lanes of one call: all queries alike, the newest alone, fading, and how often a row got little.
TEST_F(MassTest, ByLanes) {
  for (const bool threads : {false, true}) {
    pool_ = threads ? std::make_unique<ThreadPool>(3) : nullptr;
    for (const auto& [tokens, queries] : {std::pair{300u, 1u}, {3000u, 1u}, {2500u, 5u}, {700u, 40u}, {600u, 600u}}) {
      fill(tokens, true);
      std::vector<float> last(queries, 0.0f), fading(queries), below(queries), habit(queries, 0.5f);
      last.back() = 1.0f;
      for (uint32_t q = 0; q < queries; ++q) {
        fading[q] = std::pow(0.3f, static_cast<float>(queries - 1 - q));
        below[q] = 3.0f / static_cast<float>(tokens - queries + q + 1);
      }
      const MassLane lanes[] = {{}, {last.data(), nullptr}, {fading.data(), nullptr}, {habit.data(), below.data()}};
      for (const uint32_t from : {0u, 2u}) expect_right(work(queries), from, lanes);
      expect_right(work(queries), 0, {lanes + 1, 1});  // most tiles have nothing to say
    }
  }
}

}  // namespace
}  // namespace tierkv::attn
