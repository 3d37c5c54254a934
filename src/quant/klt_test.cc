#include "quant/klt.h"

#include <gtest/gtest.h>

#include <cmath>

#include "quant/isa.h"
#include "quant/registry.h"
#include "solve/testing.h"

namespace tierkv::quant {
namespace {

using calib::SyntheticModel;
using calib::SyntheticShape;

struct Made {
  SyntheticModel model;
  CalibrationPtr calibration;
  explicit Made(const SyntheticShape& shape) : model(shape) {
    auto c = solve::klt_calibration(model.statistics());
    EXPECT_TRUE(c.ok()) << c.status().message();
    calibration = *c;
  }
  std::unique_ptr<Codec> codec(const char* text, uint32_t layer, uint32_t head, uint32_t tokens = 128) {
    const calib::HeadTables tables{calibration, layer, head};
    auto made = make_codec(parse_codec(text).value(), Side::key, {tokens, calibration->model.head_dim}, &tables);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  std::vector<float> keys(uint32_t layer, uint32_t head, uint32_t first, uint32_t count) {
    std::vector<float> rows;
    for (uint32_t t = 0; t < count; ++t) {
      const auto k = model.key(layer, head, first + t);
      rows.insert(rows.end(), k.begin(), k.end());
    }
    return rows;
  }
};

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / size);
}

std::vector<float> decoded(const Codec& codec, std::span<const std::byte> bytes, const BlockContext& ctx) {
  std::vector<float> rows(static_cast<size_t>(codec.shape().tokens) * codec.shape().head_dim);
  codec.decode(bytes, ctx, 0, codec.shape().tokens, rows.data());
  return rows;
}

TEST(Klt, MoreBitsMeanLessError) {
  Made made({});
  double last = 10.0;
  for (const char* text : {"kltk0.5", "kltk1", "kltk2", "kltk4"}) {
    const auto codec = made.codec(text, 1, 1);
    const BlockContext ctx{1, 1, 4 + 5 * 128, nullptr};
    const auto rows = made.keys(1, 1, ctx.first_position, 128);
    std::vector<std::byte> bytes(codec->bytes());
    ASSERT_TRUE(codec->encode(rows.data(), ctx, bytes).ok());
    const double error = relative_error(decoded(*codec, bytes, ctx), rows);
    EXPECT_LT(error, last) << text;
    last = error;
  }
  EXPECT_LT(last, 0.1);
}

TEST(Klt, TheFrameOfABlockMakesPositionsAlike) {
  Made made({});
  const auto codec = made.codec("kltk2", 0, 0);
  for (const uint32_t first : {4u, 4u + 128 * 7, 4u + 128 * 500, 1000003u}) {
    const BlockContext ctx{0, 0, first, nullptr};
    const auto rows = made.keys(0, 0, first, 128);
    std::vector<std::byte> bytes(codec->bytes());
    ASSERT_TRUE(codec->encode(rows.data(), ctx, bytes).ok());
    EXPECT_LT(relative_error(decoded(*codec, bytes, ctx), rows), 0.25) << first;
  }
}

class KltScores : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_active_isa(GetParam())); }
  void TearDown() override { set_active_isa(before_); }

 private:
  const std::string_view before_ = active_isa();
};
INSTANTIATE_TEST_SUITE_P(Isa, KltScores, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

// For every number of queries the kernels treat differently.
TEST_P(KltScores, AreThoseOfDecodedRows) {
  const double scalar = GetParam() == "scalar" ? 0.05 : 1.0;
  for (const uint32_t d : {32u, 64u, 96u, 128u}) {
    Made made({2, 4, 2, d, 1024, d, d != 96});
    for (const char* text : {"kltk0.25", "kltk0.5", "klt1.25", "kltk1.5", "kltk2.5", "kltk4"}) {
      const auto codec = made.codec(text, 1, 0);
      const BlockContext ctx{1, 0, 4 + 3 * 128, nullptr};
      const auto rows = made.keys(1, 0, ctx.first_position, 128);
      std::vector<std::byte> bytes(codec->bytes());
      ASSERT_TRUE(codec->encode(rows.data(), ctx, bytes).ok());
      const auto plain = decoded(*codec, bytes, ctx);
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 9u, 48u}) {
        for (const uint32_t live : {128u, 117u, 1u}) {
          const auto queries = made.model.noise(count * d);
          std::vector<float> out(count * 128, -1.0f);
          Workspace ws;
          codec->scores(bytes, ctx, queries.data(), count, live, out.data(), 128, ws);
          for (uint32_t i = 0; i < count; ++i) {
            for (uint32_t t = 0; t < live; ++t) {
              double expected = 0.0, q2 = 0.0, k2 = 0.0;
              for (uint32_t c = 0; c < d; ++c) {
                const double q = queries[i * d + c], k = plain[t * d + c];
                expected += q * k, q2 += q * q, k2 += k * k;
              }
              ASSERT_NEAR(out[i * 128 + t], expected, scalar * codec->tolerance() * std::sqrt(q2 * k2))
                  << text << " d " << d << " query " << i << " token " << t;
            }
          }
        }
      }
    }
  }
}

