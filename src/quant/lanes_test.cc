#include "quant/lanes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tierkv::quant {
namespace {

TEST(Lanes, EveryWidthRoundTrips) {
  std::mt19937 rng(7);
  for (uint32_t bits = 1; bits <= 16; ++bits) {
    for (const auto& [lanes, depth] : {std::pair{16u, 32u}, {64u, 80u}, {48u, 112u}, {13u, 5u}, {256u, 256u}}) {
      const Lanes packer(lanes, depth, bits);
      std::vector<uint16_t> codes(lanes * depth);
      for (uint16_t& c : codes) c = static_cast<uint16_t>(rng() & ((1u << bits) - 1u));
      std::vector<std::byte> bytes(packer.bytes(), std::byte{0xCC});
      packer.pack(codes.data(), depth, 1, bytes.data());
      std::vector<float> tile(packer.tile_floats());
      for (uint32_t t = 0; t < packer.tiles(); ++t) {
        packer.unpack_tile(bytes.data(), t, 0, tile.data());
        for (uint32_t l = 0; l < 16; ++l) {
          for (uint32_t p = 0; p < depth; ++p) {
            const uint32_t lane = t * 16 + l, want = lane < lanes ? codes[lane * depth + p] : 0u;
            ASSERT_EQ(tile[p * 16 + l], static_cast<float>(want)) << bits << " bits, lane " << lane << ", position " << p;
            ASSERT_EQ(packer.get(bytes.data(), lane, p), want);
          }
        }
      }
    }
  }
}

TEST(Lanes, StridesTransposeTheCodes) {
  const uint32_t lanes = 32, depth = 64;
  const Lanes packer(lanes, depth, 3);
  std::vector<uint16_t> codes(lanes * depth), transposed(lanes * depth);
  for (uint32_t l = 0; l < lanes; ++l) {
    for (uint32_t p = 0; p < depth; ++p)
      transposed[p * lanes + l] = codes[l * depth + p] = static_cast<uint16_t>((l * 5 + p * 3) % 8);
  }
  std::vector<std::byte> a(packer.bytes()), b(packer.bytes());
  packer.pack(codes.data(), depth, 1, a.data());
  packer.pack(transposed.data(), 1, lanes, b.data());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0);
}

TEST(Lanes, NothingIsLostAtMultiplesOf32) {
  for (uint32_t bits = 1; bits <= 16; ++bits) {
    for (uint32_t depth : {32u, 64u, 96u, 128u, 256u}) EXPECT_EQ(Lanes(128, depth, bits).bytes(), 128u * depth * bits / 8) << bits;
  }
}

TEST(Lanes, PaddingIsToWholeWordsAndTiles) {
  EXPECT_EQ(Lanes(16, 80, 4).bytes(), 16u * 80 / 2);             // eight positions a word
  EXPECT_EQ(Lanes(16, 80, 1).bytes(), 16u * 3 * 4);              // 96 positions stored
  EXPECT_EQ(Lanes(16, 80, 3).bytes(), 16u * (5 * 4 + 3 * 4));    // two-bit plane, then one-bit plane
  EXPECT_EQ(Lanes(1, 32, 2).bytes(), Lanes(16, 32, 2).bytes());  // lanes to 16
}

// The exact bytes, written out: they are on disk, and the vector kernels are built on them.
TEST(Lanes, BytesAreAsDocumented) {
  const Lanes packer(16, 32, 3);
  std::vector<uint16_t> codes(16 * 32, 0);
  codes[2 * 32 + 21] = 0b101;  // lane 2, position 21
  std::vector<std::byte> bytes(packer.bytes());
  packer.pack(codes.data(), 32, 1, bytes.data());
  std::vector<std::byte> want(packer.bytes());
  // Two-bit plane: chunk 21/16 = 1, position 5 = 4·1 + 1 in it: byte 1, field 1 (bits 2..3) of word (1·16 + 2); high bits 10.
  want[(1 * 16 + 2) * 4 + 1] = std::byte{0b10 << 2};
  // One-bit plane after it: chunk 0, position 21 = 4·5 + 1: byte 1, bit 5 of word 2; low bit 1.
  want[2 * 16 * 4 + 2 * 4 + 1] = std::byte{1 << 5};
  EXPECT_EQ(bytes, want);
}

TEST(Lanes, PartialDepthUnpacksThePrefix) {
  const Lanes packer(16, 128, 2);
  std::vector<uint16_t> codes(16 * 128);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i * 7 % 4);
  std::vector<std::byte> bytes(packer.bytes());
  packer.pack(codes.data(), 128, 1, bytes.data());
  std::vector<float> tile(packer.tile_floats(), -1.0f);
  packer.unpack_tile(bytes.data(), 0, 17, tile.data());
  for (uint32_t p = 0; p < 17; ++p) EXPECT_EQ(tile[p * 16 + 3], codes[3 * 128 + p]);
  EXPECT_EQ(tile[32 * 16], -1.0f) << "unpacked past the chunk that was asked for";
}

}  // namespace
}  // namespace tierkv::quant
