// The contract of every codec (contract_test.cc) with tables, and what KVQuant promises beside it.
#include "quant/kvquant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/f16.h"
#include "quant/registry.h"
#include "solve/testing.h"

namespace tierkv::quant {
namespace {

using calib::SyntheticModel;
using calib::SyntheticShape;

struct Made {
  SyntheticModel model;
  calib::Statistics statistics;
  CalibrationPtr calibration;
  explicit Made(uint32_t d, bool rope = true) : model(SyntheticShape{2, 4, 2, d, 384, d, rope}), statistics(model.statistics()) {
    auto c = solve::kvquant_and_squat(statistics);
    EXPECT_TRUE(c.ok()) << c.status().message();
    calibration = *c;
  }
  std::unique_ptr<Codec> codec(const std::string& text, Side side, uint32_t tokens) const {
    const calib::HeadTables tables{calibration, 1, 1};
    auto made = make_codec(parse_codec(text).value(), side, {tokens, calibration->model.head_dim}, &tables);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  // Rows like those of the statistics; keys stand where ctx says.
  std::vector<float> rows(Side side, uint32_t tokens, const BlockContext& ctx) {
    const uint32_t d = calibration->model.head_dim;
    if (side == Side::value) return model.noise(tokens * d);
    std::vector<float> out;
    // Turned on from the sample: what SyntheticModel::key() makes, without building its sines for every row.
    const calib::Turner& turner = calibration->turner(1);
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<float> k(d);
      const uint32_t from = (t * 7 + ctx.first_position) % statistics.sampled();
      for (uint32_t c = 0; c < d; ++c) k[c] = f16_to_f32(statistics.layers[1].keys[(from * 2 + 1) * d + c]);
      const int64_t position = ctx.positions ? ctx.positions[t] : ctx.first_position + t;
      turner.turn(k.data(), 1, position - statistics.positions[from], k.data());
      out.insert(out.end(), k.begin(), k.end());
    }
    return out;
  }
};

Made& made(uint32_t d) {
  static Made m32(32), m64(64), m80(80, false);
  return d == 32 ? m32 : d == 64 ? m64 : m80;
}

struct Case {
  uint32_t tokens, d;
  uint32_t first;
};
const Case kCases[] = {{16, 32, 0}, {128, 64, 4 + 640}, {48, 80, 100}, {256, 64, 1000003}};

template <class Fn>
void for_every_codec(Fn&& fn) {
  for (const Case& at : kCases) {
    for (const char* text : {"kvquant2", "kvquant3", "kvquant4", "kvquant3+s8", "kvquant2+s4"}) {
      for (const Side side : {Side::key, Side::value}) {
        const auto codec = made(at.d).codec(text, side, at.tokens);
        const BlockContext ctx{1, 1, at.first, nullptr};
        SCOPED_TRACE(std::string(text) + (side == Side::key ? " keys " : " values ") + std::to_string(at.tokens) + "x" +
                     std::to_string(at.d));
        fn(*codec, ctx, made(at.d).rows(side, at.tokens, ctx));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

std::vector<std::byte> encoded(const Codec& codec, const BlockContext& ctx, const std::vector<float>& rows) {
  std::vector<std::byte> bytes(codec.bytes());
  const Status status = codec.encode(rows.data(), ctx, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

std::vector<float> decoded(const Codec& codec, const BlockContext& ctx, std::span<const std::byte> bytes) {
  std::vector<float> rows(static_cast<size_t>(codec.shape().tokens) * codec.shape().head_dim);
  codec.decode(bytes, ctx, 0, codec.shape().tokens, rows.data());
  return rows;
}

double norm(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference.data(), a.size()) / norm(b.data(), b.size());
}

TEST(Kvquant, WritesEveryByteAndNothingElseAndTheSameEachTime) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, const std::vector<float>& rows) {
    std::vector<std::byte> a(codec.bytes() + 8, std::byte{0xAA}), b(codec.bytes() + 8, std::byte{0x55});
    ASSERT_TRUE(codec.encode(rows.data(), ctx, std::span(a).first(codec.bytes())).ok());
    ASSERT_TRUE(codec.encode(rows.data(), ctx, std::span(b).first(codec.bytes())).ok());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), codec.bytes()), 0);
    for (size_t i = codec.bytes(); i < a.size(); ++i) ASSERT_EQ(a[i], std::byte{0xAA});
    ASSERT_TRUE(codec.validate(std::span(a).first(codec.bytes())).ok());
    ASSERT_FALSE(codec.validate(std::span(a).first(codec.bytes() - 1)).ok());
    ASSERT_FALSE(codec.encode(rows.data(), ctx, a).ok());
  });
}

TEST(Kvquant, BytesCountCodesRangesAndOutliers) {
  for (int bits = 2; bits <= 4; ++bits) {
    const std::string text = "kvquant" + std::to_string(bits);
    const size_t codes = 128 * 64 * static_cast<size_t>(bits) / 8, outliers = 82 * 4, ranges = 128 * 4;
    EXPECT_EQ(made(64).codec(text, Side::key, 128)->bytes(), codes + outliers);
    EXPECT_EQ(made(64).codec(text, Side::value, 128)->bytes(), codes + ranges + outliers);
  }
}

TEST(Kvquant, ErrorFallsWithBitsWhereverTheBlockStands) {
  for (const uint32_t first : {0u, 644u, 100000u, 3000000u}) {
    const BlockContext ctx{1, 1, first, nullptr};
    for (const Side side : {Side::key, Side::value}) {
      const std::vector<float> rows = made(64).rows(side, 128, ctx);
      double last = 1.0;
      for (const char* text : {"kvquant2", "kvquant3", "kvquant4"}) {
        const auto codec = made(64).codec(text, side, 128);
        const double error = relative_error(decoded(*codec, ctx, encoded(*codec, ctx, rows)), rows);
        EXPECT_LT(error, 0.65 * last) << text << " at " << first;
        last = error;
      }
      EXPECT_LT(last, 0.1) << "at " << first;
    }
  }
}

TEST(Kvquant, RowsAloneAreTheSameRows) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, const std::vector<float>& rows) {
    const std::vector<std::byte> bytes = encoded(codec, ctx, rows);
    const std::vector<float> back = decoded(codec, ctx, bytes);
    const uint32_t d = codec.shape().head_dim;
    std::vector<float> some(9 * d);
    for (const uint32_t t : {codec.shape().tokens - 9, 0u, 5u}) {
      for (const uint32_t count : {1u, 9u}) {
        codec.decode(bytes, ctx, t, count, some.data());
        ASSERT_EQ(std::memcmp(some.data(), back.data() + static_cast<size_t>(t) * d, count * d * sizeof(float)), 0);
      }
    }
  });
}

