// The encoders of a device, as a team of one, make the very bytes that the codecs make, and refuse the very rows.
#include <gtest/gtest.h>

#include "base/f16.h"
#include "cuda/encode/encode_testing.h"

namespace tierkv::cuda {
namespace {

using testing::EncodeCase;

struct Made {
  std::vector<std::byte> bytes;
  uint32_t refused = 0;
};

// By a launch of this one work.
Made encode_one(const EncodeCase& of, const void* rows, RowType type, uint32_t position,
                const quant::GuideTables* guide = nullptr) {
  Made made;
  made.bytes.assign(of.codec->bytes() + 16, std::byte{0xEE});
  const EncodeDesc work{rows,          reinterpret_cast<uint8_t*>(made.bytes.data()),
                        &made.refused, of.shape.head_dim,
                        position,      0,
                        type,          guide ? 0 : kNoGuide};
  std::vector<EncodePart> parts;
  for (uint32_t i = 0; i < encode_parts(of.coding); ++i) parts.push_back({0, i});
  EncodeLaunch launch;
  launch.codings = &of.coding;
  launch.works = &work;
  launch.parts = parts.data();
  launch.num_parts = static_cast<uint32_t>(parts.size());
  launch.log8 = log8_table();
  launch.guides = guide;
  launch.shared_bytes = encode_floats(of.coding, guide != nullptr) * sizeof(float);
  testing::encode_on_host(launch);
  for (size_t i = of.codec->bytes(); i < made.bytes.size(); ++i) EXPECT_EQ(made.bytes[i], std::byte{0xEE}) << "past the block";
  made.bytes.resize(of.codec->bytes());
  return made;
}

void compare(const EncodeCase& of, uint32_t kind, uint32_t position) {
  SCOPED_TRACE(of.name + (of.side == quant::Side::key ? " keys" : " values") + ", " + std::to_string(of.shape.tokens) + " x " +
               std::to_string(of.shape.head_dim) + ", rows of kind " + std::to_string(kind));
  const std::vector<float> rows = testing::rows_of_kind(of, kind, position);
  std::vector<std::byte> wanted(of.codec->bytes());
  const Status status = of.codec->encode(rows.data(), {0, 0, position}, wanted);
  const Made made = encode_one(of, rows.data(), RowType::f32, position);
  ASSERT_EQ(made.refused, status.ok() ? 0u : 1u) << status.message();
  if (status.ok()) {
    ASSERT_EQ(made.bytes, wanted);
  }
}

class EncodeShapes : public ::testing::TestWithParam<quant::BlockShape> {};

TEST_P(EncodeShapes, MakesTheBytesOfTheCodec) {
  const std::vector<EncodeCase> cases = testing::encode_cases(GetParam());
  ASSERT_GT(cases.size(), 20u);
  for (const EncodeCase& of : cases) {
    for (uint32_t kind = 0; kind < testing::kRowKinds; ++kind) {
      compare(of, kind, kind % 3 == 0 ? 0 : 131 * kind + 20000 * (kind % 2));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EncodeShapes,
                         ::testing::Values(quant::BlockShape{16, 32}, quant::BlockShape{64, 128}, quant::BlockShape{128, 128},
                                           quant::BlockShape{64, 64}, quant::BlockShape{128, 96}, quant::BlockShape{128, 256},
                                           quant::BlockShape{256, 64}, quant::BlockShape{48, 80}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.tokens) + "x" + std::to_string(shape.param.head_dim);
                         });

TEST(Encode, TakesRowsOf16BitsAsTheirFloats) {
  for (const EncodeCase& of : testing::encode_cases({64, 64})) {
    for (const RowType type : {RowType::f16, RowType::bf16}) {
      std::vector<float> rows = testing::rows_of_kind(of, 0, 77);
      std::vector<uint16_t> halves;
      for (float& x : rows) {
        halves.push_back(type == RowType::f16 ? f32_to_f16(x) : f32_to_bf16(x));
        x = type == RowType::f16 ? f16_to_f32(halves.back()) : bf16_to_f32(halves.back());
      }
      std::vector<std::byte> wanted(of.codec->bytes());
      ASSERT_TRUE(of.codec->encode(rows.data(), {0, 0, 77}, wanted).ok());
      ASSERT_EQ(encode_one(of, halves.data(), type, 77).bytes, wanted) << of.name;
    }
  }
}

TEST(Encode, GuidedCodesAreTheCodecsToo) {
  for (const quant::BlockShape shape : {quant::BlockShape{16, 32}, quant::BlockShape{64, 64}, quant::BlockShape{64, 128}}) {
    const auto guide = quant::testing::make_any_codec(quant::parse_codec("klt1.875").value(), quant::Side::key, shape);
    ASSERT_TRUE(guide.ok());
    quant::GuideTables tables;
    ASSERT_TRUE((*guide)->guide_tables(tables));
    uint32_t others = 0;
    for (const EncodeCase& of : testing::encode_cases(shape)) {
      if (of.coding.layout.even == 0) continue;
      ASSERT_TRUE(guidable(of.coding));
      for (uint32_t kind = 0; kind < testing::kRowKinds; ++kind) {
        SCOPED_TRACE(of.name + ", rows of kind " + std::to_string(kind));
        const uint32_t position = kind % 3 == 0 ? 0 : 131 * kind;
        const std::vector<float> rows = testing::rows_of_kind(of, kind, position);
        std::vector<std::byte> wanted(of.codec->bytes()), nearest(of.codec->bytes());
        quant::BlockContext ctx{0, 0, position};
        const bool plain = of.codec->encode(rows.data(), ctx, nearest).ok();
        ctx.guide = guide->get();
        const Status status = of.codec->encode(rows.data(), ctx, wanted);
        const Made made = encode_one(of, rows.data(), RowType::f32, position, &tables);
        ASSERT_EQ(made.refused, status.ok() ? 0u : 1u) << status.message();
        if (!status.ok()) continue;
        ASSERT_EQ(made.bytes, wanted);
        others += plain && nearest != wanted;
      }
    }
    EXPECT_GT(others, 10u) << "the guide changes codes";
  }
}

TEST(Encode, KnowsEveryCodecThatPresetsHave) {
  std::vector<std::string> keys;
  for (const EncodeCase& of : testing::encode_cases({128, 128})) {
    if (of.side == quant::Side::key) keys.push_back(of.name);
  }
  for (const char* name : {"fp16", "int8", "kivi4-g64", "kivi2-g32", "even4", "klt1.875", "klt2.5", "rot4", "mid2"})
    EXPECT_NE(std::find(keys.begin(), keys.end(), name), keys.end()) << name;
}

TEST(Encode, LeavesBetterRowsAndClippedGroupsToTheProcessor) {
  for (const char* name : {"kivi2+top4", "kivi2+clip", "turbo4", "kivi12"}) {
    const auto codec = quant::make_codec(quant::parse_codec(name).value(), quant::Side::key, {64, 64});
    quant::SideCoding coding;
    EXPECT_FALSE((*codec)->coding(coding) && codable(coding)) << name;
  }
}

}  // namespace
}  // namespace tierkv::cuda
