// Damage: whatever is wrong with the bytes gets a Status that says so, and the cache is exactly as it was.
#include <gtest/gtest.h>

#include <functional>

#include "snapshot/snapshot.h"
#include "snapshot/testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;
using namespace tierkv::snapshot::format;

// One layer, one KV head, so that places in the file are easy to name: sinks, an archive block, two warm ones with evicted rows, a
// tail.
CacheConfig tiny_config() {
  CacheConfig config = small_config();
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.tiers = {16, 32, "kivi4", "kivi2", 2, 0};
  config.warm_block = config.archive_block = 16;
  config.eviction.policy = "h2o";
  config.eviction.protect_recent = 4;
  return config;
}

struct Tiny {
  std::unique_ptr<AdaptiveKVCache> cache = make_cache(tiny_config());
  Bytes bytes;
  size_t codecs = kHeaderBytes, layer = 0, stream = 0;
  std::vector<size_t> blocks;  // places of their headers
  size_t tail = 0;

  Tiny() {
    const SeqId a = cache->add_sequence().value();
    std::mt19937 rng(77);
    std::vector<float> out;
    append(*cache, a, rng, 90);
    attend(*cache, a, rng, 2, out);
    EXPECT_TRUE(cache->evict(a, 75).ok());
    append(*cache, a, rng, 3);
    attend(*cache, a, rng, 1, out);
    bytes = frozen(*cache, a);
    EXPECT_TRUE(cache->remove(a).ok());
    auto picture = read_body(bytes, read_header(bytes).value(), nullptr);
    EXPECT_TRUE(picture.ok()) << picture.status().to_string();
    layer = codecs + picture->codecs.size() * kCodecBytes;
    stream = layer + kLayerBytes;
    size_t at = stream + kStreamBytes;
    for (const SnapshotBlock& b : picture->blocks) {
      blocks.push_back(at);
      at += kBlockBytes + padded(b.positions.size()) + padded(b.stats.size()) + padded(b.keys.size()) + padded(b.values.size());
    }
    tail = at;
    EXPECT_GE(blocks.size(), 4u);
    EXPECT_TRUE(
        std::any_of(picture->blocks.begin(), picture->blocks.end(), [](const SnapshotBlock& b) { return b.live < b.rows; }));
  }

  Status load(const Bytes& damaged) {
    const MemoryStats before = cache->memory_usage();
    const auto result = cache->unfreeze(damaged);
    if (result.ok()) {
      EXPECT_TRUE(cache->remove(*result).ok());
      return {};
    }
    EXPECT_TRUE(same_memory(cache->memory_usage(), before));
    EXPECT_TRUE(cache->sequences().empty());
    // What the inspector says agrees, as far as it is about the bytes.
    const auto info = inspect_snapshot(damaged);
    if (result.status().code() == StatusCode::data_loss || result.status().code() == StatusCode::unsupported) {
      EXPECT_EQ(info.status().code(), result.status().code()) << result.status().to_string();
    }
    return result.status();
  }

  // Changes a field, makes the checksum right again and loads.
  Status with(size_t at, uint64_t value, size_t width) {
    Bytes changed = bytes;
    put(changed, at, value, width);
    reseal(changed);
    return load(changed);
  }
};

TEST(SnapshotDamage, AnyFlippedBitIsDataLoss) {
  Tiny tiny;
  Bytes bytes = tiny.bytes;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto result = tiny.cache->unfreeze(bytes);
    ASSERT_FALSE(result.ok()) << "bit " << bit;
    ASSERT_EQ(result.status().code(), StatusCode::data_loss) << "bit " << bit << ": " << result.status().to_string();
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  EXPECT_TRUE(tiny.load(bytes).ok());
}

TEST(SnapshotDamage, AnyTruncationIsDataLoss) {
  Tiny tiny;
  for (size_t n = 0; n < tiny.bytes.size(); ++n) {
    const Bytes cut(tiny.bytes.begin(), tiny.bytes.begin() + static_cast<ptrdiff_t>(n));
    ASSERT_EQ(tiny.load(cut).code(), StatusCode::data_loss) << n;
  }
}

