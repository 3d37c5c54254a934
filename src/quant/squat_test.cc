#include "quant/squat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "quant/isa.h"
#include "quant/registry.h"
#include "quant/squat_feedback.h"
#include "solve/testing.h"

namespace tierkv::quant {
namespace {

using calib::SyntheticModel;

constexpr uint32_t kDim = 64, kTokens = 128;

struct Made {
  calib::Statistics statistics;
  CalibrationPtr calibration;
  explicit Made(const solve::SquatOptions& options) : statistics(SyntheticModel({1, 4, 2, kDim, 384, 21, true}).statistics()) {
    // Queries along eight directions, and a little of everything.
    SyntheticModel random({1, 1, 1, 32, 1, 22, false});
    for (calib::PairSums& sums : statistics.pairs) {
      const std::vector<float> directions = random.noise(8 * kDim);
      sums.queries.assign(kDim * kDim, 0.0);
      for (uint32_t a = 0; a < kDim; ++a) {
        sums.queries[a * kDim + a] = 0.1 * static_cast<double>(sums.query_count);
        for (uint32_t b = 0; b < kDim; ++b) {
          for (uint32_t k = 0; k < 8; ++k) {
            sums.queries[a * kDim + b] +=
                static_cast<double>(sums.query_count) * directions[k * kDim + a] * directions[k * kDim + b];
          }
        }
      }
    }
    auto c = solve::kvquant_and_squat(statistics, options);
    EXPECT_TRUE(c.ok()) << c.status().message();
    calibration = *c;
  }
  std::unique_ptr<Codec> codec(const std::string& text, Side side = Side::key) const {
    const calib::HeadTables tables{calibration, 0, 1};
    auto made = make_codec(parse_codec(text).value(), side, {kTokens, kDim}, &tables);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  std::vector<float> rows() const {
    std::vector<float> out;
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t c = 0; c < kDim; ++c) out.push_back(f16_to_f32(statistics.layers[0].keys[(t * 2 + 1) * kDim + c]));
    }
    return out;
  }
  // Of the errors as queries see them, and as they are.
  struct Errors {
    double seen = 0, plain = 0;
  };
  Errors errors(const Codec& codec) const {
    const std::vector<float> in = rows();
    std::vector<std::byte> bytes(codec.bytes());
    EXPECT_TRUE(codec.encode(in.data(), {}, bytes).ok());
    std::vector<float> back(in.size());
    codec.decode(bytes, {}, 0, kTokens, back.data());
    const std::vector<double>& gram = statistics.pair_sums(0, 1).queries;
    Errors sum;
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t a = 0; a < kDim; ++a) {
        const double e = back[t * kDim + a] - in[t * kDim + a];
        sum.plain += e * e;
        for (uint32_t b = 0; b < kDim; ++b) sum.seen += e * gram[a * kDim + b] * (back[t * kDim + b] - in[t * kDim + b]);
      }
    }
    return sum;
  }
};

const Made& made() {
  static const Made m({});
  return m;
}

TEST(Squat, QueriesSeeLessOfItsErrorsThanOfKivis) {
  for (const char* width : {"2", "3", "4", "2-g32", "2+clip"}) {
    const Made::Errors ours = made().errors(*made().codec(std::string("squat") + width)),
                       kivi = made().errors(*made().codec(std::string("kivi") + width));
    EXPECT_LT(ours.seen, 0.7 * kivi.seen) << width;
    EXPECT_GT(ours.plain, kivi.plain) << width;  // what is pushed out of sight is still there
  }
}

TEST(Squat, CostsWhatKiviCosts) {
  for (const Side side : {Side::key, Side::value}) {
    EXPECT_EQ(made().codec("squat2", side)->bytes(), made().codec("kivi2", side)->bytes());
    EXPECT_EQ(made().codec("squat3-g32", side)->bytes(), made().codec("kivi3-g32", side)->bytes());
  }
}

TEST(Squat, WithoutDirectionsItIsKivi) {
  const Made none({8, 0.0});
  const std::vector<float> rows = none.rows();
  for (const Side side : {Side::key, Side::value}) {
    const auto ours = none.codec("squat3", side), kivi = none.codec("kivi3", side);
    std::vector<std::byte> a(ours->bytes()), b(kivi->bytes());
    ASSERT_TRUE(ours->encode(rows.data(), {}, a).ok());
    ASSERT_TRUE(kivi->encode(rows.data(), {}, b).ok());
    EXPECT_EQ(a, b);
  }
}

// The best answer to errors in the first channels, straight from its definition: the e_R that minimises e'Pe solves P_RR e_R =
// -P_RD e_D.
std::vector<double> best_answer(const std::vector<double>& p, uint32_t d, uint32_t done, const std::vector<double>& e) {
  const uint32_t n = d - done;
  std::vector<double> a(static_cast<size_t>(n) * n), b(n, 0.0);
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < n; ++j) a[i * n + j] = p[(done + i) * d + done + j];
    for (uint32_t j = 0; j < done; ++j) b[i] -= p[(done + i) * d + j] * e[j];
  }
  for (uint32_t k = 0; k < n; ++k) {
    for (uint32_t i = k + 1; i < n; ++i) {
      const double f = a[i * n + k] / a[k * n + k];
      for (uint32_t j = k; j < n; ++j) a[i * n + j] -= f * a[k * n + j];
      b[i] -= f * b[k];
    }
  }
  for (uint32_t i = n; i-- > 0;) {
    for (uint32_t j = i + 1; j < n; ++j) b[i] -= a[i * n + j] * b[j];
    b[i] /= a[i * n + i];
  }
  return b;
}

