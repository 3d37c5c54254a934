#include "quant/kivi.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/f16.h"
#include "quant/frame.h"
#include "quant/registry.h"

namespace tierkv::quant {
namespace {

std::vector<float> gaussian(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<float> round_trip(const char* text, Side side, const BlockShape& shape, const std::vector<float>& rows) {
  const auto spec = parse_codec(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  const auto codec = make_codec(*spec, side, shape);
  EXPECT_TRUE(codec.ok()) << codec.status().message();
  std::vector<std::byte> bytes((*codec)->bytes());
  const Status status = (*codec)->encode(rows.data(), {}, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<float> back(rows.size());
  (*codec)->decode(bytes, {}, 0, shape.tokens, back.data());
  return back;
}

TEST(Kivi, ConstantGroupIsExact) {
  const BlockShape shape{32, 64};
  std::vector<float> rows(32 * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.3f + 1.7f * static_cast<float>(i % 64);  // constant along tokens
  for (const char* name : {"kivi1", "kivi2", "kivi3", "kivi8", "kivi16"}) {
    const std::vector<float> back = round_trip(name, Side::key, shape, rows);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(back[i], f16_to_f32(f32_to_f16(rows[i]))) << name;
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = -5.1f + static_cast<float>(i / 64);  // constant along channels
  const std::vector<float> back = round_trip("kivi2", Side::value, shape, rows);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(back[i], f16_to_f32(f32_to_f16(rows[i])));
}

// tract's KIVI cache: error at most scale/2, and shrinking with bits. The bound is the one kivi.h states.
TEST(Kivi, ErrorIsAtMostHalfAStepAndShrinksWithBits) {
  const BlockShape shape{64, 64};
  const std::vector<float> rows = gaussian(64 * 64, 3);
  for (Side side : {Side::key, Side::value}) {
    double previous = 1e9;
    for (uint32_t bits = 1; bits <= 16; ++bits) {
      const std::vector<float> back = round_trip(("kivi" + std::to_string(bits)).c_str(), side, shape, rows);
      double worst = 0;
      for (uint32_t g = 0; g < 64; ++g) {  // keys: group g is channel g; values: token g
        float lo = 1e9f, hi = -1e9f;
        for (uint32_t i = 0; i < 64; ++i) {
          const float x = side == Side::key ? rows[i * 64 + g] : rows[g * 64 + i];
          lo = std::min(lo, x);
          hi = std::max(hi, x);
        }
        const double fp16_step = std::fabs(lo) / 1024.0;
        const double scale = (hi - lo + fp16_step) / ((1 << bits) - 1) * (1 + 1.0 / 1024) + 6e-8;
        for (uint32_t i = 0; i < 64; ++i) {
          const size_t at = side == Side::key ? i * 64 + g : g * 64 + i;
          const double e = std::fabs(static_cast<double>(back[at]) - rows[at]);
          ASSERT_LE(e, scale / 2 + 1e-6) << bits << " bits";
          worst = std::max(worst, e);
        }
      }
      EXPECT_LT(worst, previous) << bits << " bits";
      previous = worst;
    }
  }
}

TEST(Kivi, TwoThreeAndFourBitsArePackedTight) {
  for (uint32_t bits : {2u, 3u, 4u}) {
    for (uint32_t d : {64u, 96u, 128u, 256u}) {
      const CodecSpec spec{4, static_cast<uint8_t>(bits), 0, 0, 0};
      const size_t codes = 128u * d * bits / 8;
      EXPECT_EQ((*make_codec(spec, Side::key, {128, d}))->bytes(), codes + d * 4u);
      EXPECT_EQ((*make_codec(spec, Side::value, {128, d}))->bytes(), codes + 128u * 4u * (d > 128 ? 2 : 1));
    }
  }
}

TEST(Kivi, GroupsRunAlongTokensForKeysAndChannelsForValues) {
  const BlockShape shape{64, 96};
  EXPECT_EQ((*make_codec(*parse_codec("kivi2-g16"), Side::key, shape))->bytes(), 64u * 96 / 4 + 4u * 96 * 4);
  EXPECT_EQ((*make_codec(*parse_codec("kivi2-g32"), Side::value, shape))->bytes(), 64u * 96 / 4 + 3u * 64 * 4);
  EXPECT_EQ((*make_codec(*parse_codec("kivi2-g64"), Side::value, shape))->bytes(), 64u * 96 / 4 + 2u * 64 * 4);   // 64 and 32
  EXPECT_EQ((*make_codec(*parse_codec("kivi2-g256"), Side::value, shape))->bytes(), 64u * 96 / 4 + 1u * 64 * 4);  // cut to 96
  // A finer group cannot see a spike in another one.
  std::vector<float> rows = gaussian(64 * 96, 5);
  rows[95] = 500.0f;
  const std::vector<float> fine = round_trip("kivi4-g16", Side::value, shape, rows);
  for (uint32_t c = 0; c < 80; ++c) EXPECT_NEAR(fine[c], rows[c], 0.3f);
}

double attention_error(const std::vector<float>& keys, const std::vector<float>& coded, uint32_t tokens, uint32_t d) {
  const std::vector<float> q = gaussian(8 * d, 99), values = gaussian(static_cast<size_t>(tokens) * d, 98);
  double e2 = 0, o2 = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    std::vector<double> out[2];
    for (int which = 0; which < 2; ++which) {
      const std::vector<float>& k = which == 0 ? keys : coded;
      std::vector<double> s(tokens);
      double sum = 0, top = -1e300;
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t c = 0; c < d; ++c)
          s[t] += static_cast<double>(q[i * d + c]) * k[static_cast<size_t>(t) * d + c] / std::sqrt(d);
        top = std::max(top, s[t]);
      }
      for (double& x : s) sum += (x = std::exp(x - top));
      out[which].assign(d, 0.0);
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t c = 0; c < d; ++c) out[which][c] += s[t] / sum * values[static_cast<size_t>(t) * d + c];
      }
    }
    for (uint32_t c = 0; c < d; ++c) {
      e2 += std::pow(out[0][c] - out[1][c], 2);
      o2 += out[0][c] * out[0][c];
    }
  }
  return std::sqrt(e2 / o2);
}

// tract's KIVI cache: on a heavy outlier channel, keys per channel beat keys per token by at least 1.7x (4 bits, same number of
// groups).
TEST(Kivi, PerChannelKeysBeatPerTokenKeysOnAnOutlierChannel) {
  const uint32_t tokens = 64, d = 64;
  std::vector<float> keys = gaussian(tokens * d, 21);
  for (uint32_t t = 0; t < tokens; ++t) keys[t * d + 9] = 20.0f + 3.0f * keys[t * d + 9];
  const std::vector<float> per_channel = round_trip("kivi4", Side::key, {tokens, d}, keys);
  const std::vector<float> per_token = round_trip("asym4", Side::key, {tokens, d}, keys);
  double channel = 0, token = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    channel += std::pow(per_channel[i] - keys[i], 2);
    token += std::pow(per_token[i] - keys[i], 2);
  }
  EXPECT_GT(std::sqrt(token), 1.7 * std::sqrt(channel));
  EXPECT_GT(attention_error(keys, per_token, tokens, d), 1.7 * attention_error(keys, per_channel, tokens, d));
}

// tract's KIVI cache: 8 bits are near-lossless for the attention output.
TEST(Kivi, EightBitsAreNearLosslessForAttention) {
  const uint32_t tokens = 128, d = 64;
  const std::vector<float> keys = gaussian(tokens * d, 22);
  EXPECT_LT(attention_error(keys, round_trip("kivi8", Side::key, {tokens, d}, keys), tokens, d), 0.01);
  EXPECT_LT(attention_error(keys, round_trip("int8", Side::key, {tokens, d}, keys), tokens, d), 0.015);
}

TEST(Kivi, CentringCarriesTheMeanExactly) {
  // Keys that are nothing but a channel mean fp16 can hold: whatever the width, nothing is lost.
  const uint32_t tokens = 32, d = 64;
  std::vector<float> keys(tokens * d);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = 0.5f * static_cast<float>(i % d) - 7.0f;
  const auto codec = make_codec(*parse_codec("kivi1+center"), Side::key, {tokens, d});
  std::vector<std::byte> bytes((*codec)->bytes());
  ASSERT_TRUE((*codec)->encode(keys.data(), {}, bytes).ok());
  const std::vector<float> q = gaussian(d, 4);
  double want = 0;
  for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[c]) * keys[c];
  std::vector<float> out(tokens);
  Workspace ws;
  (*codec)->scores(bytes, {}, q.data(), 1, tokens, out.data(), tokens, ws);
  for (float s : out) EXPECT_NEAR(s, want, 1e-4);
  // Values take no notice of it.
  EXPECT_EQ((*make_codec(*parse_codec("kivi2+center"), Side::value, {tokens, d}))->bytes(),
            (*make_codec(*parse_codec("kivi2"), Side::value, {tokens, d}))->bytes());
}