TEST(Kvquant, ScoresAndSumsAreThoseOfDecodedRows) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, const std::vector<float>& rows) {
    const std::vector<std::byte> bytes = encoded(codec, ctx, rows);
    const std::vector<float> back = decoded(codec, ctx, bytes);
    const uint32_t d = codec.shape().head_dim, tokens = codec.shape().tokens;
    SyntheticModel random(SyntheticShape{1, 1, 1, 32, 1, 9, false});
    Workspace ws;
    for (const uint32_t count : {1u, 3u, 8u}) {
      for (const uint32_t live : {tokens, tokens - 5, 1u}) {
        const size_t stride = tokens + 3;
        if (codec.side() == Side::key) {
          const std::vector<float> q = random.noise(count * d);
          std::vector<float> out(count * stride, -7.0f);
          codec.scores(bytes, ctx, q.data(), count, live, out.data(), stride, ws);
          for (uint32_t i = 0; i < count; ++i) {
            for (uint32_t t = 0; t < stride; ++t) {
              double want = t < live ? 0.0 : -7.0;
              for (uint32_t c = 0; t < live && c < d; ++c)
                want += static_cast<double>(q[i * d + c]) * back[static_cast<size_t>(t) * d + c];
              ASSERT_NEAR(out[i * stride + t], want,
                          1e-4 * norm(&q[i * d], d) * norm(&back[std::min(t, tokens - 1) * size_t{d}], d));
            }
          }
        } else {
          const std::vector<float> w = random.noise(static_cast<uint32_t>(count * stride)), start = random.noise(count * d);
          std::vector<float> acc = start;
          codec.accumulate(bytes, ctx, w.data(), stride, count, live, acc.data(), ws);
          for (uint32_t i = 0; i < count; ++i) {
            for (uint32_t c = 0; c < d; ++c) {
              double want = start[i * d + c];
              for (uint32_t t = 0; t < live; ++t)
                want += static_cast<double>(w[i * stride + t]) * back[static_cast<size_t>(t) * d + c];
              ASSERT_NEAR(acc[i * d + c], want, 1e-3);
            }
          }
        }
      }
    }
  });
}