TEST(SnapshotDamage, TruncationWithARightChecksumIsDataLossToo) {
  Tiny tiny;
  for (size_t n = kHeaderBytes + kTrailerBytes; n < tiny.bytes.size(); n += n < 600 ? 1 : 7) {
    Bytes cut(tiny.bytes.begin(), tiny.bytes.begin() + static_cast<ptrdiff_t>(n));
    reseal(cut);
    ASSERT_EQ(tiny.load(cut).code(), StatusCode::data_loss) << n;
  }
}

TEST(SnapshotDamage, GarbageAtTheEndIsDataLoss) {
  Tiny tiny;
  for (const size_t extra : {1u, 7u, 8u, 64u, 4096u}) {
    Bytes longer = tiny.bytes;
    for (size_t i = 0; i < extra; ++i) longer.push_back(std::byte{0});
    EXPECT_EQ(tiny.load(longer).code(), StatusCode::data_loss);
    reseal(longer);
    EXPECT_EQ(tiny.load(longer).code(), StatusCode::data_loss);
  }
}

// With the checksum made right after each change, the parser itself must hold: refuse, or give a sequence that works.
TEST(SnapshotDamage, AnyResealedFlipIsRefusedOrGivesASequenceThatWorks) {
  Tiny tiny;
  uint32_t loaded = 0;
  std::mt19937 rng(5);
  const auto try_bit = [&](size_t bit) {
    Bytes bytes = tiny.bytes;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    reseal(bytes);
    const auto result = tiny.cache->unfreeze(bytes);
    if (!result.ok()) return;
    ++loaded;
    std::vector<float> out;
    attend(*tiny.cache, *result, rng, 1, out);
    append(*tiny.cache, *result, rng, 20);
    EXPECT_TRUE(tiny.cache->evict(*result, 20).ok());
    EXPECT_TRUE(tiny.cache->unfreeze(frozen(*tiny.cache, *result)).ok()) << "bit " << bit;
    for (const SeqId seq : tiny.cache->sequences()) EXPECT_TRUE(tiny.cache->remove(seq).ok());
  };
  for (size_t bit = 0; bit < (tiny.blocks[0] + kBlockBytes) * 8; ++bit) try_bit(bit);
  for (const size_t block : tiny.blocks) {
    for (size_t bit = block * 8; bit < (block + kBlockBytes + 64) * 8; bit += 3) try_bit(bit);
  }
  for (size_t bit = tiny.tail * 8; bit < tiny.bytes.size() * 8; bit += 37) try_bit(bit);
  EXPECT_GT(loaded, 0u) << "some bits are data: those must load";
}

TEST(SnapshotDamage, NewerVersionIsUnsupportedAndNamesBoth) {
  Tiny tiny;
  Bytes newer = tiny.bytes;
  put(newer, 8, 7, 4);
  put(newer, 12, 5, 4);
  reseal(newer);
  const Status status = tiny.load(newer);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("version 7"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("version 3"), std::string::npos) << status.message();
}

TEST(SnapshotDamage, NewerVersionThatOldReadersUnderstandLoads) {
  Tiny tiny;
  Bytes newer = tiny.bytes;
  for (int i = 0; i < 16; ++i) newer.insert(newer.begin() + kHeaderBytes, std::byte{0x5A});  // fields this build does not know
  put(newer, 8, kVersion + 1, 4);
  put(newer, 20, kHeaderBytes + 16, 4);
  reseal(newer);
  const Status status = tiny.load(newer);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(SnapshotDamage, UnknownCodecIsUnsupported) {
  Tiny tiny;
  const Status status = tiny.with(tiny.codecs, 999, 2);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("999"), std::string::npos) << status.message();
}

TEST(SnapshotDamage, UnknownStatisticsAreUnsupported) {
  Tiny tiny;
  EXPECT_EQ(tiny.with(48, 1u << 9, 4).code(), StatusCode::unsupported);
}

