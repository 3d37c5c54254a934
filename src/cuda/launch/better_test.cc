// Better rows as a device has them: what the codec adds to its base, and in the order in which a warp's lanes take operands.
#include "cuda/launch/better.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cuda/plan/device_form.h"
#include "cuda/plan/plan.h"
#include "quant/frame.h"
#include "quant/overlaid.h"
#include "quant/registry.h"
#include "quant/table_testing.h"

namespace tierkv::cuda {
namespace {

using quant::Side;

struct Block {
  std::unique_ptr<quant::Codec> codec;
  quant::SideLayout layout;
  std::vector<std::byte> bytes, form;
};

void make_block(const char* name, Side side, uint32_t dim, Block& out) {
  const auto pair = quant::parse_codec_pair(name);
  ASSERT_TRUE(pair.ok());
  auto codec = quant::testing::make_any_codec(side == Side::key ? pair->key : pair->value, side, {128, dim});
  ASSERT_TRUE(codec.ok()) << codec.status().message();
  out.codec = std::move(*codec);
  ASSERT_TRUE(out.codec->layout(out.layout));
  std::vector<float> rows = quant::testing::random_rows({128, dim}, 3);
  if (quant::testing::calibrated(*out.codec)) rows = quant::testing::TableModel::of(dim).turned(std::move(rows), 0);
  out.bytes.resize(out.codec->bytes());
  ASSERT_TRUE(out.codec->encode(rows.data(), {}, out.bytes).ok());
  const auto form = device_form(*out.codec, out.layout, out.bytes, out.form);
  ASSERT_EQ(form.data(), out.form.data());
  ASSERT_EQ(form.size(), device_bytes(out.layout, out.codec->spec().top));
}

// Rows of keys are plain, those of values in the codec's frame; both to a 2,000th of the row's largest channel.
TEST(Better, RowsAreWhatTheCodecAdds) {
  for (const char* name : {"klt1.25+top4", "kivi2+top3", "rot2+top9", "even3+top32/mid2+top32"}) {
    for (const Side side : {Side::key, Side::value}) {
      for (const uint32_t dim : {64u, 96u, 128u}) {
        SCOPED_TRACE(std::string(name) + (side == Side::key ? " keys " : " values ") + std::to_string(dim));
        if (dim == 96 && std::string(name).starts_with("klt")) continue;
        Block block;
        make_block(name, side, dim, block);
        if (HasFatalFailure()) return;
        const uint32_t top = block.codec->spec().top;
        std::vector<uint32_t> indices(top);
        std::vector<float> rows(static_cast<size_t>(top) * dim);
        quant::better_rows(*block.codec, block.bytes, indices.data(), rows.data());
        if (side == Side::key) quant::from_frame(block.codec->frame(), rows.data(), top, dim);
        EXPECT_TRUE(std::equal(block.bytes.begin(), block.bytes.begin() + block.layout.bytes, block.form.begin()));
        const auto* at = reinterpret_cast<const uint8_t*>(block.form.data()) + padded_bytes(block.layout.bytes);
        for (uint32_t r = 0; r < padded_rows(top); ++r) {
          EXPECT_EQ(better_index(at, top, r), r < top ? indices[r] : kNoRow);
          float most = 0.0f;
          for (uint32_t c = 0; r < top && c < dim; ++c) most = std::max(most, std::fabs(rows[r * dim + c]));
          for (uint32_t c = 0; c < dim; ++c) {
            const float got = side == Side::key ? better_key(at, top, r, c) : better_value(at, top, r, c, dim);
            EXPECT_NEAR(got, r < top ? rows[r * dim + c] : 0.0f, most / 2000) << r << " " << c;
          }
        }
      }
    }
  }
}

// As klt.cuh loads them: lane (row, t) takes eight halves of 32 channels in one go, operands of two steps of the turned query.
TEST(Better, KeysLieInTheOrderOfOperands) {
  std::set<uint32_t> seen;
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t lane = 0; lane < 16; ++lane) {
      for (uint32_t k = 0; k < 8; ++k) {
        const uint32_t step = 2 * i + k / 4, channel = 16 * step + 8 * (k / 2 % 2) + 2 * (lane % 4) + k % 2;
        const uint32_t at = better_halves(kMostFastBetter) + i * 256 + lane * 16 + 2 * k;
        EXPECT_EQ(better_key_at(kMostFastBetter, lane / 4, channel), at);
        seen.insert(at);
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 128);
  EXPECT_EQ(*seen.rbegin() + 2, better_bytes(kMostFastBetter, 128));
}

// As fast.cuh does: lane (g, t) takes rows 2t and 2t+1 of four channels in one go.
TEST(Better, ValuesLieInTheOrderOfOperands) {
  for (uint32_t row = 0; row < 4; ++row) {
    for (uint32_t channel = 0; channel < 128; ++channel) {
      const uint32_t w = channel / 32, g = channel % 32 / 4, word = channel % 4;
      EXPECT_EQ(better_value_at(kMostFastBetter, row, channel, 128),
                better_halves(kMostFastBetter) + row / 2 * 512 + w * 128 + g * 16 + word * 4 + row % 2 * 2);
    }
  }
}

TEST(Better, ABlockWithoutThemStaysAsItIs) {
  const auto codec = quant::testing::make_any_codec(quant::parse_codec_pair("kivi2")->key, Side::key, {128, 128});
  ASSERT_TRUE(codec.ok());
  quant::SideLayout layout;
  ASSERT_TRUE((*codec)->layout(layout));
  const std::vector<std::byte> bytes((*codec)->bytes());
  std::vector<std::byte> room;
  EXPECT_EQ(device_form(**codec, layout, bytes, room).data(), bytes.data());
  EXPECT_TRUE(room.empty());
}

}  // namespace
}  // namespace tierkv::cuda
