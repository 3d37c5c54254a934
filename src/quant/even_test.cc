#include "quant/even.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "quant/isa.h"
#include "quant/registry.h"
#include "quant/table_testing.h"

namespace tierkv::quant {
namespace {

constexpr BlockShape kShape{64, 128};

// Channel c spreads by spread(c) around 0.3·c.
template <class Spread>
std::vector<float> rows_of(const Spread& spread) {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(kShape.tokens) * kShape.head_dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t c = static_cast<uint32_t>(i % kShape.head_dim);
    rows[i] = 0.3f * static_cast<float>(c) + spread(c) * normal(rng);
  }
  return rows;
}

std::vector<std::byte> encoded(const Codec& codec, const std::vector<float>& rows) {
  std::vector<std::byte> bytes(codec.bytes());
  const Status status = codec.encode(rows.data(), {}, bytes);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return bytes;
}

// Mean squared error of each channel.
std::vector<double> errors_of(const char* name, const std::vector<float>& rows) {
  const auto codec = make_codec(*parse_codec(name), Side::key, kShape).value();
  std::vector<float> back(rows.size());
  codec->decode(encoded(*codec, rows), {}, 0, kShape.tokens, back.data());
  std::vector<double> errors(kShape.head_dim);
  for (size_t i = 0; i < rows.size(); ++i)
    errors[i % kShape.head_dim] += std::pow(static_cast<double>(back[i]) - rows[i], 2) / kShape.tokens;
  return errors;
}

double sum(const std::vector<double>& values, uint32_t from, uint32_t to) {
  double total = 0;
  for (uint32_t c = from; c < to; ++c) total += values[c];
  return total;
}

// Four channels are 40 times the others. One error for all is theirs; evened out, the small ones have a fraction of it.
TEST(Even, SmallChannelsDoNotDrownInLargeOnes) {
  const std::vector<float> rows = rows_of([](uint32_t c) { return c < 4 ? 40.0f : 1.0f; });
  for (const auto& [even, rot] : {std::pair("even2", "rot2"), std::pair("even3", "rot3"), std::pair("even4", "rot4")}) {
    const std::vector<double> with = errors_of(even, rows), without = errors_of(rot, rows);
    EXPECT_LT(sum(with, 4, kShape.head_dim), 0.2 * sum(without, 4, kShape.head_dim)) << even;
    EXPECT_LT(sum(with, 0, kShape.head_dim), 0.5 * sum(without, 0, kShape.head_dim)) << even;
  }
}

TEST(Even, ChannelsThatAreAlikeCostNothing) {
  const std::vector<float> rows = rows_of([](uint32_t) { return 1.0f; });
  for (const auto& [even, rot] : {std::pair("even2", "rot2"), std::pair("even4", "rot4")}) {
    const double with = sum(errors_of(even, rows), 0, kShape.head_dim), without = sum(errors_of(rot, rows), 0, kShape.head_dim);
    EXPECT_LT(with, 1.1 * without) << even;
  }
}

TEST(Even, SizeIsRotsAndTwoBytes) {
  for (const char* bits : {"2", "3", "4", "8"}) {
    const auto even = make_codec(*parse_codec(std::string("even") + bits), Side::key, kShape).value();
    const auto rot = make_codec(*parse_codec(std::string("rot") + bits), Side::key, kShape).value();
    EXPECT_EQ(even->bytes(), rot->bytes() + 2);
  }
}

TEST(Even, ValuesAreOfTheCodecThatIsBestAtTheirWidth) {
  const auto bytes = [](const char* name) { return make_codec(*parse_codec(name), Side::value, kShape).value()->bytes(); };
  EXPECT_EQ(bytes("even3"), bytes("mid3"));
  EXPECT_EQ(bytes("even4"), bytes("rot4"));
}

TEST(Even, SpreadsAndMeansThatCannotBeAreRefused) {
  const auto codec = make_codec(*parse_codec("even3"), Side::key, kShape).value();
  const std::vector<std::byte> good = encoded(*codec, rows_of([](uint32_t c) { return c < 4 ? 40.0f : 1.0f; }));
  ASSERT_TRUE(codec->validate(good).ok());
  for (const int base_wanted : {-201, 201, 32767, -32768}) {
    const int16_t base = static_cast<int16_t>(base_wanted);
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + bad.size() - sizeof base, &base, sizeof base);
    EXPECT_EQ(codec->validate(bad).code(), StatusCode::data_loss) << base;
  }
  std::vector<std::byte> bad = good;
  const uint16_t infinite = 0x7C00;
  std::memcpy(bad.data() + bad.size() - sizeof(int16_t) - sizeof infinite, &infinite, sizeof infinite);
  EXPECT_EQ(codec->validate(bad).code(), StatusCode::data_loss);
}

