// What every row of the registry promises about attention on its codes, on every instruction set this processor has.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/contract_testing.h"
#include "quant/frame.h"
#include "quant/isa.h"

namespace tierkv::quant {
namespace {

using namespace tierkv::quant::testing;

// Runs the test once for every instruction set this processor has.
class OnEveryIsa : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_active_isa(GetParam()));
    ASSERT_EQ(active_isa(), GetParam());
  }
  void TearDown() override { set_active_isa(before_); }

 private:
  const std::string_view before_ = active_isa();
};
INSTANTIATE_TEST_SUITE_P(Isa, OnEveryIsa, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

// What tolerance() promises: the scalar code always keeps to 1e-4.
double promised(const Codec& codec) { return active_kernels() ? codec.tolerance() : 1e-4; }

TEST_P(OnEveryIsa, ScoresAreDotProductsWithDecodedRows) {
  for_every_codec([](const Codec& codec) {
    if (codec.side() != Side::key) return;
    const uint32_t d = codec.shape().head_dim, tokens = codec.shape().tokens;
    const std::vector<std::byte> bytes = encode(codec, rows_for(codec));
    std::vector<float> back(static_cast<size_t>(tokens) * d);
    codec.decode(bytes, kContext, 0, tokens, back.data());
    Workspace ws;
    std::mt19937 rng(kSeed);
    std::normal_distribution<float> normal;
    for (const uint32_t count : {1u, 3u, 8u, 13u}) {
      for (const uint32_t rows : {tokens, tokens - 5, 1u}) {
        std::vector<float> q(static_cast<size_t>(count) * d);
        for (float& x : q) x = normal(rng);
        std::vector<float> rotated = q;
        to_frame(codec.frame(), rotated.data(), count, d);
        const size_t stride = tokens + 3;
        std::vector<float> out(count * stride, -7.0f);
        codec.scores(bytes, kContext, rotated.data(), count, rows, out.data(), stride, ws);
        for (uint32_t i = 0; i < count; ++i) {
          for (uint32_t t = 0; t < stride; ++t) {
            if (t >= rows) {
              ASSERT_EQ(out[i * stride + t], -7.0f) << "wrote past rows";
              continue;
            }
            double want = 0;
            for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[i * d + c]) * back[static_cast<size_t>(t) * d + c];
            ASSERT_NEAR(out[i * stride + t], want,
                        promised(codec) * norm(&q[i * d], d) * (norm(&back[static_cast<size_t>(t) * d], d) + 1e-6));
          }
        }
      }
    }
  });
}

TEST_P(OnEveryIsa, AccumulateIsTheWeightedSumOfDecodedRows) {
  for_every_codec([](const Codec& codec) {
    if (codec.side() != Side::value) return;
    const uint32_t d = codec.shape().head_dim, tokens = codec.shape().tokens;
    const std::vector<std::byte> bytes = encode(codec, rows_for(codec));
    std::vector<float> back(static_cast<size_t>(tokens) * d);
    codec.decode(bytes, kContext, 0, tokens, back.data());
    Workspace ws;
    std::mt19937 rng(kSeed);
    std::uniform_real_distribution<float> uniform;
    for (const uint32_t count : {1u, 3u, 8u, 13u}) {
      for (const uint32_t rows : {tokens, tokens - 5, 1u}) {
        const size_t stride = tokens + 3;
        std::vector<float> w(count * stride), acc(static_cast<size_t>(count) * d, 0.0f), start(static_cast<size_t>(count) * d);
        for (float& x : w) x = uniform(rng);
        for (float& x : start) x = uniform(rng);
        acc = start;
        to_frame(codec.frame(), acc.data(), count, d);  // accumulate() adds to what is there
        codec.accumulate(bytes, kContext, w.data(), stride, count, rows, acc.data(), ws);
        from_frame(codec.frame(), acc.data(), count, d);
        for (uint32_t i = 0; i < count; ++i) {
          double scale = 0;
          for (uint32_t t = 0; t < rows; ++t) scale += w[i * stride + t] * norm(&back[static_cast<size_t>(t) * d], d);
          for (uint32_t c = 0; c < d; ++c) {
            double want = start[i * d + c];
            for (uint32_t t = 0; t < rows; ++t)
              want += static_cast<double>(w[i * stride + t]) * back[static_cast<size_t>(t) * d + c];
            ASSERT_NEAR(acc[i * d + c], want, promised(codec) * (scale / std::sqrt(d) + 1));
          }
        }
      }
    }
  });
}

