// Blocks that a device encodes against those of the codecs themselves, byte for byte. Run by `make test-cuda`; needs a device.
// TIERKV_CUDA_BRIEF: less of it (brief_testing.h).
#include <gtest/gtest.h>

#include <cstring>

#include "attn/cpu_backend.h"
#include "base/f16.h"
#include "cuda/backend.h"
#include "cuda/brief_testing.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/encode/encode_testing.h"

namespace tierkv::cuda {
namespace {

using testing::EncodeCase;

std::unique_ptr<Machine> machine() {
  auto made = open_machine(0);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return nullptr;
  EXPECT_TRUE((*made)->enter().ok());
  return std::move(*made);
}

double squared_error(const quant::Codec& codec, std::span<const std::byte> bytes, uint32_t position, std::span<const float> rows) {
  std::vector<float> decoded(rows.size());
  codec.decode(bytes, {0, 0, position}, 0, codec.shape().tokens, decoded.data());
  double sum = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) sum += (double{decoded[i]} - rows[i]) * (double{decoded[i]} - rows[i]);
  return sum;
}

// 4-bit scales are powers of a ratio, and a device's pow() may round otherwise in the last place.
bool exact(const EncodeCase& of) { return of.coding.layout.meta != quant::MetaKind::log4_pair; }

// Where few are wanted: others for every shape, of both sides.
std::vector<EncodeCase> some_cases(quant::BlockShape shape) {
  return testing::every(testing::encode_cases(shape), 7, shape.tokens / 16 + shape.head_dim / 32);
}

class CudaEncodeShapes : public ::testing::TestWithParam<quant::BlockShape> {};

TEST_P(CudaEncodeShapes, MakesTheBytesOfTheCodec) {
  const auto device = machine();
  ASSERT_TRUE(device);
  EncodeBatch batch(*device);
  const std::vector<EncodeCase> cases = some_cases(GetParam());
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<std::byte>> made, wanted;
  std::vector<attn::EncodeWork> works, reference;
  for (const EncodeCase& of : cases) {
    for (uint32_t kind = 0; kind < testing::kRowKinds; ++kind) {
      const uint32_t position = kind % 3 == 0 ? 0 : 131 * kind + 20000 * (kind % 2);
      rows.push_back(testing::rows_of_kind(of, kind, position));
      made.emplace_back(of.codec->bytes()), wanted.emplace_back(of.codec->bytes());
      works.push_back({of.codec.get(), rows.back().data(), {0, 0, position}, made.back(), {}});
      reference.push_back({of.codec.get(), rows.back().data(), {0, 0, position}, wanted.back(), {}});
    }
  }
  batch.encode(works, attn::in_turn());
  attn::cpu_backend().encode(reference, attn::in_turn());
  uint32_t differ = 0, refused = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    const EncodeCase& of = cases[i / testing::kRowKinds];
    SCOPED_TRACE(of.name + (of.side == quant::Side::key ? " keys" : " values") + ", rows of kind " +
                 std::to_string(i % testing::kRowKinds));
    ASSERT_EQ(works[i].status.ok(), reference[i].status.ok()) << reference[i].status.message();
    refused += !works[i].status.ok();
    if (!works[i].status.ok() || made[i] == wanted[i]) continue;
    ++differ;
    EXPECT_FALSE(exact(of));
    ASSERT_TRUE(of.codec->validate(made[i]).ok());
    const uint32_t position = works[i].ctx.first_position;
    EXPECT_LE(squared_error(*of.codec, made[i], position, rows[i]), 1.001 * squared_error(*of.codec, wanted[i], position, rows[i]));
  }
  EXPECT_EQ(batch.encoded(), works.size() - refused) << "the device made them";
  EXPECT_LE(differ, std::max<size_t>(works.size() / 50, 1));
}

