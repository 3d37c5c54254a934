// What a backend sums up for HeadMass is what observers hear, whatever path the work takes: parts of a head, tiles of queries.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attn/cpu_backend.h"
#include "quant/registry.h"

namespace tierkv::attn {
namespace {

constexpr uint32_t kDim = 32, kKvHeads = 2, kGroup = 3, kBlock = 128;

// Sums up what it hears, view by view.
class Listener final : public MassObserver {
 public:
  explicit Listener(std::span<const BlockView> views) {
    for (const BlockView& view : views) mass.emplace_back(view.rows, 0.0);
  }
  void add(uint32_t, uint32_t view, const float* given, uint32_t rows) override {
    for (uint32_t t = 0; t < rows; ++t) mass[view][t] += given[t];
  }
  void end_query(uint32_t) override {}
  std::vector<std::vector<double>> mass;
};

class MassTest : public ::testing::Test {
 protected:
  // `tokens` tokens of every head, the last block shorter and, where wanted, with dead rows.
  void fill(uint32_t tokens, bool dead) {
    const quant::CodecSpec spec = *quant::parse_codec("rot4");
    key_ = quant::make_codec(spec, quant::Side::key, {kBlock, kDim}).value();
    value_ = quant::make_codec(spec, quant::Side::value, {kBlock, kDim}).value();
    positions_.resize(kBlock);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
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
    const uint32_t heads = kKvHeads * kGroup;
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

  void attend(AttendWork& w) {
    const Executor one_by_one = [](uint32_t count, const std::function<void(uint32_t)>& task) {
      for (uint32_t i = count; i-- > 0;) task(i);  // the order of tasks must not matter
    };
    cpu_backend().attend({&w, 1}, one_by_one);
    ASSERT_TRUE(w.status.ok()) << w.status.to_string();
  }

  // From view `from` on, and the outputs are the same with and without.
  void expect_same(AttendWork w, uint32_t from) {
    std::vector<Listener> listeners;
    for (uint32_t h = 0; h < kKvHeads; ++h) listeners.emplace_back(views_[h]);
    AttendWork heard = w, silent = w;
    for (Listener& listener : listeners) heard.observers.push_back(&listener);
    attend(heard);
    attend(silent);
    const std::vector<float> expected_out = out_;
    std::vector<std::vector<float>> sums(kKvHeads);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      size_t rows = 0;
      for (uint32_t v = from; v < views_[h].size(); ++v) rows += views_[h][v].rows;
      sums[h].assign(rows, 0.25f);
      w.mass.push_back({from, sums[h].data()});
    }
    attend(w);
    EXPECT_EQ(out_, expected_out) << "whoever asks for mass gets the same attention";
    double total = 0.0;
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      size_t at = 0;
      for (uint32_t v = from; v < views_[h].size(); ++v) {
        for (uint32_t t = 0; t < views_[h][v].rows; ++t, ++at) {
          const double want = 0.25 + listeners[h].mass[v][t];
          ASSERT_NEAR(sums[h][at], want, 2e-3 * want) << "head " << h << ", view " << v << ", row " << t;
          total += sums[h][at] - 0.25;
        }
      }
    }
    EXPECT_GT(total, from < views_[0].size() ? 0.01 : -1.0) << "there was mass to be heard of";
  }

 private:
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
  std::unique_ptr<quant::Codec> key_, value_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<BlockView> views_[kKvHeads];
  std::vector<uint32_t> positions_, at_;
  std::vector<float> queries_, out_;
  uint32_t tokens_ = 0;
};

TEST_F(MassTest, OfOneQueryOverManyParts) {
  fill(3000, false);
  for (const uint32_t from : {0u, 5u, 8u, 20u, 23u, 24u}) expect_same(work(1), from);
}

TEST_F(MassTest, OfOneQueryOverOnePart) {
  fill(300, true);
  for (const uint32_t from : {0u, 1u, 2u}) expect_same(work(1), from);
}

TEST_F(MassTest, OfTilesOfQueries) {
  fill(1500, true);
  for (const uint32_t queries : {17u, 40u, 700u}) {
    for (const uint32_t from : {0u, 7u, 11u}) expect_same(work(queries), from);
  }
}

TEST_F(MassTest, WithAWindowSinksAndACap) {
  fill(1500, false);
  const std::vector<float> sinks(kKvHeads * kGroup, 2.0f);
  for (const uint32_t queries : {1u, 100u}) {
    AttendWork w = work(queries);
    w.params.window = 333;
    w.params.softcap = 3.0f;
    w.sink_logits = sinks.data();
    expect_same(w, 6);
  }
}

}  // namespace
}  // namespace tierkv::attn
