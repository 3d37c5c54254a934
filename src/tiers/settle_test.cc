// The heads of a layer settle together: the same blocks as one by one, whoever shares the work, and as much in as little memory.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/f16.h"
#include "base/thread_pool.h"
#include "quant/key_box.h"
#include "quant/registry.h"
#include "tiers/seal.h"
#include "tiers/stream.h"

namespace tierkv::tiers {
namespace {

constexpr uint32_t kDim = 64, kHeads = 5;

// A layer's heads under a plan. `size` of head h's rows is sizes[h].
class Layer {
 public:
  explicit Layer(size_t limit = 0, size_t summary = 0) : arena(limit, limit / 8), blocks(arena, payload_sizes, nullptr, summary) {
    env.arena = &arena;
    env.store = &blocks;
    env.head_dim = kDim;
    env.signals = 1;
    env.mass = 0;
    plan.hot = 16;
    plan.warm = 32;
    plan.sinks = 4;
    plan.warm_codec = entry("even4", 16);
    plan.archive_codec = entry("kivi2-g16+top2", 32);
    plan.raw_warm = entry("fp16", 16);
    plan.raw_archive = entry("fp16", 32);
    plan.sink_codec = entry("fp16", 4);
    for (uint32_t h = 0; h < kHeads; ++h) {
      heads[h].tail.configure(kDim, 1, false);
      heads[h].head = h;
    }
  }
  ~Layer() {
    for (HeadStream& s : heads) destroy(env, s);
  }

  const CodecEntry* entry(const char* name, uint32_t tokens) {
    return codecs.get(quant::parse_codec_pair(name).value(), tokens).value();
  }

  // `count` rows of every head. False: no memory for the tails.
  bool push(uint32_t count, const std::vector<float>& sizes = {}) {
    for (uint32_t i = 0; i < count; ++i, ++length) {
      for (HeadStream& s : heads) {
        if (!s.tail.continue_at(arena, length) || !s.tail.reserve(arena, 1, plan.tail_bound())) return false;
        uint16_t *key, *value;
        s.tail.push(length, key, value);
        std::normal_distribution<float> real(0.0f, sizes.empty() ? 1.0f : sizes[s.head]);
        for (uint32_t c = 0; c < kDim; ++c) key[c] = f32_to_f16(real(rng)), value[c] = f32_to_f16(real(rng));
        s.tail.stats_row(s.tail.rows() - 1)[0] = std::fabs(real(rng));
      }
    }
    return true;
  }

  // All that the streams are: tiers, codecs, positions, statistics and bytes.
  std::vector<std::byte> image() const {
    std::vector<std::byte> out;
    const auto add = [&](const void* from, size_t bytes) {
      const auto* at = static_cast<const std::byte*>(from);
      out.insert(out.end(), at, at + bytes);
    };
    for (const HeadStream& s : heads) {
      for (const BlockRef& ref : s.blocks) {
        const Tier tier = ref.block.tier();
        const std::string name = quant::to_string(ref.block.codec()->pair);
        add(&tier, sizeof tier), add(name.data(), name.size()), add(&ref.first_position, 4), add(&ref.rows, 2);
        if (ref.stats) add(ref.stats, ref.rows * sizeof(float));
        const store::BlockBytes bytes = blocks.bytes(ref.block);
        add(bytes.keys.data(), bytes.keys.size()), add(bytes.values.data(), bytes.values.size());
        const auto summary = blocks.summary(ref.block);
        add(summary.data(), summary.size());
      }
      const uint32_t rows = s.tail.rows();
      add(&rows, sizeof rows);
    }
    return out;
  }
  size_t count(Tier tier) const {
    size_t n = 0;
    for (const HeadStream& s : heads) {
      for (const BlockRef& ref : s.blocks) n += ref.block.tier() == tier;
    }
    return n;
  }

