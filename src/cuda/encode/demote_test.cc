// Blocks that are decoded where they are coded anew: the bits of their codecs, and nothing sent that the device has.
#include <gtest/gtest.h>

#include <cstring>

#include "attn/cpu_backend.h"
#include "cuda/encode/demote_testing.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/encode/encode_failing_testing.h"
#include "cuda/memory/codec_tables.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::Demotions;
using testing::kDecodable;
using testing::TwinMachine;

const std::vector<std::string> kArchives = {"klt1.875", "kltk2", "kivi2-g32", "rot2", "rot3", "mid2", "even3", "kivi4", "int8"};

// What is mirrored of a scene on a machine.
struct Mirrored {
  explicit Mirrored(Machine& of) : machine(of) {}
  void place(const std::vector<attn::BlockView>& views) {
    for (const attn::BlockView& view : views) {
      const auto codec = tables.find(*view.key_codec, *view.value_codec);
      ASSERT_TRUE(codec.ok()) << codec.status().message();
      ASSERT_TRUE(mirror.place(view, tables.on_host()[*codec]).ok());
    }
    changes.end_call(false);
  }
  Machine& machine;
  Bounce bounce{machine};
  Changes changes{machine};
  CodecTables tables{machine};
  Mirror mirror{machine, bounce, changes, 0};
};

TEST(Decode, GivesTheBitsOfTheCodec) {
  uint32_t compared = 0;
  for (const quant::BlockShape shape :
       {quant::BlockShape{64, 128}, quant::BlockShape{16, 32}, quant::BlockShape{128, 96}, quant::BlockShape{48, 80}}) {
    for (const std::string& name : kDecodable) {
      for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
        SCOPED_TRACE(name + (side == quant::Side::key ? " keys, " : " values, ") + std::to_string(shape.head_dim));
        auto made_codec = quant::make_codec(quant::parse_codec(name).value(), side, shape);
        ASSERT_TRUE(made_codec.ok());
        testing::EncodeCase of{name, side, shape, std::move(*made_codec), {}};
        ASSERT_TRUE(of.codec->layout(of.coding.layout) && decodable(of.coding.layout));
        of.coding.values = side == quant::Side::value;
        for (uint32_t kind = 0; kind < testing::kRowKinds; ++kind) {
          const std::vector<float> rows = testing::rows_of_kind(of, kind, 0);
          std::vector<std::byte> bytes(of.codec->bytes());
          if (!of.codec->encode(rows.data(), {}, bytes).ok()) continue;
          const auto* const from = reinterpret_cast<const uint8_t*>(bytes.data());
          for (const auto& [first, count] : {std::pair{0u, shape.tokens}, {5u, 1u}, {3u, 10u}, {shape.tokens - 3, 3u}}) {
            const uint32_t d = shape.head_dim, pitch = d + 1;
            std::vector<float> wanted(size_t{count} * d), made(size_t{count} * pitch, 77.0f);
            of.codec->decode(bytes, {}, first, count, wanted.data());
            decode_rows(Team(), of.coding, log8_table(), from, first, count, pitch, made.data());
            for (uint32_t t = 0; t < count; ++t) {
              ASSERT_EQ(std::memcmp(made.data() + size_t{t} * pitch, wanted.data() + size_t{t} * d, d * sizeof(float)), 0)
                  << "rows of kind " << kind << ", row " << first + t;
              ASSERT_EQ(made[size_t{t} * pitch + d], 77.0f) << "past the row";
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 4u * kDecodable.size() * 2 * 4 * 8);
}

TEST(Decode, LeavesComponentsToTheProcessor) {
  const auto klt = quant::testing::make_any_codec(quant::parse_codec("klt4").value(), quant::Side::key, {64, 64});
  quant::SideLayout layout;
  ASSERT_TRUE(klt.ok() && (*klt)->layout(layout));
  EXPECT_FALSE(decodable(layout));
}

TEST(Demote, TheProcessorDecodesWhatItEncodes) {
  std::vector<std::string> from = kDecodable, to = kArchives;
  from.push_back("klt4"), from.push_back("kivi4+top3");
  to.push_back("fp16"), to.push_back("rot2+top3");
  Demotions all(from, to, {32, 64});
  attn::cpu_backend().encode(all.works, attn::in_turn());
  all.check();
}

TEST(Demote, BlocksOnTheDeviceAreDecodedThereAndNothingIsSent) {
  for (const bool lazy : {false, true}) {
    TwinMachine machine({7, true}, 0, lazy);
    Demotions all({"even4", "rot4", "kivi4", "kivi4-g32", "mid4", "int8", "kivi8-g16", "kivi4+center+s8", "turbo4", "fp16"},
                  kArchives, {64, 64});
    Mirrored on(machine);
    EncodeBatch batch(machine);
    on.place(all.views);
    if (lazy) {  // they are on their way, and go as codes
      batch.encode(all.works, attn::in_turn(), nullptr, &on.mirror);
      all.check();
      EXPECT_GT(batch.bytes_sent(), 0u);
      ASSERT_TRUE(machine.wait().ok());
    }
    const uint64_t sent = batch.bytes_sent(), encoded = batch.encoded(), waits = machine.waits;
    batch.encode(all.works, attn::in_turn(), nullptr, &on.mirror);
    all.check();
    EXPECT_EQ(batch.bytes_sent(), sent);
    EXPECT_EQ(batch.encoded() - encoded, all.taken()) << "the device made them";
    EXPECT_EQ(machine.waits, waits);
  }
}

TEST(Demote, BlocksThatAreNotThereGoAsCodes) {
  TwinMachine machine;
  Demotions all({"even4", "rot4", "kivi4", "mid4"}, kArchives, {64, 128});
  EncodeBatch batch(machine);
  for (int round = 0; round < 2; ++round) {
    batch.encode(all.works, attn::in_turn());
    all.check();
  }
  EXPECT_EQ(batch.encoded(), 2 * all.taken());
  Demotions whole({"even4", "rot4", "kivi4", "mid4"}, {"klt1.875"}, {64, 128});
  std::erase_if(whole.works, [](const attn::EncodeWork& work) { return work.blocks.size() != 2; });
  const uint64_t before = batch.bytes_sent();
  batch.encode(whole.works, attn::in_turn());
  const uint64_t floats = whole.works.size() * 128 * 128;
  EXPECT_LE(batch.bytes_sent() - before, floats * 6 / 10) << "4 bits a number and a little, where floats were 32";
}

// What the device cannot decode goes there as floats, and what becomes 16-bit rows.
TEST(Demote, TheRestIsDecodedByTheProcessor) {
  std::vector<std::string> from = kDecodable, to = kArchives;
  from.push_back("klt4"), from.push_back("kivi4+top3"), from.push_back("klt2");
  to.push_back("fp16"), to.push_back("bf16"), to.push_back("rot2+top3"), to.push_back("kivi12");
  Demotions all(from, to, {32, 64});
  TwinMachine machine({7, true}, 0, true);
  Mirrored on(machine);
  EncodeBatch batch(machine);
  on.place({all.views.begin(), all.views.begin() + Demotions::kBlocks});
  for (int round = 0; round < 2; ++round) {
    batch.encode(all.works, attn::in_turn(), nullptr, &on.mirror);
    all.check();
    ASSERT_TRUE(machine.wait().ok());
  }
}

TEST(Demote, WhatFailsThereIsTheProcessors) {
  testing::for_failing_sends([] { return Demotions({"even4", "rot4", "klt4"}, {"klt1.875", "kivi2-g32", "fp16"}, {16, 64}); });
}

}  // namespace
}  // namespace tierkv::cuda
