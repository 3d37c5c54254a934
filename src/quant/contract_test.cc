// What every row of the registry promises about its bytes, at every width, on both sides and over the shapes models have.
// contract_attention_test.cc has what it promises about attention.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "quant/contract_testing.h"
#include "quant/overlaid.h"

namespace tierkv::quant {
namespace {

using namespace tierkv::quant::testing;

TEST(Contract, WritesEveryByteAndNothingElseAndTheSameEachTime) {
  for_every_codec([](const Codec& codec) {
    const std::vector<float> rows = rows_for(codec);
    std::vector<std::byte> a(codec.bytes() + 8, std::byte{0xAA}), b(codec.bytes() + 8, std::byte{0x55});
    ASSERT_TRUE(codec.encode(rows.data(), kContext, std::span(a).first(codec.bytes())).ok());
    ASSERT_TRUE(codec.encode(rows.data(), kContext, std::span(b).first(codec.bytes())).ok());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), codec.bytes()), 0) << "a byte was left as it was, or two runs differ";
    for (size_t i = codec.bytes(); i < a.size(); ++i) ASSERT_EQ(a[i], std::byte{0xAA});
    ASSERT_TRUE(codec.validate(std::span(a).first(codec.bytes())).ok());
    ASSERT_FALSE(codec.validate(std::span(a).first(codec.bytes() - 1)).ok());
    ASSERT_FALSE(codec.encode(rows.data(), kContext, a).ok()) << "a span of the wrong size";
  });
}

// Better rows apart, which overlaid.h counts.
double bits_per_value(const Codec& codec) {
  const size_t bytes = codec.bytes() - overlay_bytes(codec.spec().top, codec.error_channels());
  return 8.0 * static_cast<double>(bytes) / (static_cast<double>(codec.shape().tokens) * codec.shape().head_dim);
}

// klt has no metadata. Its width is what a key may take on average, in whole words of 32 bits a token, less what the head's values
// take beyond their two bits; here the model is that one head. A bit of the values counts as head_dim/32 whole words: blocks are
// laid out by that count, so it stays, and with a head_dim of 80 or 112 klt takes a little more than it says.
void expect_klt_bits(const Codec& codec) {
  const CodecRow* row = find_codec_row(codec.spec().id);
  const double width = width_of(codec, 0), word = 32.0 / codec.shape().head_dim;
  double bits = bits_per_value(codec);
  if (has_side(*row, Side::value)) {
    const auto values = make_any_codec(codec.spec(), Side::value, codec.shape());
    ASSERT_TRUE(values.ok()) << values.status().message();
    bits += ((*values)->spec().bits - 2) * word * (codec.shape().head_dim / 32);
  }
  ASSERT_LE(bits, width);
  ASSERT_GE(bits, std::min(width - 3 * word, 0.9 * width)) << "bits that were asked for are not used";
}

TEST(Contract, BytesStayNearTheBitsOfTheCode) {
  for_every_codec([](const Codec& codec) {
    if (codec.frame() == Frame::block) return expect_klt_bits(codec);
    const double bits = bits_per_value(codec), width = width_of(codec, codec.spec().id == 3 ? 8 : 16);
    ASSERT_GE(bits, width);
    if (codec.shape().tokens % 32 == 0 && codec.shape().head_dim % 32 == 0 && codec.shape().tokens >= 64) {
      ASSERT_LE(bits, width + 2.2);
    }
  });
}

TEST(Contract, DecodeErrorFallsWithBits) {
  for_every_codec([](const Codec& codec) {
    const std::vector<float> rows = rows_for(codec);
    const std::vector<std::byte> bytes = encode(codec, rows);
    std::vector<float> back(rows.size());
    codec.decode(bytes, kContext, 0, codec.shape().tokens, back.data());
    double e = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(std::isfinite(back[i]));
      e += std::pow(static_cast<double>(back[i]) - rows[i], 2);
    }
    const bool symmetric = codec.spec().id == 3 || codec.spec().id == 6;
    // klt may have given bits of its keys to its values.
    const double width =
        codec.frame() == Frame::block ? bits_per_value(codec) : width_of(codec, codec.spec().id == 2 ? 7 : 8) - (symmetric ? 1 : 0);
    const double relative = std::sqrt(e) / norm(rows.data(), rows.size());
    // A grid over the whole range of a row with one value ten times the others is the worst of these.
    ASSERT_LE(relative, 4.0 / (std::exp2(std::min(width, 11.0)) - 1) + ((codec.spec().flags & 6) != 0 ? 0.15 : 0.0));
    // Rows out of order and alone are the same rows.
    std::vector<float> one(codec.shape().head_dim);
    for (uint32_t t : {codec.shape().tokens - 1, 0u, codec.shape().tokens / 2}) {
      codec.decode(bytes, kContext, t, 1, one.data());
      ASSERT_EQ(std::memcmp(one.data(), back.data() + static_cast<size_t>(t) * one.size(), one.size() * 4), 0);
    }
  });
}

