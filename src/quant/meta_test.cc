#include "quant/meta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/f16.h"

namespace tierkv::quant {
namespace {

std::vector<GroupFit> random_fits(uint32_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<GroupFit> fits(n);
  for (GroupFit& f : fits) {
    f.lo = -2.0f + 0.3f * normal(rng);
    f.hi = f.lo + 4.0f * std::exp(0.5f * normal(rng));
    f.scale = std::exp(normal(rng));
    f.zero = 3.0f * normal(rng);
  }
  return fits;
}

struct Decoded {
  std::vector<float> scales, offsets;
};

Decoded coded(const MetaFormat& format, const std::vector<GroupFit>& fits) {
  std::vector<std::byte> bytes(meta_bytes(format));
  const Status status = encode_meta(format, fits, bytes.data());
  EXPECT_TRUE(status.ok()) << status.message();
  Decoded d{std::vector<float>(fits.size()), std::vector<float>(fits.size())};
  decode_meta(format, bytes.data(), d.scales.data(), d.offsets.data());
  return d;
}

TEST(Meta, CoveringGridsSpanTheirGroups) {
  for (MetaKind kind : {MetaKind::f16_pair, MetaKind::log8_pair, MetaKind::log4_pair}) {
    for (uint32_t levels : {2u, 4u, 16u, 256u}) {
      const std::vector<GroupFit> fits = random_fits(150, 1);
      const Decoded d = coded({kind, Rounding::cover, 150, levels, 0.0f}, fits);
      for (size_t i = 0; i < fits.size(); ++i) {
        ASSERT_LE(d.offsets[i], fits[i].lo);
        ASSERT_GE(d.offsets[i] + static_cast<double>(d.scales[i]) * (levels - 1), fits[i].hi - 1e-5);
      }
    }
  }
}

TEST(Meta, CodedScalesAreWithinTheirStep) {
  const std::vector<GroupFit> fits = random_fits(200, 2);
  const Decoded log8 = coded({MetaKind::log8_scale, Rounding::nearest, 200, 4, 1.5f}, fits);
  for (size_t i = 0; i < fits.size(); ++i) {
    ASSERT_NEAR(log8.scales[i] / fits[i].scale, 1.0, 0.0115);
    ASSERT_FLOAT_EQ(log8.offsets[i], -1.5f * log8.scales[i]);
  }
  const Decoded pair = coded({MetaKind::log8_pair, Rounding::nearest, 200, 4, 0.0f}, fits);
  for (size_t i = 0; i < fits.size(); ++i) {
    ASSERT_NEAR(pair.scales[i] / ((fits[i].hi - fits[i].lo) / 3), 1.0, 0.0115);
    ASSERT_NEAR(pair.offsets[i], fits[i].lo, 0.006);
  }
}

TEST(Meta, ZeroScalesStayZero) {
  std::vector<GroupFit> fits(70);
  fits[3].scale = 5.0f;
  const Decoded d = coded({MetaKind::log8_scale, Rounding::nearest, 70, 4, 1.5f}, fits);
  for (size_t i = 0; i < fits.size(); ++i) ASSERT_EQ(d.scales[i], i == 3 ? 5.0f : 0.0f);
  for (MetaKind kind : {MetaKind::log8_pair, MetaKind::log4_pair, MetaKind::f16_pair}) {
    const Decoded zero = coded({kind, Rounding::cover, 70, 4, 0.0f}, std::vector<GroupFit>(70));
    for (size_t i = 0; i < fits.size(); ++i) ASSERT_TRUE(zero.scales[i] == 0.0f && zero.offsets[i] == 0.0f);
  }
}

TEST(Meta, SizesAreAsDocumented) {
  const auto size = [](MetaKind kind, uint32_t n) { return meta_bytes({kind, Rounding::cover, n, 4, 0.0f}); };
  EXPECT_EQ(size(MetaKind::f16_pair, 128), 512u);
  EXPECT_EQ(size(MetaKind::f16_scale, 128), 256u);
  EXPECT_EQ(size(MetaKind::f32_scale, 128), 512u);
  EXPECT_EQ(size(MetaKind::f32_pair, 128), 1024u);
  EXPECT_EQ(size(MetaKind::log8_scale, 128), 132u);
  EXPECT_EQ(size(MetaKind::log8_pair, 128), 2u * 12 + 256);
  EXPECT_EQ(size(MetaKind::log4_pair, 80), 2u * 16 + 80);
}

TEST(Meta, BytesFromOutsideAreChecked) {
  const MetaFormat format{MetaKind::f16_pair, Rounding::cover, 4, 4, 0.0f};
  std::vector<std::byte> bytes(meta_bytes(format));
  EXPECT_TRUE(validate_meta(format, bytes.data()).ok());
  for (const uint16_t bad : {0x7C00, 0x7E00, 0xFC00, 0xBC00}) {  // infinity, NaN, -infinity, -1 as a scale
    std::vector<std::byte> damaged = bytes;
    damaged[2] = static_cast<std::byte>(bad & 255);
    damaged[3] = static_cast<std::byte>(bad >> 8);
    const Status status = validate_meta(format, damaged.data());
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_NE(status.message().find("group 1 "), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tierkv::quant