TEST(SnapshotDamage, ContradictionsAreDataLossEvenWithARightChecksum) {
  Tiny tiny;
  const auto sparse = [&] {
    for (const size_t b : tiny.blocks) {
      if (tiny.bytes[b + 1] == std::byte{1}) return b;
    }
    return size_t{0};
  }();
  ASSERT_NE(sparse, 0u);
  const size_t first = tiny.blocks[0], second = tiny.blocks[1], last = tiny.blocks.back();
  const struct {
    const char* what;
    size_t at;
    uint64_t value;
    size_t width;
  } changes[] = {
      {"minimum reader above version", 8, 0, 4},
      {"byte order", 16, 0x04030201, 4},
      {"header length", 20, 72, 4},
      {"no codecs", 52, 0, 4},
      {"many codecs", 52, 0xFFFFFFFF, 4},
      {"long model", 56, 0xFFFFFFFF, 4},
      {"reserved header field", 60, 1, 4},
      {"reserved spec byte", tiny.codecs + 3, 1, 1},
      {"codec of no tokens", tiny.codecs + 16, 0, 4},
      {"codec of many tokens", tiny.codecs + 16, 1u << 30, 4},
      {"shorter sequence", tiny.layer, 50, 4},
      {"endless sequence", tiny.layer, 0xFFFFFFFF, 4},
      {"unobserved past the length", tiny.layer + 4, 5000, 4},
      {"ring without window", tiny.layer + 16, 1, 4},
      {"unknown layer flag", tiny.layer + 16, 2, 4},
      {"more blocks", tiny.stream, tiny.blocks.size() + 1, 4},
      {"fewer blocks", tiny.stream, tiny.blocks.size() - 1, 4},
      {"countless blocks", tiny.stream, 0xFFFFFFFF, 4},
      {"countless rows", tiny.stream + 4, 0xFFFFFFFF, 4},
      {"tail before the blocks", tiny.stream + 8, 0, 4},
      {"sparse tail without positions", tiny.stream + 12, 1, 4},
      {"a line with a ring's capacity", tiny.stream + 16, 64, 4},
      {"hot block", first, 1, 1},
      {"unknown tier", first, 9, 1},
      {"second block of sinks", second, 0, 1},
      {"no rows", second + 2, 0, 2},
      {"more rows than tokens", second + 2, 17, 2},
      {"none alive", sparse + 4, 0, 2},
      {"wrong live count", sparse + 4, 1, 2},
      {"codec out of range", second + 8, 40, 4},
      {"source out of range", second + 12, 40, 4},
      {"positions that go back", second + 16, 0, 4},
      {"block past the end", last + 16, 4000000000u, 4},
      {"block checksum", second + 24, 0, 8},
      {"first position of a sparse block", sparse + 32, 0xFFFFFFF0u, 4},
      {"last row of a sparse block dead", sparse + 32 + 4 * (static_cast<size_t>(tiny.bytes[sparse + 2]) - 1), 0xFFFFFFFFu, 4},
  };
  for (const auto& change : changes) {
    const Status status = tiny.with(change.at, change.value, change.width);
    EXPECT_EQ(status.code(), StatusCode::data_loss) << change.what << ": " << status.to_string();
  }
}

TEST(SnapshotDamage, HotRowsThatAreNotFiniteAreDataLoss) {
  Tiny tiny;
  const size_t last_value = tiny.bytes.size() - kTrailerBytes - 2;
  for (const uint64_t bad : {0x7C00u, 0xFC00u, 0x7E01u}) EXPECT_EQ(tiny.with(last_value, bad, 2).code(), StatusCode::data_loss);
}

TEST(SnapshotDamage, LengthFieldsDoNotMakeTheReaderAllocate) {
  // A ring may claim more capacity than it has rows, but only a little, or zeros must be there for it.
  CacheConfig config = small_config("fp16");
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.tiers.window = 32;
  auto cache = make_cache(config);
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(3);
  append(*cache, a, rng, 100);
  Bytes bytes = frozen(*cache, a);
  const MemoryStats before = cache->memory_usage();
  for (const uint64_t capacity : {uint64_t{99}, free_ring_capacity(100, 32) + 1, uint64_t{1} << 30, uint64_t{0xFFFFFFFF}}) {
    put(bytes, kHeaderBytes + kLayerBytes + 16, capacity, 4);
    reseal(bytes);
    EXPECT_EQ(cache->unfreeze(bytes).status().code(), StatusCode::data_loss) << capacity;
    EXPECT_TRUE(same_memory(cache->memory_usage(), before));
  }
}

