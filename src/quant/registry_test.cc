#include "quant/registry.h"

#include <gtest/gtest.h>

namespace tierkv::quant {
namespace {

TEST(Registry, IdsAndNamesAreUnique) {
  for (const CodecRow& a : codec_rows()) {
    for (const CodecRow& b : codec_rows()) {
      if (&a == &b) continue;
      EXPECT_NE(a.id, b.id);
      EXPECT_STRNE(a.name, b.name);
    }
    EXPECT_EQ(find_codec_row(a.id), &a);
  }
  EXPECT_EQ(find_codec_row(0), nullptr);
}

// Stored in every block: this list only ever grows.
TEST(Registry, IdsNeverChange) {
  const char* names[] = {"fp16", "bf16",    "int8",  "kivi", "asym", "sym",  "turbo", "rot",
                         "klt",  "kvquant", "squat", "mid",  "kltk", "even", "oscar"};
  for (uint16_t id = 1; id <= 14; ++id) {
    ASSERT_NE(find_codec_row(id), nullptr);
    EXPECT_STREQ(find_codec_row(id)->name, names[id - 1]);
  }
}

TEST(Registry, TextRoundTrips) {
  for (const CodecRow& row : codec_rows()) {
    for (int bits = row.min_bits; bits <= row.max_bits; ++bits) {
      for (uint32_t flags = 0; flags < 32; ++flags) {
        if ((flags & ~row.allowed_flags) != 0 || (flags & 6) == 6) continue;
        for (uint16_t group : {0, 64}) {
          if (group != 0 && !row.takes_group) continue;
          for (uint8_t top : {0, 1, 32}) {
            if (top != 0 && bits == 0) continue;
            CodecSpec spec{row.id, static_cast<uint8_t>(bits), top, group, static_cast<uint16_t>(flags)};
            const auto parsed = parse_codec(to_string(spec));
            ASSERT_TRUE(parsed.ok()) << to_string(spec) << ": " << parsed.status().message();
            EXPECT_EQ(*parsed, spec) << to_string(spec);
          }
        }
      }
    }
  }
  EXPECT_EQ(to_string(*parse_codec("kivi2-g64+clip+s8")), "kivi2-g64+s8+clip");
  EXPECT_EQ(to_string(*parse_codec("kivi2+top4+clip")), "kivi2+clip+top4");
  EXPECT_EQ(to_string(*parse_codec_pair("klt1.5+top4")), "klt1.5+top4");
  EXPECT_EQ(to_string(*parse_codec_pair("kltk1.5+top4")), "kltk1.5+top4") << "better keys alone";
}

TEST(Registry, PairsSplitAtTheSlash) {
  const auto one = parse_codec_pair("kivi2"), two = parse_codec_pair("kivi4+had/kivi2-g32");
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->key, one->value);
  EXPECT_EQ(to_string(*one), "kivi2");
  EXPECT_EQ(to_string(*two), "kivi4+had/kivi2-g32");
  EXPECT_FALSE(parse_codec_pair("kivi2/").ok());
  EXPECT_FALSE(parse_codec_pair("/kivi2").ok());
  EXPECT_FALSE(parse_codec_pair("kivi2/kivi2/kivi2").ok());
}

TEST(Registry, ErrorsNameTextProblemAndAllowed) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "unknown name; allowed: fp16"},
      {"kiwi2", "codec \"kiwi2\": unknown name"},
      {"kivi", "needs a width after its name; allowed: 1..16"},
      {"kivi17", "allowed: 1..16"},
      {"kivi0", "allowed: 1..16"},
      {"kivi999999999999", "width"},
      {"fp164", "takes no width"},
      {"fp16+clip", "does not take +clip"},
      {"fp16-g64", "takes no group"},
      {"kivi2-g20", "multiples of 16"},
      {"kivi2-g", "needs a group size"},
      {"kivi2-g0", "needs a group size"},
      {"kivi2-g512", "multiples of 16 up to"},
      {"kivi2+s8+s4", "exclude each other"},
      {"kivi2+s8+s8", "given twice"},
      {"turbo5", "allowed: 2..4"},
      {"rot2+had", "does not take +had"},
      {"sym9", "allowed: 2..8"},
      {"asym4-g64", "asym takes no group"},
      {"int84", "takes no width"},
      {"rot1", "allowed: 2..8"},
      {"kivi2+fast", "\"+fast\" is not understood"},
      {"kivi2 ", "is not understood"},
      {"kivi2+", "is not understood"},
      {"kivi2+top", "+top needs a number of rows; allowed: +top1..+top32"},
      {"kivi2+top0", "+top needs a number of rows"},
      {"kivi2+top4x", "+top needs a number of rows"},
      {"kivi2+top33", "+top33 is not supported; allowed: +top1..+top32"},
      {"kivi2+top999", "+top needs a number of rows"},
      {"kivi2+top4+top4", "+topN is given twice"},
      {"fp16+top4", "fp16 does not take +topN"},
      {"rot2+fast", "allowed after rot: +topN, none"},
  };
  for (const auto& c : cases) {
    const auto parsed = parse_codec(c.text);
    ASSERT_FALSE(parsed.ok()) << c.text;
    EXPECT_EQ(parsed.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(parsed.status().message().find(c.says), std::string::npos) << c.text << " -> " << parsed.status().message();
  }
}

TEST(Registry, WithBitsClampsToTheRow) {
  const CodecSpec kivi = *parse_codec("kivi4-g32+had");
  EXPECT_EQ(to_string(with_bits(kivi, 2)), "kivi2-g32+had");
  EXPECT_EQ(with_bits(kivi, 99).bits, 16);
  EXPECT_EQ(with_bits(kivi, -3).bits, 1);
  EXPECT_EQ(to_string(with_bits(*parse_codec("turbo3"), 8)), "turbo4");
  EXPECT_EQ(to_string(with_bits(*parse_codec("rot2"), 1)), "rot2");
  const CodecSpec fp16 = *parse_codec("fp16");
  EXPECT_EQ(with_bits(fp16, 4), fp16);
}

TEST(Registry, MakeRefusesWhatItDoesNotHave) {
  const BlockShape shape{64, 64};
  EXPECT_EQ(make_codec(CodecSpec{99, 2, 0, 0, 0}, Side::key, shape).status().code(), StatusCode::unsupported);
  EXPECT_FALSE(make_codec(CodecSpec{4, 17, 0, 0, 0}, Side::key, shape).ok());
  EXPECT_FALSE(make_codec(CodecSpec{1, 3, 0, 0, 0}, Side::key, shape).ok());
  EXPECT_FALSE(make_codec(CodecSpec{4, 2, 33, 0, 0}, Side::key, shape).ok());
  EXPECT_FALSE(make_codec(CodecSpec{1, 0, 1, 0, 0}, Side::key, shape).ok());
  EXPECT_EQ(make_codec(CodecSpec{99, 2, 1, 0, 0}, Side::key, shape).status().code(), StatusCode::unsupported);
  EXPECT_FALSE(make_codec(CodecSpec{4, 2, 0, 0, 0x8000}, Side::key, shape).ok());
  for (BlockShape bad :
       {BlockShape{0, 64}, BlockShape{257, 64}, BlockShape{64, 16}, BlockShape{64, 33}, BlockShape{64, 272}, BlockShape{8, 64}}) {
    EXPECT_EQ(make_codec(*parse_codec("kivi2"), Side::key, bad).status().code(), StatusCode::invalid_argument);
  }
  EXPECT_TRUE(make_codec(*parse_codec("fp16"), Side::key, BlockShape{1, 64}).ok());
}

}  // namespace
}  // namespace tierkv::quant