  Arena arena;
  BlockStore blocks;
  StreamEnv env;
  quant::CodecSet codecs{kDim};
  LayerPlan plan;
  HeadStream heads[kHeads];
  std::mt19937 rng{5};
  uint32_t length = 0;
};

Executor on(ThreadPool& pool) {
  return [&pool](uint32_t count, const std::function<void(uint32_t)>& task) { pool.run(count, task); };
}

TEST(SettleTogether, GivesTheBlocksOfOneByOneWhateverTheThreads) {
  const size_t summary = quant::box_bytes(kDim);
  Layer alone(0, summary), together(0, summary);
  ThreadPool pool(4);
  for (const uint32_t step : {40u, 3u, 100u, 17u, 64u}) {
    ASSERT_TRUE(alone.push(step) && together.push(step));
    for (HeadStream& s : alone.heads) ASSERT_TRUE(settle(alone.env, s, alone.plan));
    ASSERT_TRUE(settle(together.env, together.heads, together.plan, on(pool)));
    ASSERT_EQ(alone.image(), together.image()) << "after " << alone.length << " tokens";
  }
  EXPECT_GT(together.count(Tier::archive), 0u);
  EXPECT_EQ(together.count(Tier::sink), kHeads);
}

TEST(SettleTogether, AHeadWhoseRowsACodecRefusesFallsBackAlone) {
  Layer layer;
  ThreadPool pool(3);
  ASSERT_TRUE(layer.push(120));
  // The mean of such a channel has no place in even4.
  for (uint32_t i = 0; i < layer.heads[2].tail.rows(); ++i) {
    for (uint32_t c = 0; c < kDim; ++c) layer.heads[2].tail.key_row(i)[c] = f32_to_f16(65504.0f);
  }
  ASSERT_TRUE(settle(layer.env, layer.heads, layer.plan, on(pool)));
  for (const HeadStream& s : layer.heads) {
    for (const BlockRef& ref : s.blocks) {
      if (ref.block.tier() != Tier::warm) continue;
      EXPECT_EQ(ref.block.codec() == layer.plan.raw_warm, s.head == 2) << "head " << s.head;
    }
  }
}

// Rows that stay in their blocks until they are coded are those that would be decoded first, dead ones left out and all: repeated
// where a block wants more of them.
TEST(SettleTogether, RowsInBlocksAreTheRowsAsFloats) {
  for (const uint32_t every : {1u, 2u, 3u, 7u}) {
    SCOPED_TRACE("of so many rows one stays: " + std::to_string(every));
    Layer layer;
    ASSERT_TRUE(layer.push(4 + 16 + 32));
    HeadStream& s = layer.heads[1];
    ASSERT_TRUE(settle(layer.env, s, layer.plan));
    BlockRef refs[2] = {s.blocks[1], s.blocks[2]};
    ASSERT_TRUE(refs[0].block.tier() == Tier::warm && refs[1].block.tier() == Tier::warm);
    std::vector<uint32_t> positions[2];
    for (int b = 0; b < 2; ++b) {
      for (uint32_t row = 0; row < 16; ++row) positions[b].push_back(row % every ? kDeadPosition : refs[b].first_position + row);
      refs[b].positions = positions[b].data(), refs[b].live = static_cast<uint16_t>((15 + every) / every);
    }
    RowBatch there, floats;
    for (const BlockRef& ref : refs) {
      there.refer_to_live_rows(layer.env, ref, 0, 1);
      floats.add_live_rows(layer.env, ref, 0, 1);
    }
    EXPECT_TRUE(there.keys.empty() && floats.blocks.empty());
    EXPECT_EQ(there.positions, floats.positions);
    EXPECT_EQ(there.stats, floats.stats);
    quant::BlockContext ctx;
    ASSERT_TRUE(pad_rows(layer.env, there, *layer.plan.archive_codec, ctx));
    ASSERT_TRUE(pad_rows(layer.env, floats, *layer.plan.archive_codec, ctx));
    EXPECT_EQ(there.mass, floats.mass);
    std::vector<float> keys(32 * kDim), values(32 * kDim);
    attn::decode_blocks(there.blocks, quant::Side::key, keys.data());
    attn::decode_blocks(there.blocks, quant::Side::value, values.data());
    EXPECT_EQ(keys, floats.keys);
    EXPECT_EQ(values, floats.values);
  }
}

TEST(SettleTogether, StopsAfterSoManyArchiveBlocksOfEachHead) {
  Layer layer;
  ThreadPool pool(2);
  ASSERT_TRUE(layer.push(400));
  ASSERT_TRUE(settle(layer.env, layer.heads, layer.plan, on(pool), 2));
  EXPECT_EQ(layer.count(Tier::archive), 2u * kHeads);
  ASSERT_TRUE(settle(layer.env, layer.heads, layer.plan, on(pool)));
  EXPECT_GT(layer.count(Tier::archive), 2u * kHeads);
}

// Tokens of which some first cannot settle in so little memory.
uint32_t tokens_that_settle(size_t limit, const std::function<bool(Layer&)>& settle_all) {
  Layer layer(limit);
  for (uint32_t round = 0; round < 60 && layer.push(16); ++round) {
    const bool settled = settle_all(layer);
    for (const HeadStream& s : layer.heads) EXPECT_EQ(live_rows(s), layer.length) << "no row is lost";
    if (!settled) break;
  }
  return layer.length;
}

TEST(SettleTogether, AsMuchFitsIntoLittleMemoryAsOneByOne) {
  ThreadPool pool(3);
  uint32_t alone = 0, together = 0;
  for (size_t limit = 96u << 10; limit <= 320u << 10; limit += 8u << 10) {
    alone += tokens_that_settle(limit, [](Layer& layer) {
      bool settled = true;
      for (HeadStream& s : layer.heads) settled &= settle(layer.env, s, layer.plan);
      return settled;
    });
    together += tokens_that_settle(limit, [&](Layer& layer) { return settle(layer.env, layer.heads, layer.plan, on(pool)); });
  }
  EXPECT_GE(together, alone * 97 / 100);  // holes in the arena lie elsewhere
}

}  // namespace
}  // namespace tierkv::tiers