TEST_P(CudaEncodeShapes, MakesTheSameOfRowsOfATail) {
  const auto device = machine();
  ASSERT_TRUE(device);
  EncodeBatch batch(*device);
  const std::vector<EncodeCase> cases = some_cases(GetParam());
  std::vector<std::vector<uint16_t>> halves;
  std::vector<std::vector<std::byte>> made, wanted;
  std::vector<attn::EncodeWork> works, reference;
  for (const EncodeCase& of : cases) {
    for (const bool bf16 : {false, true}) {
      halves.emplace_back();
      for (const float x : testing::rows_of_kind(of, 0, 131)) halves.back().push_back(bf16 ? f32_to_bf16(x) : f32_to_f16(x));
      made.emplace_back(of.codec->bytes()), wanted.emplace_back(of.codec->bytes());
      const attn::TailRows tail{halves.back().data(), bf16, nullptr, 0, 0, false};
      works.push_back({of.codec.get(), nullptr, {0, 0, 131}, made.back(), {}, tail});
      reference.push_back({of.codec.get(), nullptr, {0, 0, 131}, wanted.back(), {}, tail});
    }
  }
  batch.encode(works, attn::in_turn());
  attn::cpu_backend().encode(reference, attn::in_turn());
  for (size_t i = 0; i < works.size(); ++i) {
    SCOPED_TRACE(cases[i / 2].name);
    ASSERT_TRUE(works[i].status.ok() && reference[i].status.ok()) << reference[i].status.message();
    if (exact(cases[i / 2])) {
      EXPECT_EQ(made[i], wanted[i]);
    }
  }
  EXPECT_EQ(batch.encoded(), works.size()) << "the device made them";
}

INSTANTIATE_TEST_SUITE_P(All, CudaEncodeShapes,
                         ::testing::Values(quant::BlockShape{64, 64}, quant::BlockShape{128, 64}, quant::BlockShape{64, 128},
                                           quant::BlockShape{128, 128}, quant::BlockShape{64, 256}, quant::BlockShape{128, 256},
                                           quant::BlockShape{16, 32}, quant::BlockShape{256, 64}, quant::BlockShape{128, 96}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.tokens) + "x" + std::to_string(shape.param.head_dim);
                         });

TEST(CudaEncode, GuidedCodesAreTheCodecsToo) {
  const auto device = machine();
  ASSERT_TRUE(device);
  // The batch knows codecs by their address: those of all shapes live as long as it does.
  std::vector<EncodeCase> cases;
  std::vector<std::unique_ptr<quant::Codec>> guides;
  EncodeBatch batch(*device);
  for (const quant::BlockShape shape : {quant::BlockShape{64, 64}, quant::BlockShape{64, 128}, quant::BlockShape{16, 32}}) {
    auto guide = quant::testing::make_any_codec(quant::parse_codec("klt1.875").value(), quant::Side::key, shape);
    ASSERT_TRUE(guide.ok());
    guides.push_back(std::move(*guide));
    std::vector<std::vector<float>> rows;
    std::vector<std::vector<std::byte>> made, wanted;
    std::vector<attn::EncodeWork> works, reference;
    const size_t first = cases.size();
    for (EncodeCase& of : testing::every(testing::encode_cases(shape), 3)) {
      if (of.coding.layout.even != 0) cases.push_back(std::move(of));
    }
    for (size_t i = first; i < cases.size(); ++i) {
      for (uint32_t kind = 0; kind < testing::kRowKinds; ++kind) {
        const uint32_t position = kind % 3 == 0 ? 0 : 131 * kind;
        rows.push_back(testing::rows_of_kind(cases[i], kind, position));
        made.emplace_back(cases[i].codec->bytes()), wanted.emplace_back(cases[i].codec->bytes());
        quant::BlockContext ctx{0, 0, position};
        ctx.guide = guides.back().get();
        works.push_back({cases[i].codec.get(), rows.back().data(), ctx, made.back(), {}});
        reference.push_back({cases[i].codec.get(), rows.back().data(), ctx, wanted.back(), {}});
      }
    }
    const uint64_t before = batch.encoded();
    batch.encode(works, attn::in_turn());
    attn::cpu_backend().encode(reference, attn::in_turn());
    uint32_t taken = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      SCOPED_TRACE(cases[first + i / testing::kRowKinds].name + ", rows of kind " + std::to_string(i % testing::kRowKinds));
      EXPECT_EQ(works[i].status.ok(), reference[i].status.ok());
      if (!reference[i].status.ok()) continue;
      ++taken;
      EXPECT_TRUE(made[i] == wanted[i]);
    }
    EXPECT_EQ(batch.encoded() - before, taken);
  }
}

