#include "tiers/stream.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/f16.h"
#include "quant/registry.h"

namespace tierkv::tiers {
namespace {

constexpr uint32_t kDim = 32;

// One stream under a plan, with its originals.
class StreamTest : public ::testing::Test {
 protected:
  explicit StreamTest(size_t limit = 0, size_t headroom = 0, uint32_t signals = 1) : arena(limit, headroom) {
    env.arena = &arena;
    env.store = &blocks;
    env.head_dim = kDim;
    env.signals = signals;
    plan.hot = 16;
    plan.warm = 32;
    plan.sinks = 4;
    plan.warm_codec = entry("kivi8-g16", 16);
    plan.archive_codec = entry("kivi8-g16", 32);
    plan.raw_warm = entry("fp16", 16);
    plan.raw_archive = entry("fp16", 32);
    plan.sink_codec = entry("fp16", 4);
    s.tail.configure(kDim, signals, false);
  }
  ~StreamTest() override {
    destroy(env, s);
    for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t)
      EXPECT_EQ(arena.allocated(static_cast<MemoryTag>(t)), 0u) << "tag " << t;
  }

  const CodecEntry* entry(const char* name, uint32_t tokens) {
    return codecs.get(quant::parse_codec_pair(name).value(), tokens).value();
  }

  void push(uint32_t n, float size = 1.0f) {
    std::uniform_real_distribution<float> real(-size, size);
    for (uint32_t i = 0; i < n; ++i) {
      ASSERT_TRUE(s.tail.continue_at(arena, length));
      ASSERT_TRUE(s.tail.reserve(arena, 1, plan.tail_bound()));
      uint16_t* key;
      uint16_t* value;
      s.tail.push(length, key, value);
      for (uint32_t c = 0; c < kDim; ++c) key[c] = f32_to_f16(real(rng)), value[c] = f32_to_f16(real(rng));
      originals.resize(length);
      originals.emplace_back(key, key + kDim);
      if (env.signals) s.tail.stats_row(s.tail.rows() - 1)[0] = static_cast<float>(length);
      ++length;
      ASSERT_TRUE(settle(env, s, plan));
    }
  }
  std::vector<Tier> tiers() const {
    std::vector<Tier> out;
    for (const BlockRef& ref : s.blocks) out.push_back(ref.block.tier());
    return out;
  }
  std::vector<uint32_t> live() const {
    std::vector<uint32_t> out;
    live_positions(s, out);
    return out;
  }
  // Every live row is what was pushed, within `tolerance`, and its statistics came along.
  void check(float tolerance) {
    std::vector<float> key(kDim), stats;
    live_stats(env, s, stats);
    const auto positions = live();
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint32_t p = positions[i];
      ASSERT_TRUE(read_row(env, s, p, key.data(), nullptr)) << p;
      for (uint32_t c = 0; c < kDim; ++c) ASSERT_NEAR(key[c], f16_to_f32(originals[p][c]), tolerance) << p;
      ASSERT_TRUE(env.signals == 0 || stats[i] == static_cast<float>(p));
    }
  }

  Arena arena;
  BlockStore blocks{arena, payload_sizes};
  StreamEnv env;
  quant::CodecSet codecs{kDim};
  LayerPlan plan;
  HeadStream s;
  std::mt19937 rng{9};
  uint32_t length = 0;
  std::vector<std::vector<uint16_t>> originals;
};

TEST_F(StreamTest, TokensTravelThroughTheTiers) {
  push(35);  // one short of hot + block + sinks
  EXPECT_TRUE(s.blocks.empty());
  push(1);
  EXPECT_EQ(tiers(), (std::vector<Tier>{Tier::sink, Tier::warm}));
  EXPECT_EQ(s.tail.rows(), 16u);
  push(16 * 3);  // 64 warm tokens: 32 of them are due
  EXPECT_EQ(tiers(), (std::vector<Tier>{Tier::sink, Tier::archive, Tier::warm, Tier::warm}));
  std::vector<uint32_t> all(length);
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_EQ(live(), all);
  EXPECT_EQ(s.blocks[1].block.source(), plan.warm_codec) << "an archive block remembers what it was made from";
  check(0.02f);
}

