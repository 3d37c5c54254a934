// Blocks that a device decodes and codes anew against what the codecs themselves make of them, byte for byte. Run by `make
// test-cuda`; needs a device. TIERKV_CUDA_BRIEF: less of it (brief_testing.h).
#include <gtest/gtest.h>

#include "attn/cpu_backend.h"
#include "cuda/backend.h"
#include "cuda/brief_testing.h"
#include "cuda/encode/demote_testing.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/memory/codec_tables.h"

namespace tierkv::cuda {
namespace {

using testing::Demotions;

const std::vector<std::string> kArchives = {"klt1.875", "klt2.5", "kivi2-g32", "rot2", "rot3", "mid2", "even3", "kivi4", "int8"};

class CudaDemoteShapes : public ::testing::TestWithParam<quant::BlockShape> {};

TEST_P(CudaDemoteShapes, MakesTheBytesOfTheProcessor) {
  auto device = open_machine(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  ASSERT_TRUE((*device)->enter().ok());
  std::vector<std::string> from = testing::kDecodable;
  from.push_back("klt4");
  Demotions all(testing::every(from, 5, GetParam().head_dim / 32), testing::every(kArchives, 3), GetParam());
  EncodeBatch batch(**device);
  batch.encode(all.works, attn::in_turn());  // as codes
  all.check();
  EXPECT_EQ(batch.encoded(), all.taken()) << "the device made them";
}

TEST_P(CudaDemoteShapes, MakesTheSameOfBlocksThatItHas) {
  auto device = open_machine(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Machine& machine = **device;
  ASSERT_TRUE(machine.enter().ok());
  const std::vector<std::string> from = {"even4",           "rot4",   "kivi4", "kivi4-g32", "mid4", "int8",
                                         "kivi4+center+s8", "turbo4", "fp16"};
  Demotions all(testing::every(from, 4, GetParam().head_dim / 32), testing::every(kArchives, 3, 1), GetParam());
  Bounce bounce(machine);
  Changes changes(machine);
  CodecTables tables(machine);
  Mirror mirror(machine, bounce, changes, 0);
  for (const attn::BlockView& view : all.views) {
    const auto codec = tables.find(*view.key_codec, *view.value_codec);
    ASSERT_TRUE(codec.ok()) << codec.status().message();
    ASSERT_TRUE(mirror.place(view, tables.on_host()[*codec]).ok());
  }
  ASSERT_TRUE(machine.wait().ok());
  changes.end_call(true);
  EncodeBatch batch(machine);
  batch.encode(all.works, attn::in_turn(), nullptr, &mirror);
  all.check();
  EXPECT_EQ(batch.encoded(), all.taken()) << "the device made them";
  EXPECT_EQ(batch.bytes_sent(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDemoteShapes,
                         ::testing::Values(quant::BlockShape{64, 64}, quant::BlockShape{64, 128}, quant::BlockShape{64, 96},
                                           quant::BlockShape{16, 32}, quant::BlockShape{32, 256}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.tokens) + "x" + std::to_string(shape.param.head_dim);
                         });

}  // namespace
}  // namespace tierkv::cuda