TEST(Contract, NonFiniteRowsAreRefusedAndNothingIsWritten) {
  for_every_codec([](const Codec& codec) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> rows = rows_for(codec);
      rows[rows.size() / 2 + 5] = bad;
      std::vector<std::byte> bytes(codec.bytes(), std::byte{0x5A});
      const Status status = codec.encode(rows.data(), kContext, bytes);
      ASSERT_EQ(status.code(), StatusCode::invalid_argument);
      ASSERT_NE(status.message().find("row "), std::string::npos) << status.message();
      for (std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
    }
  });
}

// Zeros, constants, subnormals and the ends of fp16: either refused with nothing written, or finite and within the row's size.
// Calibrated keys have the model's steps, not the row's: a row of zeros is decoded as what the tables have nearest to zero, and a
// row far out as the outermost there is. There the size of the model's own rows counts where it is larger.
TEST(Contract, ExtremeRowsWorkOrAreRefused) {
  for_every_codec(
      [](const Codec& codec) {
        const uint32_t d = codec.shape().head_dim;
        double own = 0.0;
        if (calibrated(codec)) {
          for (const float x : rows_for(codec)) own = std::max<double>(own, std::fabs(x));
        }
        for (const float size : {0.0f, 1e-41f, 3e-39f, 1e-20f, 6e-8f, 1e-4f, 60000.0f, 65504.0f, 1e30f, 3e38f}) {
          for (int kind = 0; kind < 3; ++kind) {
            std::vector<float> rows(static_cast<size_t>(codec.shape().tokens) * d);
            for (size_t i = 0; i < rows.size(); ++i)
              rows[i] = kind == 0 ? size : kind == 1 ? (i % 3 == 0 ? -size : size) : (i % 37 == 0 ? size : 0.0f);
            std::vector<std::byte> bytes(codec.bytes(), std::byte{0x5A});
            if (const Status status = codec.encode(rows.data(), kContext, bytes); !status.ok()) {
              ASSERT_EQ(status.code(), StatusCode::invalid_argument);
              ASSERT_GE(size, 60000.0f) << status.message();
              for (std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
              continue;
            }
            ASSERT_TRUE(codec.validate(bytes).ok());
            std::vector<float> back(rows.size());
            codec.decode(bytes, kContext, 0, codec.shape().tokens, back.data());
            const double most = std::max(static_cast<double>(size), own) * std::sqrt(d) * 2.5 + 1e-6;
            for (float x : back) ASSERT_LE(std::fabs(x), most) << "size " << size << " kind " << kind;
          }
        }
      },
      [](const BlockShape& shape) { return shape.tokens <= 48; });
}

TEST(Contract, DamagedMetadataIsRefusedOrStaysFinite) {
  for_every_codec(
      [](const Codec& codec) {
        const std::vector<std::byte> good = encode(codec, rows_for(codec));
        if (good.empty()) return;  // a head to which the tables give no bits
        std::mt19937 rng(kSeed);
        for (int round = 0; round < 20; ++round) {
          std::vector<std::byte> bad = good;
          for (int i = 0; i < 40; ++i)
            bad[bad.size() - 1 - rng() % std::min<size_t>(bad.size(), 600)] = std::byte{static_cast<uint8_t>(i % 2 ? 0xFF : rng())};
          if (!codec.validate(bad).ok()) continue;
          std::vector<float> back(static_cast<size_t>(codec.shape().tokens) * codec.shape().head_dim);
          codec.decode(bad, kContext, 0, codec.shape().tokens, back.data());
          for (float x : back) ASSERT_TRUE(std::isfinite(x));
        }
      },
      [](const BlockShape& shape) { return shape.tokens == 64; });
}

}  // namespace
}  // namespace tierkv::quant