// What it remembers of its warm blocks is what there is, whatever happened to them.
TEST_F(StreamTest, WarmRowsAreCountedAnewWhenBlocksChange) {
  const auto check_warm = [&] {
    const BlockList& list = s.blocks;
    size_t first = 0;
    uint64_t rows = 0;
    while (first < list.size() && list[first].block.tier() != Tier::warm) ++first;
    for (size_t i = first; i < list.size(); ++i) rows += list[i].live;
    EXPECT_EQ(s.warm().first, first);
    EXPECT_EQ(s.warm().rows, rows);
  };
  for (int round = 0; round < 40; ++round) {
    push(1 + rng() % 20);
    check_warm();
    const uint64_t version = s.blocks.version();
    check_warm();
    EXPECT_EQ(s.blocks.version(), version) << "to look changes nothing";
    if (rng() % 3 == 0) {
      std::vector<uint8_t> keep(live_rows(s));
      for (uint8_t& one : keep) one = rng() % 4 != 0;
      ASSERT_TRUE(evict_rows(env, s, plan, keep));
      check_warm();
    }
    if (rng() % 4 == 0) {
      const uint32_t to = length - rng() % std::min(length, 40u);
      ASSERT_TRUE(prepare_truncate(env, s, plan, to));
      truncate(env, s, plan, to);
      length = to;
      check_warm();
    }
  }
}

TEST_F(StreamTest, SinksAreExactForEver) {
  push(300);
  std::vector<float> key(kDim);
  for (uint32_t p = 0; p < 4; ++p) {
    ASSERT_TRUE(read_row(env, s, p, key.data(), nullptr));
    for (uint32_t c = 0; c < kDim; ++c) EXPECT_EQ(key[c], f16_to_f32(originals[p][c]));
  }
}

TEST_F(StreamTest, EvictedRowsDieAndHalfDeadNeighboursMerge) {
  push(200);
  const size_t blocks = s.blocks.size();
  std::vector<uint8_t> keep(live_rows(s));
  const auto before = live();
  std::vector<uint32_t> expected;
  for (size_t i = 0; i < keep.size(); ++i) {
    keep[i] = before[i] < 4 || i % 3 == 0 || i + 5 > keep.size();
    if (keep[i]) expected.push_back(before[i]);
  }
  ASSERT_TRUE(evict_rows(env, s, plan, keep));
  EXPECT_EQ(live(), expected);
  EXPECT_LT(s.blocks.size(), blocks) << "merged";
  check(0.04f);
  push(100);
  check(0.06f);
}

TEST_F(StreamTest, EvictingEverythingButOneBlockFreesTheRest) {
  push(200);
  const size_t archive = arena.allocated(MemoryTag::archive);
  std::vector<uint8_t> keep(live_rows(s), 0);
  std::fill_n(keep.begin(), 4, uint8_t{1});
  keep.back() = 1;
  ASSERT_TRUE(evict_rows(env, s, plan, keep));
  EXPECT_EQ(live_rows(s), 5u);
  EXPECT_GT(archive, 0u);
  EXPECT_EQ(arena.allocated(MemoryTag::archive), 0u);
  EXPECT_EQ(arena.allocated(MemoryTag::warm), 0u);
}

TEST_F(StreamTest, TruncationCutsIntoEveryTier) {
  for (const uint32_t to : {150u, 149u, 120u, 70u, 30u, 5u, 4u, 3u, 1u, 0u}) {
    push(160 - length);
    ASSERT_TRUE(prepare_truncate(env, s, plan, to));
    truncate(env, s, plan, to);
    length = to;
    std::vector<uint32_t> expected(to);
    std::iota(expected.begin(), expected.end(), 0u);
    ASSERT_EQ(live(), expected);
    EXPECT_TRUE(to >= 4 || s.blocks.empty()) << "fewer tokens than sinks wait in the tail";
    check(0.04f);
  }
  push(100);
  EXPECT_EQ(tiers()[0], Tier::sink);
  EXPECT_EQ(s.blocks[0].rows, 4u);
}