TEST(Kvquant, OutliersAreExactToFp16) {
  for (const Side side : {Side::key, Side::value}) {
    const BlockContext ctx{1, 1, 0, nullptr};
    const auto codec = made(80).codec("kvquant2", side, 48);  // 80 has no RoPE: keys are stored as they are given
    std::vector<float> rows = made(80).rows(side, 48, ctx);
    const std::pair<size_t, float> far[] = {{3, 91.37f}, {700, -55.21f}, {1999, 40.003f}, {3839, -300.7f}};
    for (const auto& [at, x] : far) rows[at] = x;
    const std::vector<float> back = decoded(*codec, ctx, encoded(*codec, ctx, rows));
    for (const auto& [at, x] : far) EXPECT_EQ(back[at], f16_to_f32(f32_to_f16(x))) << at;
  }
}

TEST(Kvquant, KeysKeepTheirOutliersThroughRope) {
  const BlockContext ctx{1, 1, 5000, nullptr};
  const auto codec = made(64).codec("kvquant4", Side::key, 128);
  std::vector<float> rows = made(64).rows(Side::key, 128, ctx);
  const calib::Turner& turner = made(64).calibration->turner(1);
  turner.turn(&rows[20 * 64], 1, -5020, &rows[20 * 64]);
  rows[20 * 64 + 11] = 123.0f;
  turner.turn(&rows[20 * 64], 1, 5020, &rows[20 * 64]);
  std::vector<float> back = decoded(*codec, ctx, encoded(*codec, ctx, rows));
  turner.turn(&back[20 * 64], 1, -5020, &back[20 * 64]);
  EXPECT_NEAR(back[20 * 64 + 11], 123.0f, 0.07f);
}

TEST(Kvquant, ScatteredPositionsAreTurnedEachByItsOwn) {
  std::vector<uint32_t> positions(128);
  for (uint32_t t = 0; t < 128; ++t) positions[t] = 900 + t * t % 977;
  const BlockContext ctx{1, 1, positions[0], positions.data()};
  const auto codec = made(64).codec("kvquant4", Side::key, 128);
  const std::vector<float> rows = made(64).rows(Side::key, 128, ctx);
  const std::vector<std::byte> bytes = encoded(*codec, ctx, rows);
  EXPECT_LT(relative_error(decoded(*codec, ctx, bytes), rows), 0.1);
  // Rows that died since are never looked at, and change nothing for the others.
  const std::vector<float> before = decoded(*codec, ctx, bytes);
  positions[40] = 0xFFFFFFFFu;
  const std::vector<float> after = decoded(*codec, ctx, bytes);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_TRUE(i / 64 == 40 ? std::isfinite(after[i]) : before[i] == after[i]) << i;
  }
}