// --- right bytes, wrong cache

void expect_refused(const CacheConfig& from, const CacheConfig& to, std::initializer_list<const char*> words, StatusCode code) {
  auto source = make_cache(from), target = make_cache(to);
  const SeqId a = source->add_sequence().value();
  std::mt19937 rng(1);
  append(*source, a, rng, 200);
  const MemoryStats before = target->memory_usage();
  const auto result = target->unfreeze(frozen(*source, a));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().to_string();
  for (const char* word : words)
    EXPECT_NE(result.status().message().find(word), std::string::npos) << word << ": " << result.status().message();
  EXPECT_TRUE(same_memory(target->memory_usage(), before));
  EXPECT_TRUE(target->sequences().empty());
}

TEST(SnapshotDamage, OtherShapesAreInvalidAndSayWhatDiffers) {
  const CacheConfig base = small_config();
  const auto refuse = [&](const std::function<void(CacheConfig&)>& change, std::initializer_list<const char*> words) {
    CacheConfig other = base;
    change(other);
    expect_refused(base, other, words, StatusCode::invalid_argument);
  };
  refuse([](CacheConfig& c) { c.num_layers = 3; }, {"num_layers", "2", "3"});
  refuse([](CacheConfig& c) { c.num_kv_heads = 4; }, {"num_kv_heads", "2", "4"});
  refuse([](CacheConfig& c) { c.head_dim = 64; }, {"head_dim", "32", "64"});
  refuse([](CacheConfig& c) { c.hot_type = "bf16"; }, {"hot_type", "fp16", "bf16"});
  refuse([](CacheConfig& c) { c.tiers.window = 500; }, {"layer 0", "window", "500"});
  CacheConfig named = base, renamed = base;
  named.model = "one";
  renamed.model = "two";
  expect_refused(named, renamed, {"model", "one", "two"}, StatusCode::invalid_argument);
  CacheConfig ring = base, tiers = base;
  ring.tiers.window = tiers.tiers.window = 64;
  tiers.tiers.hot = 32;
  expect_refused(ring, tiers, {"layer 0", "ring", "tiers"}, StatusCode::invalid_argument);
  expect_refused(tiers, ring, {"layer 0", "ring", "tiers"}, StatusCode::invalid_argument);
}

TEST(SnapshotDamage, LimitsOfTheCacheHold) {
  const CacheConfig base = small_config();
  CacheConfig shorter = base;
  shorter.max_seq_len = 100;
  expect_refused(base, shorter, {"max_seq_len", "200", "100"}, StatusCode::resource_exhausted);
  CacheConfig poor = base;
  poor.byte_budget = 48 << 10;
  expect_refused(base, poor, {"byte_budget", "49152"}, StatusCode::resource_exhausted);
}

TEST(SnapshotDamage, BudgetIsNeverExceededAndRefusalLeavesTheRest) {
  auto source = make_cache(small_config());
  const SeqId a = source->add_sequence().value();
  std::mt19937 rng(1);
  append(*source, a, rng, 200);
  const Bytes bytes = frozen(*source, a);
  CacheConfig config = small_config();
  config.byte_budget = 1 << 20;
  auto cache = make_cache(config);
  uint32_t loaded = 0;
  for (;; ++loaded) {
    const auto result = cache->unfreeze(bytes);
    EXPECT_LE(cache->memory_usage().total_bytes, config.byte_budget);
    if (result.ok()) {
      const auto header = read_header(bytes);
      const MemoryStats own = cache->memory_usage(*result).value();
      EXPECT_EQ(own.total_bytes, needed_bytes({nullptr, 32, 0, false}, read_body(bytes, *header, nullptr).value()));
      continue;
    }
    EXPECT_EQ(result.status().code(), StatusCode::resource_exhausted);
    break;
  }
  EXPECT_GT(loaded, 3u);
  for (const SeqId seq : cache->sequences()) EXPECT_EQ(frozen(*cache, seq), bytes);
}

}  // namespace
}  // namespace tierkv::snapshot