// --- with a guide: klt's tables of the same head

constexpr uint32_t kPosition = 700;

struct Guided {
  std::unique_ptr<Codec> guide, even;
  std::vector<float> rows, directions;
  uint32_t rank = 0;
  float floor = 0.0f;
};

Guided guided(const BlockShape& shape) {
  const testing::TableModel& model = testing::TableModel::of(shape.head_dim);
  Guided out;
  const calib::HeadTables tables = model.tables();
  out.guide = make_codec(*parse_codec("klt1.875"), Side::key, shape, &tables).value();
  out.even = make_codec(*parse_codec("even4"), Side::key, shape).value();
  out.rows = model.turned(testing::random_rows(shape, 5), kPosition);
  out.directions.resize(static_cast<size_t>(kMostDirections) * shape.head_dim);
  out.rank = out.guide->directions(kPosition, out.directions.data(), out.floor);
  return out;
}

std::vector<std::byte> encoded(const Guided& g, const Codec* guide) {
  BlockContext ctx{0, 0, kPosition, nullptr};
  ctx.guide = guide;
  std::vector<std::byte> bytes(g.even->bytes());
  const Status status = g.even->encode(g.rows.data(), ctx, bytes);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(g.even->validate(bytes).ok());
  return bytes;
}

// floor·|e|² + |De|², and |e|², over all rows.
std::pair<double, double> weight_of_errors(const Guided& g, const std::vector<std::byte>& bytes) {
  const BlockShape shape = g.even->shape();
  std::vector<float> back(g.rows.size());
  g.even->decode(bytes, {0, 0, kPosition, nullptr}, 0, shape.tokens, back.data());
  double seen = 0.0, squares = 0.0;
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    const size_t row = static_cast<size_t>(t) * shape.head_dim;
    for (uint32_t k = 0; k < g.rank; ++k) {
      double along = 0.0;
      for (uint32_t c = 0; c < shape.head_dim; ++c)
        along += static_cast<double>(g.directions[static_cast<size_t>(k) * shape.head_dim + c]) * (back[row + c] - g.rows[row + c]);
      seen += along * along;
    }
    for (uint32_t c = 0; c < shape.head_dim; ++c) squares += std::pow(static_cast<double>(back[row + c]) - g.rows[row + c], 2);
  }
  return {seen + g.floor * squares, squares};
}

TEST(Even, AGuideKeepsErrorsOutOfWhereQueriesLook) {
  for (const uint32_t dim : {64u, 128u}) {
    const Guided g = guided({64, dim});
    ASSERT_GT(g.rank, 4u);
    const auto with = weight_of_errors(g, encoded(g, g.guide.get())), without = weight_of_errors(g, encoded(g, nullptr));
    EXPECT_LT(with.first, 0.7 * without.first) << dim;
    EXPECT_LT(with.second, 2.0 * without.second) << dim;
  }
}

TEST(Even, AGuideThatKnowsNothingChangesNothing) {
  const Guided g = guided(kShape);
  EXPECT_EQ(encoded(g, g.even.get()), encoded(g, nullptr));
}

TEST(Even, AGuidedBlockIsTheSameOnEveryIsa) {
  const std::string_view before = active_isa();
  ASSERT_TRUE(set_active_isa("scalar"));
  const Guided g = guided(kShape);
  const std::vector<std::byte> bytes = encoded(g, g.guide.get());
  for (const std::string_view isa : available_isas()) {
    ASSERT_TRUE(set_active_isa(isa));
    EXPECT_EQ(encoded(g, g.guide.get()), bytes) << isa;
  }
  ASSERT_TRUE(set_active_isa(before));
}

}  // namespace
}  // namespace tierkv::quant