TEST(Kvquant, RowsNobodyReadsTakeNoOutliers) {
  std::vector<uint32_t> positions(48);
  for (uint32_t t = 0; t < 48; ++t) positions[t] = t < 24 ? t : 0xFFFFFFFFu;
  const BlockContext ctx{1, 1, 0, positions.data()};
  const auto codec = made(80).codec("kvquant2", Side::key, 48);
  std::vector<float> rows = made(80).rows(Side::key, 48, {1, 1, 0, nullptr});
  for (size_t i = 24 * 80; i < rows.size(); ++i) rows[i] = 500.0f;  // padding that would want them all
  rows[5] = 77.0f;
  EXPECT_EQ(decoded(*codec, ctx, encoded(*codec, ctx, rows))[5], 77.0f);
}

TEST(Kvquant, WhatCannotBeStoredIsRefusedAndNothingIsWritten) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, std::vector<float> rows) {
    const float inf = std::numeric_limits<float>::infinity();
    const float was = rows[rows.size() / 2 + 5];
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 2e5f, 3e38f}) {
      rows[rows.size() / 2 + 5] = bad;
      std::vector<std::byte> bytes(codec.bytes(), std::byte{0x5A});
      const Status status = codec.encode(rows.data(), ctx, bytes);
      ASSERT_EQ(status.code(), StatusCode::invalid_argument) << bad;
      ASSERT_NE(status.message().find("row "), std::string::npos) << status.message();
      for (const std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
    }
    rows[rows.size() / 2 + 5] = was;
  });
}

TEST(Kvquant, StrangeRowsStayFinite) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, std::vector<float> rows) {
    for (const float size : {0.0f, 1e-41f, 1e-20f, 1e-4f, 100.0f, 40000.0f}) {
      for (int kind = 0; kind < 3; ++kind) {
        for (size_t i = 0; i < rows.size(); ++i)
          rows[i] = kind == 0 ? size : kind == 1 ? (i % 3 == 0 ? -size : size) : (i % 37 == 0 ? size : 0.0f);
        const std::vector<std::byte> bytes = encoded(codec, ctx, rows);
        ASSERT_TRUE(codec.validate(bytes).ok());
        for (const float x : decoded(codec, ctx, bytes)) ASSERT_LE(std::fabs(x), 2.0f * size + 100.0f);
      }
    }
  });
}

TEST(Kvquant, DamagedBlocksAreRefusedOrStayFinite) {
  for_every_codec([](const Codec& codec, const BlockContext& ctx, const std::vector<float>& rows) {
    const std::vector<std::byte> good = encoded(codec, ctx, rows);
    std::mt19937 rng(3);
    for (int round = 0; round < 30; ++round) {
      std::vector<std::byte> bad = good;
      for (int i = 0; i < round; ++i)
        bad[bad.size() - 1 - rng() % std::min<size_t>(bad.size(), 900)] = std::byte{static_cast<uint8_t>(i % 2 ? 0xFF : rng())};
      if (!codec.validate(bad).ok()) continue;
      for (const float x : decoded(codec, ctx, bad)) ASSERT_TRUE(std::isfinite(x));
    }
    std::vector<std::byte> bad = good;
    bad[bad.size() - 1] = std::byte{0x7E};  // an outlier that is not a number
    ASSERT_EQ(codec.validate(bad).code(), StatusCode::data_loss);
  });
}

TEST(Kvquant, NeedsItsTables) {
  const CodecSpec spec = parse_codec("kvquant3").value();
  EXPECT_EQ(make_codec(spec, Side::key, {128, 64}).status().code(), StatusCode::failed_precondition);
  auto empty = std::make_shared<calib::Calibration>();
  empty->model = made(64).statistics.model;
  empty->ropes = made(64).statistics.ropes;
  ASSERT_TRUE(empty->finish().ok());
  const calib::HeadTables none{empty, 0, 0}, past{made(64).calibration, 2, 0}, good{made(64).calibration, 0, 0};
  EXPECT_EQ(make_codec(spec, Side::key, {128, 64}, &none).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(make_codec(spec, Side::key, {128, 64}, &past).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(make_codec(spec, Side::key, {128, 128}, &good).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(make_codec(spec, Side::key, {40, 64}, &good).status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(make_codec(spec, Side::key, {128, 64}, &good).ok());
}

}  // namespace
}  // namespace tierkv::quant