TEST(Kivi, ClippingLowersTheSquaredErrorOfHeavyTails) {
  std::mt19937 rng(31);
  std::student_t_distribution<float> student(3.0f);
  std::vector<float> rows(128 * 64);
  for (float& x : rows) x = student(rng);
  double error[2] = {};
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> back = round_trip(i == 0 ? "kivi2" : "kivi2+clip", Side::key, {128, 64}, rows);
    for (size_t k = 0; k < rows.size(); ++k) error[i] += std::pow(back[k] - rows[k], 2);
  }
  EXPECT_LT(error[1], 0.5 * error[0]);
}

TEST(Kivi, CodedScalesKeepTheGridOverTheGroup) {
  const BlockShape shape{64, 64};
  const std::vector<float> rows = gaussian(64 * 64, 8);
  for (const char* name : {"kivi4+s8", "kivi4+s4", "kivi2+s8"}) {
    for (Side side : {Side::key, Side::value}) {
      const std::vector<float> plain = round_trip(name[4] == '4' ? "kivi4" : "kivi2", side, shape, rows);
      const std::vector<float> coded = round_trip(name, side, shape, rows);
      double a = 0, b = 0, worst = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        a += std::pow(plain[i] - rows[i], 2);
        b += std::pow(coded[i] - rows[i], 2);
        worst = std::max<double>(worst, std::fabs(coded[i] - rows[i]));
      }
      const bool four = name[6] == '4';
      EXPECT_LT(std::sqrt(b), std::sqrt(a) * (four ? 1.35 : 1.05)) << name;
      EXPECT_LT(worst, (name[4] == '4' ? 0.32 : 1.4) * (four ? 1.3 : 1.0)) << name;
    }
  }
}

TEST(Kivi, RefusesWhatFp16MetadataCannotHold) {
  const auto codec = make_codec(*parse_codec("kivi2"), Side::key, {16, 32});
  std::vector<float> rows(16 * 32, 1.0f);
  rows[5] = -70000.0f;
  std::vector<std::byte> bytes((*codec)->bytes(), std::byte{1});
  const Status status = (*codec)->encode(rows.data(), {}, bytes);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("too large for this codec"), std::string::npos) << status.message();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{1}), static_cast<ptrdiff_t>(bytes.size()));
}

}  // namespace
}  // namespace tierkv::quant
