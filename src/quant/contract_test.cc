// What every row of the registry promises, at every width, on both sides and over the shapes models have.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "quant/frame.h"
#include "quant/isa.h"
#include "quant/registry.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kSeed = 20240607;

std::vector<float> random_rows(const BlockShape& shape, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(shape.tokens) * shape.head_dim), gain(shape.head_dim, 1.0f), shift(shape.head_dim);
  for (uint32_t c = 0; c < shape.head_dim; ++c) shift[c] = 0.5f * normal(rng);
  gain[3] = 8.0f;  // one outlier channel with a mean of its own
  shift[3] = 10.0f;
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = shift[i % shape.head_dim] + gain[i % shape.head_dim] * normal(rng);
  return rows;
}

double norm(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

// Every spec a row allows that behaves differently: each flag alone, and a few together.
std::vector<CodecSpec> specs_of(const CodecRow& row) {
  std::vector<CodecSpec> specs;
  const uint16_t combos[] = {0, 1, 2, 4, 8, 16, 1 | 16, 1 | 2 | 8, 1 | 4 | 16, 2 | 8 | 16};
  for (int bits = row.min_bits; bits <= row.max_bits; ++bits) {
    for (uint16_t flags : combos) {
      if ((flags & ~row.allowed_flags) != 0) continue;
      if (flags != 0 && bits > 4 && bits != 8) continue;
      specs.push_back({row.id, static_cast<uint8_t>(bits), 0, 0, flags});
      if (row.takes_group && flags <= 2 && bits <= 4) specs.push_back({row.id, static_cast<uint8_t>(bits), 0, 32, flags});
    }
  }
  return specs;
}

const BlockShape kShapes[] = {{16, 32}, {64, 64}, {64, 80}, {128, 96}, {128, 128}, {256, 256}, {48, 112}};

// TIERKV_TEST_BRIEF, for emulated processors: long blocks only for the plain form of each codec and width. Every row, width and
// flag is met.
bool too_long(const CodecSpec& spec, const BlockShape& shape) {
  static const bool brief = std::getenv("TIERKV_TEST_BRIEF") != nullptr;
  if (brief && shape.tokens >= 128) return shape.tokens > 128 || spec.flags != 0 || spec.group != 0;
  return shape.tokens == 256 && spec.flags != 0 && spec.bits > 2;  // keeps the run short
}

template <class Fn>
void for_every_codec(Fn&& fn) {
  for (const CodecRow& row : codec_rows()) {
    if (row.calibrated()) continue;  // these have tests of their own, with tables
    for (const CodecSpec& spec : specs_of(row)) {
      for (const BlockShape& shape : kShapes) {
        if (too_long(spec, shape)) continue;
        for (Side side : {Side::key, Side::value}) {
          auto codec = make_codec(spec, side, shape);
          ASSERT_TRUE(codec.ok()) << to_string(spec) << ": " << codec.status().message();
          SCOPED_TRACE(to_string(spec) + (side == Side::key ? " keys " : " values ") + std::to_string(shape.tokens) + "x" +
                       std::to_string(shape.head_dim) + " seed " + std::to_string(kSeed));
          fn(**codec);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& rows) {
  std::vector<std::byte> bytes(codec.bytes());
  const Status status = codec.encode(rows.data(), {}, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

TEST(Contract, WritesEveryByteAndNothingElseAndTheSameEachTime) {
  for_every_codec([](const Codec& codec) {
    const std::vector<float> rows = random_rows(codec.shape(), kSeed);
    std::vector<std::byte> a(codec.bytes() + 8, std::byte{0xAA}), b(codec.bytes() + 8, std::byte{0x55});
    ASSERT_TRUE(codec.encode(rows.data(), {}, std::span(a).first(codec.bytes())).ok());
    ASSERT_TRUE(codec.encode(rows.data(), {}, std::span(b).first(codec.bytes())).ok());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), codec.bytes()), 0) << "a byte was left as it was, or two runs differ";
    for (size_t i = codec.bytes(); i < a.size(); ++i) ASSERT_EQ(a[i], std::byte{0xAA});
    ASSERT_TRUE(codec.validate(std::span(a).first(codec.bytes())).ok());
    ASSERT_FALSE(codec.validate(std::span(a).first(codec.bytes() - 1)).ok());
    ASSERT_FALSE(codec.encode(rows.data(), {}, a).ok()) << "a span of the wrong size";
  });
}

TEST(Contract, BytesStayNearTheBitsOfTheCode) {
  for_every_codec([](const Codec& codec) {
    const double values = static_cast<double>(codec.shape().tokens) * codec.shape().head_dim;
    const double bits = 8.0 * static_cast<double>(codec.bytes()) / values;
    const int width = codec.spec().bits != 0 ? codec.spec().bits : codec.spec().id == 3 ? 8 : 16;
    ASSERT_GE(bits, width);
    if (codec.shape().tokens % 32 == 0 && codec.shape().head_dim % 32 == 0 && codec.shape().tokens >= 64) {
      ASSERT_LE(bits, width + 2.2);
    }
  });
}

TEST(Contract, DecodeErrorFallsWithBits) {
  for_every_codec([](const Codec& codec) {
    const std::vector<float> rows = random_rows(codec.shape(), kSeed);
    const std::vector<std::byte> bytes = encode(codec, rows);
    std::vector<float> back(rows.size());
    codec.decode(bytes, {}, 0, codec.shape().tokens, back.data());
    double e = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(std::isfinite(back[i]));
      e += std::pow(static_cast<double>(back[i]) - rows[i], 2);
    }
    const bool symmetric = codec.spec().id == 3 || codec.spec().id == 6;
    const int width = (codec.spec().bits != 0 ? codec.spec().bits : codec.spec().id == 2 ? 7 : 8) - (symmetric ? 1 : 0);
    const double relative = std::sqrt(e) / norm(rows.data(), rows.size());
    // A grid over the whole range of a row with one value ten times the others is the worst of these.
    ASSERT_LE(relative, 4.0 / ((1 << std::min(width, 11)) - 1) + ((codec.spec().flags & 6) != 0 ? 0.15 : 0.0));
    // Rows out of order and alone are the same rows.
    std::vector<float> one(codec.shape().head_dim);
    for (uint32_t t : {codec.shape().tokens - 1, 0u, codec.shape().tokens / 2}) {
      codec.decode(bytes, {}, t, 1, one.data());
      ASSERT_EQ(std::memcmp(one.data(), back.data() + static_cast<size_t>(t) * one.size(), one.size() * 4), 0);
    }
  });
}

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
    const std::vector<std::byte> bytes = encode(codec, random_rows(codec.shape(), kSeed));
    std::vector<float> back(static_cast<size_t>(tokens) * d);
    codec.decode(bytes, {}, 0, tokens, back.data());
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
        codec.scores(bytes, {}, rotated.data(), count, rows, out.data(), stride, ws);
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
    const std::vector<std::byte> bytes = encode(codec, random_rows(codec.shape(), kSeed));
    std::vector<float> back(static_cast<size_t>(tokens) * d);
    codec.decode(bytes, {}, 0, tokens, back.data());
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
        codec.accumulate(bytes, {}, w.data(), stride, count, rows, acc.data(), ws);
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
  for (const char* name : {"rot2", "turbo2"}) {
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

TEST(Contract, NonFiniteRowsAreRefusedAndNothingIsWritten) {
  for_every_codec([](const Codec& codec) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> rows = random_rows(codec.shape(), kSeed);
      rows[rows.size() / 2 + 5] = bad;
      std::vector<std::byte> bytes(codec.bytes(), std::byte{0x5A});
      const Status status = codec.encode(rows.data(), {}, bytes);
      ASSERT_EQ(status.code(), StatusCode::invalid_argument);
      ASSERT_NE(status.message().find("row "), std::string::npos) << status.message();
      for (std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
    }
  });
}

// Zeros, constants, subnormals and the ends of fp16: either refused with nothing written, or finite and within the row's size.
TEST(Contract, ExtremeRowsWorkOrAreRefused) {
  for_every_codec([](const Codec& codec) {
    if (codec.shape().tokens > 48) return;
    const uint32_t d = codec.shape().head_dim;
    for (const float size : {0.0f, 1e-41f, 3e-39f, 1e-20f, 6e-8f, 1e-4f, 60000.0f, 65504.0f, 1e30f, 3e38f}) {
      for (int kind = 0; kind < 3; ++kind) {
        std::vector<float> rows(static_cast<size_t>(codec.shape().tokens) * d);
        for (size_t i = 0; i < rows.size(); ++i)
          rows[i] = kind == 0 ? size : kind == 1 ? (i % 3 == 0 ? -size : size) : (i % 37 == 0 ? size : 0.0f);
        std::vector<std::byte> bytes(codec.bytes(), std::byte{0x5A});
        if (const Status status = codec.encode(rows.data(), {}, bytes); !status.ok()) {
          ASSERT_EQ(status.code(), StatusCode::invalid_argument);
          ASSERT_GE(size, 60000.0f) << status.message();
          for (std::byte b : bytes) ASSERT_EQ(b, std::byte{0x5A});
          continue;
        }
        ASSERT_TRUE(codec.validate(bytes).ok());
        std::vector<float> back(rows.size());
        codec.decode(bytes, {}, 0, codec.shape().tokens, back.data());
        const double most = static_cast<double>(size) * std::sqrt(d) * 2.5 + 1e-6;
        for (float x : back) ASSERT_LE(std::fabs(x), most) << "size " << size << " kind " << kind;
      }
    }
  });
}

TEST(Contract, DamagedMetadataIsRefusedOrStaysFinite) {
  for_every_codec([](const Codec& codec) {
    if (codec.shape().tokens != 64) return;
    const std::vector<std::byte> good = encode(codec, random_rows(codec.shape(), kSeed));
    std::mt19937 rng(kSeed);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::byte> bad = good;
      for (int i = 0; i < 40; ++i)
        bad[bad.size() - 1 - rng() % std::min<size_t>(bad.size(), 600)] = std::byte{static_cast<uint8_t>(i % 2 ? 0xFF : rng())};
      if (!codec.validate(bad).ok()) continue;
      std::vector<float> back(static_cast<size_t>(codec.shape().tokens) * codec.shape().head_dim);
      codec.decode(bad, {}, 0, codec.shape().tokens, back.data());
      for (float x : back) ASSERT_TRUE(std::isfinite(x));
    }
  });
}

TEST(Contract, FramesAreOrthonormal) {
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

TEST(Contract, HalfCodecsReadAnyNumberOfRows) {
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