// Rows of 16 bits in the device's memory, so far apart as a tail of many heads has them.
TEST(CudaEncode, TakesRowsOf16BitsThatLieApart) {
  const auto device = machine();
  ASSERT_TRUE(device);
  const quant::BlockShape shape{64, 128};
  const uint32_t stride = 3 * shape.head_dim + 8;
  for (const EncodeCase& of : testing::every(testing::encode_cases(shape), 5)) {
    if (of.coding.layout.kind == quant::LayoutKind::words) continue;  // its tables would have to be copied
    for (const RowType type : {RowType::f16, RowType::bf16}) {
      std::vector<float> rows = testing::rows_of_kind(of, 0, 0);
      std::vector<uint16_t> halves(static_cast<size_t>(shape.tokens) * stride, 0x7FFF);
      for (size_t i = 0; i < rows.size(); ++i) {
        uint16_t& half = halves[i / shape.head_dim * stride + i % shape.head_dim];
        half = type == RowType::f16 ? f32_to_f16(rows[i]) : f32_to_bf16(rows[i]);
        rows[i] = type == RowType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
      }
      DeviceMemory there(*device);
      const size_t rows_at = 4096, out_at = rows_at + line_rounded(halves.size() * 2), flag_at = out_at + of.codec->bytes() + 64;
      ASSERT_TRUE(there.reserve(flag_at / 4 * 4 + 4).ok());
      uint32_t* const flag = reinterpret_cast<uint32_t*>(there.data() + flag_at / 4 * 4);
      const EncodeDesc work{there.data() + rows_at, there.data() + out_at, flag, stride, 0, 0, type, kNoGuide};
      const EncodePart part;
      ASSERT_TRUE(device->send(there.data(), &of.coding, sizeof of.coding).ok());
      ASSERT_TRUE(device->send(there.data() + 1024, &work, sizeof work).ok());
      ASSERT_TRUE(device->send(there.data() + 1536, &part, sizeof part).ok());
      ASSERT_TRUE(device->send(there.data() + 2048, log8_table(), 1024).ok());
      ASSERT_TRUE(device->send(there.data() + rows_at, halves.data(), halves.size() * 2).ok());
      EncodeLaunch launch;
      launch.codings = reinterpret_cast<const quant::SideCoding*>(there.data());
      launch.works = reinterpret_cast<const EncodeDesc*>(there.data() + 1024);
      launch.parts = reinterpret_cast<const EncodePart*>(there.data() + 1536);
      launch.num_parts = 1;
      launch.log8 = reinterpret_cast<const float*>(there.data() + 2048);
      launch.shared_bytes = encode_floats(of.coding) * sizeof(float);
      ASSERT_TRUE(device->encode(launch).ok());
      Staging back(*device);
      ASSERT_TRUE(back.reserve(of.codec->bytes()).ok());
      ASSERT_TRUE(device->fetch(back.data(), there.data() + out_at, of.codec->bytes()).ok());
      ASSERT_TRUE(device->wait().ok());
      std::vector<std::byte> wanted(of.codec->bytes());
      ASSERT_TRUE(of.codec->encode(rows.data(), {}, wanted).ok());
      if (exact(of)) {
        EXPECT_EQ(std::memcmp(back.data(), wanted.data(), wanted.size()), 0) << of.name;
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::cuda