// Tables are widened once for numbered queries, to floats or to 16-bit integers. Heads take turns here, so that one's tables would
// be met by another's block.
TEST(Klt, NumberedQueriesGetTheScoresOfOthers) {
  Made made({});
  const uint32_t d = made.calibration->model.head_dim, count = 3, tokens = 128;
  std::vector<float> queries;
  for (uint32_t i = 0; i < count * d; ++i) queries.push_back(std::sin(0.7f * static_cast<float>(i * i % 97)));
  for (const char* text : {"klt1.25", "klt1.25+top4", "klt0.5+top4"}) {
    Workspace numbered;
    for (const uint32_t round : {0u, 1u, 2u, 3u}) {
      const auto codec = made.codec(text, round / 2, round % 2);
      BlockContext ctx;
      ctx.first_position = 128 * round;
      std::vector<std::byte> bytes(codec->bytes());
      ASSERT_TRUE(codec->encode(made.keys(round / 2, round % 2, ctx.first_position, tokens).data(), ctx, bytes).ok());
      Workspace plain;
      numbered.queries_id = 5 + round;
      std::vector<float> want(count * tokens), got(count * tokens);
      codec->scores(bytes, ctx, queries.data(), count, tokens, want.data(), tokens, plain);
      for (const bool coarse : {false, true, true, false, false}) {
        numbered.coarse = coarse;
        codec->scores(bytes, ctx, queries.data(), count, tokens, got.data(), tokens, numbered);
        EXPECT_LT(relative_error(got, want), coarse ? 3e-4 : 1e-5) << text << " round " << round;
      }
    }
    // The same number, another codec.
    const auto first = made.codec(text, 0, 0), second = made.codec(text, 0, 1);
    BlockContext ctx;
    for (const Codec* codec : {first.get(), second.get(), first.get()}) {
      std::vector<std::byte> bytes(codec->bytes());
      ASSERT_TRUE(codec->encode(made.keys(0, 0, 0, tokens).data(), ctx, bytes).ok());
      Workspace plain;
      numbered.queries_id = 99;
      std::vector<float> want(count * tokens), got(count * tokens);
      codec->scores(bytes, ctx, queries.data(), count, tokens, want.data(), tokens, plain);
      codec->scores(bytes, ctx, queries.data(), count, tokens, got.data(), tokens, numbered);
      EXPECT_LT(relative_error(got, want), 1e-5) << text;
    }
  }
}

TEST(Klt, ScatteredPositionsKeepTheirProducts) {
  Made made({});
  const auto codec = made.codec("kltk4", 0, 1, 16);
  std::vector<uint32_t> positions;
  std::vector<float> rows;
  for (uint32_t i = 0; i < 16; ++i) {
    positions.push_back(300 + 2 * i - i % 3);
    const auto k = made.model.key(0, 1, positions.back());
    rows.insert(rows.end(), k.begin(), k.end());
  }
  const BlockContext ctx{0, 1, positions[0], positions.data()};
  std::vector<std::byte> bytes(codec->bytes());
  ASSERT_TRUE(codec->encode(rows.data(), ctx, bytes).ok());
  EXPECT_LT(relative_error(decoded(*codec, bytes, ctx), rows), 0.3);
  positions.back() += 100;  // the frame of the block says nothing about a key so far away
  EXPECT_FALSE(codec->encode(rows.data(), ctx, bytes).ok());
}

TEST(Klt, TextNamesEighthsOfABit) {
  EXPECT_EQ(to_string(parse_codec("klt1.875").value()), "klt1.875");
  EXPECT_EQ(to_string(parse_codec("klt1.25").value()), "klt1.25");
  EXPECT_EQ(to_string(parse_codec("klt2").value()), "klt2");
  EXPECT_EQ(to_string(parse_codec_pair("kltk1.5").value()), "kltk1.5");
  EXPECT_EQ(to_string(parse_codec_pair("kltk1.5/rot3").value()), "kltk1.5/rot3");
  for (const char* bad : {"klt", "klt1.3", "klt9", "klt1.", "klt1.5000", "klt0.125", "rot2.5"})
    EXPECT_FALSE(parse_codec(bad).ok()) << bad;
}

TEST(Klt, SaysWhatIsMissing) {
  const auto codec = make_codec(parse_codec("klt1.5").value(), Side::key, {128, 64});
  ASSERT_FALSE(codec.ok());
  EXPECT_NE(codec.status().message().find("calibrate"), std::string::npos) << codec.status().message();
}

}  // namespace
}  // namespace tierkv::quant