TEST_F(StreamTest, ClonesShareBlocksAndTail) {
  push(150);
  HeadStream copy;
  const size_t hot = arena.allocated(MemoryTag::hot), warm = arena.allocated(MemoryTag::warm);
  ASSERT_TRUE(clone(env, s, copy));
  EXPECT_EQ(arena.allocated(MemoryTag::hot), hot);
  EXPECT_EQ(arena.allocated(MemoryTag::warm), warm);
  std::vector<uint8_t> keep(live_rows(copy), 1);
  for (size_t i = 10; i < 140; ++i) keep[i] = i % 2;
  ASSERT_TRUE(evict_rows(env, copy, plan, keep));
  EXPECT_EQ(live_rows(s), 150u);
  check(0.02f);
  destroy(env, copy);
  check(0.02f);
}

TEST_F(StreamTest, RowsACodecRefusesStayInSixteenBits) {
  // One bit over a range of 120000 needs a scale that FP16 does not have; the stream keeps such rows as they are instead of losing
  // them.
  plan.warm_codec = entry("kivi1-g16", 16);
  plan.warm = kAll;
  plan.archive_codec = nullptr;
  push(200, 60000.0f);
  EXPECT_EQ(live_rows(s), 200u);
  uint32_t kept = 0;
  for (const BlockRef& ref : s.blocks) kept += ref.block.codec() == plan.raw_warm;
  EXPECT_GT(kept, 5u);
  check(0.0f);
}

class WindowStreamTest : public StreamTest {
 protected:
  WindowStreamTest() {
    plan.sinks = 0;
    plan.window = 40;
    plan.slack = 8;
  }
};

TEST_F(WindowStreamTest, BlocksThatLeftTheWindowGo) {
  for (int i = 0; i < 300; ++i) {
    expire(env, s, plan, length);
    push(1);
    const uint32_t oldest = oldest_position(s, length);
    const uint32_t needed = length > 48 ? length - 48 : 0;
    ASSERT_LE(oldest, needed);
    ASSERT_GE(oldest + 32, needed) << "no more than a block is kept in vain";
  }
}

// Everything again in little memory: what fails must leave the rows where they were.
class TightStreamTest : public StreamTest {
 protected:
  TightStreamTest() : StreamTest(48 << 10, 8 << 10) {}
};

TEST_F(TightStreamTest, RunningOutOfMemoryLosesNothing) {
  std::uniform_real_distribution<float> real(-1.0f, 1.0f);
  bool full = false;
  while (!full) {
    if (!s.tail.continue_at(arena, length) || !s.tail.reserve(arena, 1, plan.tail_bound())) break;
    uint16_t* key;
    uint16_t* value;
    s.tail.push(length, key, value);
    for (uint32_t c = 0; c < kDim; ++c) key[c] = f32_to_f16(real(rng)), value[c] = f32_to_f16(real(rng));
    originals.emplace_back(key, key + kDim);
    s.tail.stats_row(s.tail.rows() - 1)[0] = static_cast<float>(length);
    ++length;
    full = !settle(env, s, plan) && s.tail.rows() > 60;
    ASSERT_EQ(live_rows(s), length);
  }
  EXPECT_GT(length, 100u);
  check(0.02f);
  // Relief has its own room: eviction still works, and afterwards there is room again.
  std::vector<uint8_t> keep(live_rows(s), 0);
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = i < 4 || i % 2 || i + 3 > keep.size();
  ASSERT_TRUE(evict_rows(env, s, plan, keep));
  check(0.04f);
  EXPECT_TRUE(settle(env, s, plan));
  check(0.04f);
}

}  // namespace
}  // namespace tierkv::tiers
