// OSCAR as a codec: its matrices are rotations, more bits lose less, and damaged tables are refused.
#include "quant/oscar.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/f16.h"
#include "calib/calibration.h"
#include "quant/table_testing.h"

namespace tierkv::quant {
namespace {

constexpr BlockShape kShape{128, 64};
constexpr BlockContext kContext{0, 0, 388, nullptr};

double error_of(const char* name, Side side, const std::vector<float>& rows) {
  auto codec = testing::make_any_codec(*parse_codec(name), side, kShape);
  EXPECT_TRUE(codec.ok()) << codec.status().to_string();
  std::vector<std::byte> bytes((*codec)->bytes());
  std::vector<float> back(rows.size());
  EXPECT_TRUE((*codec)->encode(rows.data(), kContext, bytes).ok());
  (*codec)->decode(bytes, kContext, 0, kShape.tokens, back.data());
  double squares = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) squares += std::pow(static_cast<double>(rows[i]) - back[i], 2);
  return squares / static_cast<double>(rows.size());
}

TEST(Oscar, MatricesAreRotations) {
  const auto tables = testing::TableModel::of(64).calibration()->oscar_tables().value();
  for (const bool values : {false, true}) {
    const auto m = tables->of(0, 0, values);
    for (uint32_t a = 0; a < 64; ++a) {
      for (uint32_t b = 0; b < 64; ++b) {
        double sum = 0.0;
        for (uint32_t c = 0; c < 64; ++c) sum += static_cast<double>(f16_to_f32(m[a * 64 + c])) * f16_to_f32(m[b * 64 + c]);
        EXPECT_NEAR(sum, a == b ? 1.0 : 0.0, 5e-3);
      }
    }
  }
}

TEST(Oscar, MoreBitsLoseLess) {
  for (const Side side : {Side::key, Side::value}) {
    const auto rows = testing::random_rows(kShape, 3);
    const double two = error_of("oscar2", side, rows), three = error_of("oscar3", side, rows),
                 four = error_of("oscar4", side, rows);
    EXPECT_LT(three, 0.6 * two);
    EXPECT_LT(four, three);
  }
}

TEST(Oscar, TablesThatAreNoRotationsAreRefused) {
  const auto tables = *testing::TableModel::of(64).calibration()->oscar_tables().value();
  const calib::ModelId model = testing::TableModel::of(64).calibration()->model;
  const auto read = [&](const calib::OscarTables& t, size_t cut = 0) {
    ByteWriter out;
    t.write(out);
    ByteReader in(std::span<const std::byte>(out.bytes()).first(out.bytes().size() - cut));
    return calib::OscarTables::read(in, model);
  };
  ASSERT_TRUE(read(tables).ok());
  EXPECT_EQ(read(tables)->rotations, tables.rotations);
  EXPECT_EQ(read(tables, 1).status().code(), StatusCode::data_loss);
  calib::OscarTables other = tables;
  other.head_dim = 32;
  EXPECT_EQ(read(other).status().code(), StatusCode::invalid_argument);
  for (const uint16_t bad : {uint16_t{0x7C00}, uint16_t{0x7E00}, uint16_t{0x4400}}) {  // infinity, NaN, 4
    other = tables;
    other.rotations[77] = bad;
    EXPECT_EQ(read(other).status().code(), StatusCode::data_loss);
  }
}

}  // namespace
}  // namespace tierkv::quant
