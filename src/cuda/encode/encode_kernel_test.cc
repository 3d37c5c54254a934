// The encoders' kernel with all threads of a device, on the processor (simt_machine.h): the very bytes that the codecs make,
// whatever the order of the threads. Rows are ones that codecs take: of others many threads say so at once, all the same.
//
// ctest: threads
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <span>
#include <thread>
#include <utility>

#include "attn/cpu_backend.h"

#define TIERKV_SIMT
#include "cuda/encode/demote_testing.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::Demotions;
using testing::EncodeCase;
using testing::TwinMachine;

// Blocks of these cases and rows, by one launch and by their codecs.
void compare(const std::vector<EncodeCase>& cases, const quant::Codec* guide) {
  constexpr std::array<uint32_t, 4> kKinds = {0, 7, 9, 13};
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<std::byte>> made, wanted;
  std::vector<attn::EncodeWork> works;
  for (const EncodeCase& of : cases) {
    for (const uint32_t kind : kKinds) {
      const uint32_t position = kind % 3 == 0 ? 0 : 131 * kind;
      quant::BlockContext ctx{0, 0, position};
      ctx.guide = guide;
      rows.push_back(testing::rows_of_kind(of, kind, position));
      made.emplace_back(of.codec->bytes()), wanted.emplace_back(of.codec->bytes());
      ASSERT_TRUE(of.codec->encode(rows.back().data(), ctx, wanted.back()).ok()) << of.name << ", rows of kind " << kind;
      works.push_back({of.codec.get(), rows.back().data(), ctx, made.back(), {}});
    }
  }
  TwinMachine machine;
  EncodeBatch batch(machine);
  batch.encode(works, attn::in_turn());
  EXPECT_EQ(batch.encoded(), works.size()) << "the kernel made them";
  for (size_t i = 0; i < works.size(); ++i) {
    ASSERT_TRUE(works[i].status.ok()) << works[i].status.message();
    ASSERT_EQ(made[i], wanted[i]) << cases[i / kKinds.size()].name << ", rows of kind " << kKinds[i % kKinds.size()];
  }
}

TEST(EncodeKernel, MakesTheBytesOfTheCodec) {
  for (const quant::BlockShape shape : {quant::BlockShape{64, 128}, quant::BlockShape{16, 32}, quant::BlockShape{48, 80}})
    compare(testing::encode_cases(shape), nullptr);
}

TEST(EncodeKernel, GuidedCodesAreTheCodecsToo) {
  for (const quant::BlockShape shape : {quant::BlockShape{16, 32}, quant::BlockShape{64, 64}}) {
    const auto guide = quant::testing::make_any_codec(quant::parse_codec("klt1.875").value(), quant::Side::key, shape);
    ASSERT_TRUE(guide.ok());
    std::vector<EncodeCase> cases = testing::encode_cases(shape);
    std::erase_if(cases, [](const EncodeCase& of) { return of.coding.layout.even == 0; });
    ASSERT_FALSE(cases.empty());
    compare(cases, guide->get());
  }
}

TEST(EncodeKernel, DemotedBlocksAreDecodedAsTheirCodecsDo) {
  TwinMachine machine;
  Demotions all({"even4", "rot4", "kivi4-g32", "mid4", "int8", "kivi4+had+center", "kivi3+s8", "turbo4", "fp16"},
                {"klt1.875", "kivi2-g32", "even3"}, {16, 32});
  EncodeBatch batch(machine);
  batch.encode(all.works, attn::in_turn());
  all.check();
  EXPECT_EQ(batch.encoded(), all.taken());
}

}  // namespace
}  // namespace tierkv::cuda
