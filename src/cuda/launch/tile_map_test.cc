// What the lanes of the general path take out of blocks, against reading.h: every readable codec, every tile.
#include "cuda/launch/tile_map.h"

#include <gtest/gtest.h>

#include "cuda/plan/scene_testing.h"

namespace tierkv::cuda {
namespace {

TEST(TileMap, PositionsAreAPermutation) {
  std::vector<int> seen(16);
  for (uint32_t g = 0; g < 8; ++g) ++seen[tile_position(g)], ++seen[tile_position(g) + 2];
  EXPECT_EQ(seen, std::vector<int>(16, 1));
}

TEST(TileMap, RootPowers) {
  for (int n = -60; n <= 60; ++n) EXPECT_FLOAT_EQ(root_power(n), std::exp2(0.5f * static_cast<float>(n))) << n;
}

// Codes of four positions of row `row` of a tile, all planes together.
template <class Words>
uint32_t codes_of(const quant::SideLayout& side, const uint8_t* bytes, uint32_t row, uint32_t j, const Words& words) {
  uint32_t codes = 0;
  for (const quant::LayoutPlane& plane : side.planes) {
    if (plane.bits == 0) continue;
    const PlaneWords at = words(plane);
    codes |= at.codes(load_word(bytes + at.offset(j) + 4 * row), j);
  }
  return codes;
}

void expect_codes(const quant::SideLayout& side, uint32_t codes, const float (&want)[kQuad]) {
  for (uint32_t k = 0; k < kQuad; ++k) {
    const uint32_t code = codes >> (8 * k) & 255u;
    EXPECT_EQ(side.has_levels ? side.levels[code] : static_cast<float>(code), want[k]);
  }
}

testing::SceneShape one_block_of(const std::string& name) {
  testing::SceneShape shape;
  shape.kv_heads = 1, shape.group = 1, shape.hot = 0;
  shape.codecs = {name};
  shape.lengths = {128};
  return shape;
}

// Codes of 16 positions from 16·step on, as bytes.
std::vector<uint32_t> sixteen_of(const quant::SideLayout& side, const uint8_t* bytes, uint32_t lane, uint32_t step) {
  uint32_t codes[4] = {};
  for (const quant::LayoutPlane& plane : side.planes) {
    if (plane.bits == 0) continue;
    uint32_t words[4] = {};
    for (uint32_t k = 0; k < std::max(1u, plane.bits / 2); ++k)
      words[k] = load_word(bytes + sixteen_at(plane, lane / 16, step, lane % 16) + 64 * k);
    add_sixteen(plane, words, step, codes);
  }
  return {codes, codes + 4};
}

TEST(TileMap, SixteenAtATimeAreThoseOfTheBlock) {
  for (const std::string& name : testing::readable_codecs()) {
    SCOPED_TRACE(name);
    const testing::Scene scene(one_block_of(name), 5);
    ASSERT_TRUE(scene.status().ok()) << scene.status().message();
    const attn::BlockView& view = scene.views(0)[0];
    CodecDesc codec;
    ASSERT_TRUE(readable(*view.key_codec, *view.value_codec, codec));
    for (const bool keys : {true, false}) {
      const quant::SideLayout& side = keys ? codec.key : codec.value;
      if (side.kind != quant::LayoutKind::packed) continue;
      const auto* bytes = reinterpret_cast<const uint8_t*>((keys ? view.keys : view.values).data());
      for (uint32_t lane = 0; lane < 128; ++lane) {
        for (uint32_t step = 0; step < 8; ++step) {
          const std::vector<uint32_t> codes = sixteen_of(side, bytes, lane, step);
          for (uint32_t k = 0; k < 4; ++k) {
            float want[kQuad];
            unpack_quad(side, bytes, lane, 4 * step + k, want);
            expect_codes(side, codes[k], want);
          }
        }
      }
    }
  }
}

TEST(TileMap, CodesAreThoseOfTheBlock) {
  for (const std::string& name : testing::readable_codecs()) {
    SCOPED_TRACE(name);
    const testing::Scene scene(one_block_of(name), 5);
    ASSERT_TRUE(scene.status().ok()) << scene.status().message();
    const attn::BlockView& view = scene.views(0)[0];
    CodecDesc codec;
    ASSERT_TRUE(readable(*view.key_codec, *view.value_codec, codec));
    const auto* keys = reinterpret_cast<const uint8_t*>(view.keys.data());
    const auto* values = reinterpret_cast<const uint8_t*>(view.values.data());
    for (uint32_t first = 0; first < 128; first += 16) {
      for (uint32_t i = 0; i < 16 * 8 * 4; ++i) {
        const uint32_t row = i / 32, j = i / 4 % 8, t = i % 4;
        float want[kQuad];
        if (codec.key.kind == quant::LayoutKind::packed) {
          unpack_quad(codec.key, keys, first + row, 4 * j + t, want);
          expect_codes(codec.key, codes_of(codec.key, keys, row, j, [&](const auto& p) { return key_words(p, first, t); }), want);
        } else if (codec.key.kind == quant::LayoutKind::words && 4 * (4 * j + t) < codec.key.components) {
          unpack_components(codec.key, keys, first + row, 4 * j + t, want);
          const WordQuad quad = word_quad(codec.key, 4 * j + t);
          expect_codes(codec.key, word_codes(load_word(keys + word_offset(codec.key, quad, first) + 4 * row), quad), want);
        }
        if (codec.value.kind == quant::LayoutKind::packed) {
          unpack_quad(codec.value, values, 16 * j + row, first / 4 + t, want);
          expect_codes(codec.value, codes_of(codec.value, values, row, j, [&](const auto& p) { return value_words(p, first, t); }),
                       want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::cuda
