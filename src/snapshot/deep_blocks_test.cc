// Deep archives back into blocks: the same rows as in one go, with a few chunks in memory at a time, and nothing left behind.
#include "snapshot/deep_blocks.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/f16.h"
#include "base/mapped_memory.h"
#include "snapshot/deep_testing.h"
#include "snapshot/pack.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(DeepBlocks, PieceByPieceGivesTheRowsOfOneGo) {
  constexpr uint32_t kTokens = 2000, kRows = 100;  // no multiple of a chunk
  const DeepCalibration tables = deep_calibration(calibration()).value();
  deep::EncodeOptions options;
  options.ratio = 12.0;
  const made_up::Text text = made_up::model().text(kTokens, 4);
  const auto bytes = deep::encode(tables.model_tables(), 4, kTokens, text.reader(), options);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  constexpr size_t kWidth = made_up::kHeads * made_up::kDim;
  std::vector<std::vector<float>> whole(made_up::kLayers, std::vector<float>(kTokens * kWidth));
  const deep::WriteRows write = [&](uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float*) {
    std::copy_n(keys, count * kWidth, whole[layer].data() + first * kWidth);
  };
  ASSERT_TRUE(deep::decode(*bytes, tables.model_tables(), 1, write).ok());

  Arena arena;
  BlockStore store(arena, tiers::payload_sizes);
  const StreamEnv env{&arena, made_up::kDim, 0, false, &attn::cpu_backend(), &store};
  DeepBlocks blocks;
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    for (uint32_t h = 0; h < made_up::kHeads; ++h) {
      auto& stream = blocks.emplace_back();
      for (uint32_t at = 0; at < kTokens; at += kRows) stream.push_back({l, h, at, kRows, 0});
    }
  }
  for (const uint32_t threads : {1u, 3u}) {
    ThreadPool pool(threads);
    std::atomic<uint64_t> rows_seen = 0, most_held = 0;
    const Status status = decode_blocks(env, tables, *bytes, blocks, pool, [&](const DeepBlock& block, tiers::RowBatch& rows) {
      EXPECT_EQ(rows.positions[0], 4 + block.first);
      for (uint32_t i = 0; i < block.count; ++i) {
        const float* expected = whole[block.layer].data() + (block.first + i) * kWidth + block.head * made_up::kDim;
        for (uint32_t c = 0; c < made_up::kDim; ++c)
          EXPECT_EQ(rows.keys[i * made_up::kDim + c], f16_to_f32(f32_to_f16(expected[c])));
      }
      rows_seen += block.count;
      most_held = std::max<uint64_t>(most_held, store.scratch_bytes());
      return true;
    });
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(rows_seen, uint64_t{kTokens} * made_up::kLayers * made_up::kHeads);
    EXPECT_GT(most_held, 0u);
    EXPECT_LE(most_held, (threads * 512ull + kRows) * made_up::kLayers * kWidth * 4);
    EXPECT_EQ(store.scratch_bytes(), 0u);
  }
  ThreadPool pool(1);
  const Status full =
      decode_blocks(env, tables, *bytes, blocks, pool, [](const DeepBlock& b, tiers::RowBatch&) { return b.first < 700; });
  EXPECT_EQ(full.code(), StatusCode::resource_exhausted);
}

uint64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key, 0) == 0) return 1024 * std::strtoull(line.c_str() + std::strlen(key), nullptr, 10);
  }
  return 0;
}

// What a wake or a load leaves in the process is what it reports, and on the way it never has the run as FP16.
TEST(DeepBlocks, WakingAndLoadingLeaveWhatTheyReport) {
  if (kSanitized || status_bytes("VmRSS:") == 0) GTEST_SKIP() << "needs a plain process and /proc";
  constexpr uint32_t kTokens = 12000;
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4", kTokens);
  ASSERT_TRUE(f.cache->park(f.seq, at_ratio(20.0)).ok());
  const auto bytes = f.cache->freeze(f.seq).value();
  const double fp16 = 4.0 * kTokens * made_up::kLayers * made_up::kHeads * made_up::kDim;
  const auto measure = [&](const char* what, const auto& call) {
    ASSERT_TRUE(f.cache->flush().ok());
    return_heap_memory();
    const uint64_t before = status_bytes("VmRSS:"), reported = f.cache->memory_usage().total_bytes;
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again
    call();
    const double more = static_cast<double>(f.cache->memory_usage().total_bytes) - static_cast<double>(reported);
    const double grown = static_cast<double>(status_bytes("VmRSS:")) - static_cast<double>(before);
    const double peak = static_cast<double>(status_bytes("VmHWM:")) - static_cast<double>(before);
    std::printf("%s: %.2f MiB reported, %.2f MiB resident, %.2f MiB at most; as FP16 %.2f\n", what, more / 1048576, grown / 1048576,
                peak / 1048576, fp16 / 1048576);
    EXPECT_LT(grown, 1.25 * more + (1 << 20)) << what;
    EXPECT_LT(peak, more + fp16 / 2) << what;
  };
  for (int round = 0; round < 2; ++round) {
    measure("wake", [&] { ASSERT_TRUE(f.cache->wake(f.seq).ok()); });
    SeqId loaded = 0;
    measure("load", [&] { loaded = f.cache->unfreeze(bytes).value(); });
    ASSERT_TRUE(f.cache->remove(loaded).ok());
    ASSERT_TRUE(f.cache->park(f.seq, at_ratio(20.0)).ok());
  }
}

}  // namespace
}  // namespace tierkv::snapshot
