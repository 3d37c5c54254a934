// contract_testing.h — what the contract tests share: every row of the registry, at every width, on both sides, with tables where
// it needs some, over the shapes models have.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "quant/table_testing.h"

namespace tierkv::quant::testing {

inline constexpr uint32_t kSeed = 20240607;
// Where the blocks of these tests begin. Codecs without tables do not look at it.
inline constexpr BlockContext kContext{0, 0, 260, nullptr};

inline double norm(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

// Every spec a row allows that behaves differently: each flag alone, a few together, and better rows over the narrow ones.
inline std::vector<CodecSpec> specs_of(const CodecRow& row) {
  std::vector<CodecSpec> specs;
  const uint16_t combos[] = {0, 1, 2, 4, 8, 16, 1 | 16, 1 | 2 | 8, 1 | 4 | 16, 2 | 8 | 16};
  for (const int bits : widths_of(row)) {
    for (uint16_t flags : combos) {
      if ((flags & ~row.allowed_flags) != 0) continue;
      if (flags != 0 && bits > 4 && bits != 8) continue;
      specs.push_back({row.id, static_cast<uint8_t>(bits), 0, 0, flags});
      if (row.takes_group && flags <= 2 && bits <= 4) specs.push_back({row.id, static_cast<uint8_t>(bits), 0, 32, flags});
      if (bits > 0 && bits <= 3 * row.parts && (flags & (flags - 1)) == 0)
        specs.push_back({row.id, static_cast<uint8_t>(bits), 4, 0, flags});
    }
  }
  return specs;
}

inline constexpr BlockShape kShapes[] = {{16, 32}, {64, 64}, {64, 80}, {128, 96}, {128, 128}, {256, 256}, {48, 112}};

// TIERKV_TEST_BRIEF, for emulated processors: long blocks only for the plain form of each codec and width. Every row, width and
// flag is met.
inline bool too_long(const CodecSpec& spec, const BlockShape& shape) {
  static const bool brief = std::getenv("TIERKV_TEST_BRIEF") != nullptr;
  if (brief && shape.tokens >= 128) return shape.tokens > 128 || spec.flags != 0 || spec.group != 0 || spec.top != 0;
  return shape.tokens == 256 && (spec.flags != 0 || spec.top != 0) && spec.bits > 2;  // keeps the run short
}

inline bool any_shape(const BlockShape&) { return true; }

// fn(codec) for every codec there is, in the shapes that `wanted` says. Fails when a row of the registry was not among them.
template <class Fn>
void for_every_codec(Fn&& fn, bool (*wanted)(const BlockShape&) = any_shape) {
  std::set<uint16_t> met;
  for (const CodecRow& row : codec_rows()) {
    for (const CodecSpec& spec : specs_of(row)) {
      for (const BlockShape& shape : kShapes) {
        if (too_long(spec, shape) || !wanted(shape)) continue;
        for (Side side : {Side::key, Side::value}) {
          auto codec = make_any_codec(spec, side, shape);
          if (!has_side(row, side)) {
            ASSERT_EQ(codec.status().code(), StatusCode::invalid_argument) << to_string(spec) << " codes keys alone";
            continue;
          }
          ASSERT_TRUE(codec.ok()) << to_string(spec) << ": " << codec.status().message();
          SCOPED_TRACE(to_string(spec) + (side == Side::key ? " keys " : " values ") + std::to_string(shape.tokens) + "x" +
                       std::to_string(shape.head_dim) + " seed " + std::to_string(kSeed));
          fn(**codec);
          if (::testing::Test::HasFatalFailure()) return;
          met.insert(row.id);
        }
      }
    }
  }
  ASSERT_EQ(met.size(), codec_rows().size()) << "a row of the registry was left out";
}

// Rows as the codec meets them at kContext.
inline std::vector<float> rows_for(const Codec& codec, uint32_t seed = kSeed) {
  std::vector<float> rows = random_rows(codec.shape(), seed);
  if (!calibrated(codec) || codec.side() != Side::key) return rows;
  return TableModel::of(codec.shape().head_dim).turned(std::move(rows), kContext.first_position);
}

inline std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& rows) {
  std::vector<std::byte> bytes(codec.bytes());
  const Status status = codec.encode(rows.data(), kContext, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

}  // namespace tierkv::quant::testing