TEST(Squat, TheShortRuleGivesTheBestAnswer) {
  const uint32_t d = 32, r = 5;
  SyntheticModel random({1, 1, 1, 32, 1, 77, false});
  const std::vector<float> directions = random.noise(r * d), errors = random.noise(d);
  std::vector<double> p(d * d, 0.0), e(errors.begin(), errors.end());
  for (uint32_t a = 0; a < d; ++a) {
    p[a * d + a] = 1.0;
    for (uint32_t b = 0; b < d; ++b) {
      for (uint32_t k = 0; k < r; ++k) p[a * d + b] += static_cast<double>(directions[k * d + a]) * directions[k * d + b];
    }
  }
  for (const uint32_t step : {1u, 8u, 12u}) {
    const SquatFeedback feedback(directions, d, step);
    ASSERT_EQ(feedback.rank(), r);
    for (uint32_t done = 0; done < d; done += step) {
      std::vector<double> g(r, 0.0);
      for (uint32_t c = 0; c < done; ++c) {
        for (uint32_t k = 0; k < r; ++k) g[k] += feedback.direction(c)[k] * e[c];
      }
      const std::vector<double> best = best_answer(p, d, done, e);
      for (uint32_t c = done; c < std::min(d, done + step); ++c) {
        double shift = 0.0;
        for (uint32_t k = 0; k < r; ++k) shift -= feedback.answer(c)[k] * g[k];
        EXPECT_NEAR(shift, best[c - done], 1e-4) << "step " << step << ", channel " << c;
      }
    }
  }
}

TEST(Squat, ScoresAreThoseOfDecodedRowsOnEveryIsa) {
  const std::string_view before = active_isa();
  SyntheticModel random({1, 1, 1, 32, 1, 78, false});
  const std::vector<float> q = random.noise(3 * kDim);
  for (const std::string_view isa : available_isas()) {
    ASSERT_TRUE(set_active_isa(isa));
    const auto codec = made().codec("squat2");
    std::vector<std::byte> bytes(codec->bytes());
    const std::vector<float> rows = made().rows();
    ASSERT_TRUE(codec->encode(rows.data(), {}, bytes).ok());
    ASSERT_TRUE(codec->validate(bytes).ok());
    std::vector<float> back(rows.size()), out(3 * kTokens);
    codec->decode(bytes, {}, 0, kTokens, back.data());
    Workspace ws;
    codec->scores(bytes, {}, q.data(), 3, kTokens, out.data(), kTokens, ws);
    for (uint32_t i = 0; i < 3; ++i) {
      for (uint32_t t = 0; t < kTokens; ++t) {
        double want = 0, q2 = 0, k2 = 0;
        for (uint32_t c = 0; c < kDim; ++c) {
          want += static_cast<double>(q[i * kDim + c]) * back[t * kDim + c];
          q2 += q[i * kDim + c] * q[i * kDim + c], k2 += back[t * kDim + c] * back[t * kDim + c];
        }
        ASSERT_NEAR(out[i * kTokens + t], want, codec->tolerance() * std::sqrt(q2 * k2)) << isa;
      }
    }
  }
  set_active_isa(before);
}

TEST(Squat, WhatCannotBeStoredIsRefusedAndNothingIsWritten) {
  const auto codec = made().codec("squat2");
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), 2e38f, 1e30f}) {
    std::vector<float> rows = made().rows();
    rows[777] = bad;
    std::vector<std::byte> bytes(codec->bytes(), std::byte{0x5A});
    EXPECT_EQ(codec->encode(rows.data(), {}, bytes).code(), StatusCode::invalid_argument) << bad;
    for (const std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
  }
  std::vector<std::byte> bytes(codec->bytes());
  ASSERT_TRUE(codec->encode(made().rows().data(), {}, bytes).ok());
  bytes[bytes.size() - 1] = std::byte{0x7E};
  EXPECT_FALSE(codec->validate(bytes).ok());
}

TEST(Squat, NeedsItsTables) {
  const CodecSpec spec = parse_codec("squat2").value();
  EXPECT_EQ(make_codec(spec, Side::key, {kTokens, kDim}).status().code(), StatusCode::failed_precondition);
  auto empty = std::make_shared<calib::Calibration>();
  empty->model = made().statistics.model;
  empty->ropes = made().statistics.ropes;
  ASSERT_TRUE(empty->finish().ok());
  const calib::HeadTables none{empty, 0, 0}, past{made().calibration, 0, 2};
  EXPECT_EQ(make_codec(spec, Side::key, {kTokens, kDim}, &none).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(make_codec(spec, Side::key, {kTokens, kDim}, &past).status().code(), StatusCode::invalid_argument);
  EXPECT_FALSE(parse_codec("squat2+s8").ok());
  EXPECT_FALSE(parse_codec("squat5").ok());
}

}  // namespace
}  // namespace tierkv::quant
