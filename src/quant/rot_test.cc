#include "quant/rot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/registry.h"

namespace tierkv::quant {
namespace {

std::vector<float> keys_with_outliers(uint32_t tokens, uint32_t d, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(tokens) * d);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = normal(rng) + (i % d == 3 ? 12.0f : i % d == 40 ? -9.0f : 0.0f);
  return rows;
}

std::vector<float> round_trip(const char* text, Side side, const BlockShape& shape, const std::vector<float>& rows) {
  const auto codec = make_codec(*parse_codec(text), side, shape);
  EXPECT_TRUE(codec.ok());
  std::vector<std::byte> bytes((*codec)->bytes());
  EXPECT_TRUE((*codec)->encode(rows.data(), {}, bytes).ok());
  std::vector<float> back(rows.size());
  (*codec)->decode(bytes, {}, 0, shape.tokens, back.data());
  return back;
}

// The limit: the archive, with a 64-byte header for each block of keys and values, at most FP16/6.9.
TEST(Rot, TwoBitBlocksAreUnderTheArchiveLimit) {
  for (uint32_t d : {64u, 96u, 128u, 256u}) {
    const BlockShape shape{128, d};
    const size_t keys = (*make_codec(*parse_codec("rot2"), Side::key, shape))->bytes();
    const size_t values = (*make_codec(*parse_codec("rot2"), Side::value, shape))->bytes();
    EXPECT_LE(static_cast<double>(keys + values + 64) * 6.9, 2.0 * 2.0 * 128 * d) << d;
    if (d == 128) {
      EXPECT_EQ(keys, 128u * 128 / 4 + (4 + 128) + 2 * 128);  // codes, log scales, means: 2.189 bits
      EXPECT_EQ(values, 128u * 128 / 4 + 2 * 16 + 128);       // codes, two run headers, a byte a token: 2.078 bits
    }
  }
}

// <x', x> = <x, x> for the centred rows up to the 8-bit scale (±1.1 %), so that large scores do not shrink.
TEST(Rot, KeysAreUnbiased) {
  const uint32_t tokens = 128, d = 128;
  const std::vector<float> rows = keys_with_outliers(tokens, d, 9);
  std::vector<double> mean(d);
  for (size_t i = 0; i < rows.size(); ++i) mean[i % d] += rows[i] / static_cast<double>(tokens);
  for (const char* name : {"rot2", "rot3", "rot4"}) {
    const std::vector<float> back = round_trip(name, Side::key, {tokens, d}, rows);
    double total = 0;
    for (uint32_t t = 0; t < tokens; ++t) {
      double xx = 0, xy = 0;
      for (uint32_t c = 0; c < d; ++c) {
        const double x = rows[t * d + c] - mean[c], y = back[t * d + c] - mean[c];
        xx += x * x;
        xy += x * y;
      }
      ASSERT_NEAR(xy / xx, 1.0, 0.015) << name << " token " << t;
      total += xy / xx / tokens;
    }
    EXPECT_NEAR(total, 1.0, 0.002) << name;
  }
}

TEST(Rot, BeatsKiviOnKeysWithOutlierChannelsAtTwoBits) {
  const uint32_t tokens = 128, d = 128;
  std::mt19937 rng(10);
  std::student_t_distribution<float> student(3.0f);
  std::vector<float> rows(tokens * d);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = student(rng) + (i % d == 3 ? 12.0f : 0.0f);
  double error[2] = {};
  for (int k = 0; k < 2; ++k) {
    const std::vector<float> back = round_trip(k == 0 ? "kivi2" : "rot2", Side::key, {tokens, d}, rows);
    for (size_t i = 0; i < rows.size(); ++i) error[k] += std::pow(back[i] - rows[i], 2);
  }
  EXPECT_LT(error[1], 0.5 * error[0]);
}

TEST(Rot, ZeroRowsComeBackZeroAmongOthers) {
  const uint32_t tokens = 32, d = 64;
  std::vector<float> rows(tokens * d);
  for (uint32_t c = 0; c < d; ++c) {  // two opposite rows, so that the means are zero and the others stay zero
    rows[c] = c % 2 ? 3.0f : -1.0f;
    rows[d + c] = -rows[c];
  }
  const std::vector<float> back = round_trip("rot2", Side::key, {tokens, d}, rows);
  for (uint32_t i = 2 * d; i < rows.size(); ++i) ASSERT_EQ(back[i], 0.0f);
}

TEST(Rot, ErrorFallsWithBits) {
  const uint32_t tokens = 128, d = 64;
  const std::vector<float> rows = keys_with_outliers(tokens, d, 12);
  for (Side side : {Side::key, Side::value}) {
    double previous = 1e9;
    for (int bits = 2; bits <= 8; ++bits) {
      const std::vector<float> back = round_trip(("rot" + std::to_string(bits)).c_str(), side, {tokens, d}, rows);
      double e = 0;
      for (size_t i = 0; i < rows.size(); ++i) e += std::pow(back[i] - rows[i], 2);
      EXPECT_LT(e, 0.45 * previous) << bits;
      previous = e;
    }
  }
}

TEST(Rot, RotatedMeansPastFp16AreRefused) {
  const auto codec = make_codec(*parse_codec("rot2"), Side::key, {16, 64});
  std::vector<float> rows(16 * 64, 0.0f);
  for (uint32_t t = 0; t < 16; ++t) {
    for (uint32_t c = 0; c < 64; ++c) rows[t * 64 + c] = 600000.0f;
  }
  std::vector<std::byte> bytes((*codec)->bytes());
  const Status status = (*codec)->encode(rows.data(), {}, bytes);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("mean of channel"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tierkv::quant