// What long contexts get: the error of the products stays far below that of the codes.
TEST_P(OnEveryIsa, CoarseSumsAreOffByFarLessThanTheCodes) {
  for (const char* name : {"rot2", "turbo2", "mid2"}) {
    const uint32_t d = 128, tokens = 128;
    const BlockShape shape{tokens, d};
    const std::vector<float> rows = random_rows(shape, kSeed), q = random_rows({4, d}, kSeed + 1);
    for (const Side side : {Side::key, Side::value}) {
      const auto codec = make_codec(*parse_codec(name), side, shape);
      const std::vector<std::byte> bytes = encode(**codec, rows);
      std::vector<float> back(rows.size()), factors(4 * tokens);
      (*codec)->decode(bytes, {}, 0, tokens, back.data());
      std::mt19937 rng(kSeed);
      std::normal_distribution<float> normal;
      for (float& w : factors) w = std::exp(2.0f * normal(rng));
      Workspace ws;
      ws.coarse = true;
      double products = 0, codes = 0;  // squared errors
      if (side == Side::key) {
        std::vector<float> rotated = q, out(4 * tokens);
        to_frame((*codec)->frame(), rotated.data(), 4, d);
        (*codec)->scores(bytes, {}, rotated.data(), 4, tokens, out.data(), tokens, ws);
        for (uint32_t i = 0; i < 4; ++i) {
          for (uint32_t t = 0; t < tokens; ++t) {
            double exact = 0, decoded = 0;
            for (uint32_t c = 0; c < d; ++c)
              exact += double{q[i * d + c]} * rows[t * d + c], decoded += double{q[i * d + c]} * back[t * d + c];
            products += std::pow(out[i * tokens + t] - decoded, 2), codes += std::pow(decoded - exact, 2);
          }
        }
      } else {
        std::vector<float> acc(4 * d);
        (*codec)->accumulate(bytes, {}, factors.data(), tokens, 4, tokens, acc.data(), ws);
        from_frame((*codec)->frame(), acc.data(), 4, d);
        for (uint32_t i = 0; i < 4; ++i) {
          for (uint32_t c = 0; c < d; ++c) {
            double exact = 0, decoded = 0;
            for (uint32_t t = 0; t < tokens; ++t) {
              exact += double{factors[i * tokens + t]} * rows[t * d + c],
                  decoded += double{factors[i * tokens + t]} * back[t * d + c];
            }
            products += std::pow(acc[i * d + c] - decoded, 2), codes += std::pow(decoded - exact, 2);
          }
        }
      }
      EXPECT_LT(products, 0.01 * codes) << name << (side == Side::key ? " keys" : " values");
    }
  }
}

TEST(Frames, AreOrthonormal) {
  for (uint32_t d = 32; d <= 256; d += 16) {
    std::vector<float> rows = random_rows({4, d}, kSeed), rotated = rows;
    to_frame(Frame::hadamard, rotated.data(), 4, d);
    double dot = 0, rotated_dot = 0;
    for (uint32_t c = 0; c < d; ++c) {
      dot += static_cast<double>(rows[c]) * rows[d + c];
      rotated_dot += static_cast<double>(rotated[c]) * rotated[d + c];
    }
    EXPECT_NEAR(dot, rotated_dot, 1e-5 * norm(rows.data(), d) * norm(rows.data() + d, d));
    EXPECT_GT(std::fabs(rotated[0] - rows[0]), 1e-3);
    from_frame(Frame::hadamard, rotated.data(), 4, d);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i], rotated[i], 1e-5 * norm(rows.data(), rows.size()));
    to_frame(Frame::plain, rotated.data(), 4, d);
    to_frame(Frame::block, rotated.data(), 4, d);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i], rotated[i], 1e-5 * norm(rows.data(), rows.size()));
  }
}

TEST(HalfCodecs, ReadAnyNumberOfRows) {
  // The hot tail is one codec object over a buffer longer than its block.
  for (const char* name : {"fp16", "bf16"}) {
    const uint32_t d = 64, many = 300;
    const auto small = make_codec(*parse_codec(name), Side::key, {16, d});
    std::vector<float> rows = random_rows({many, d}, kSeed);
    std::vector<std::byte> bytes(many * d * 2);
    for (uint32_t t = 0; t < many; t += 100) {
      const auto part = make_codec(*parse_codec(name), Side::key, {100, d});
      ASSERT_TRUE((*part)->encode(&rows[t * d], {}, std::span(bytes).subspan(t * d * 2, 100 * d * 2)).ok());
    }
    std::vector<float> out(many), q(rows.begin(), rows.begin() + d), back(d), acc(d);
    Workspace ws;
    (*small)->scores(bytes, {}, q.data(), 1, many, out.data(), many, ws);
    for (uint32_t t : {0u, 17u, 299u}) {
      (*small)->decode(bytes, {}, t, 1, back.data());
      double want = 0;
      for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[c]) * back[c];
      EXPECT_NEAR(out[t], want, 1e-3);
    }
    std::vector<float> w(many, 0.0f);
    w[299] = 2.0f;
    (*small)->accumulate(bytes, {}, w.data(), many, 1, many, acc.data(), ws);
    for (uint32_t c = 0; c < d; ++c) EXPECT_NEAR(acc[c], 2 * back[c], 1e-5);
  }
}

}  // namespace
}  // namespace tierkv::quant
