#include "store/block_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "store/packed_group.h"

namespace tierkv::store {
namespace {

// The store never looks into a codec: any two addresses will do.
int small_tag = 0, large_tag = 0;
const quant::CodecEntry& small_codec = reinterpret_cast<const quant::CodecEntry&>(small_tag);
const quant::CodecEntry& large_codec = reinterpret_cast<const quant::CodecEntry&>(large_tag);
PayloadSizes sizes_of(const quant::CodecEntry& codec) {
  return &codec == &small_codec ? PayloadSizes{100, 60} : PayloadSizes{4000, 4000};
}

class BlockStoreTest : public ::testing::Test {
 protected:
  explicit BlockStoreTest(size_t limit = 0) : arena(limit) {}
  ~BlockStoreTest() override {
    for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t)
      EXPECT_EQ(arena.allocated(static_cast<MemoryTag>(t)), 0u) << "tag " << t;
  }
  BlockHandle make(const quant::CodecEntry& codec, uint8_t fill, Tier tier = Tier::archive) {
    Payload payload = store.allocate(codec, tier, Arena::Use::normal);
    if (!payload) return {};
    std::memset(payload.keys().data(), fill, payload.keys().size());
    std::memset(payload.values().data(), fill + 1, payload.values().size());
    const uint64_t sum = payload.compute_checksum();
    return store.seal(std::move(payload), sum, codec, tier, nullptr, Arena::Use::normal);
  }
  bool pack(std::vector<BlockHandle*> blocks, size_t bytes) {
    const std::vector<std::byte> archive(bytes, std::byte{7});
    return store.pack(blocks, std::make_unique<PackedGroup>(), archive);
  }

  Arena arena;
  BlockStore store{arena, sizes_of};
};
class FullStoreTest : public BlockStoreTest {
 protected:
  FullStoreTest() : BlockStoreTest(64 << 10) {}
};

TEST_F(BlockStoreTest, HeadersAreUsedAgainAndEmptySlabsGoBack) {
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(make(small_codec, 1));
  EXPECT_EQ(arena.allocated(MemoryTag::bookkeeping), 5 * BlockStore::kSlabBytes) << "20 headers a slab";
  for (int i = 0; i < 100; i += 2) store.release(blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(store.header_bytes_for(50), 0u);
  EXPECT_EQ(store.header_bytes_for(51), BlockStore::kSlabBytes);
  for (int i = 0; i < 100; i += 2) blocks[static_cast<size_t>(i)] = make(small_codec, 2);
  EXPECT_EQ(arena.allocated(MemoryTag::bookkeeping), 5 * BlockStore::kSlabBytes);
  for (const BlockHandle block : blocks) store.release(block);
  EXPECT_EQ(arena.allocated(MemoryTag::bookkeeping), 0u);
  EXPECT_EQ(store.header_bytes_for(1), BlockStore::kSlabBytes);
}

TEST_F(BlockStoreTest, BytesStayForTheLastReference) {
  const BlockHandle block = make(small_codec, 5);
  EXPECT_TRUE(store.intact(block));
  {
    const Pin pin(store, block);
    store.release(block);
    EXPECT_EQ(pin.keys().size(), 100u);
    EXPECT_EQ(pin.keys()[99], std::byte{5});
    EXPECT_EQ(pin.values()[59], std::byte{6});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pin.values().data()) % 64, 0u);
  }
  EXPECT_EQ(arena.allocated(MemoryTag::archive), 0u);
}

TEST_F(BlockStoreTest, APinnedBlockDoesNotChangeItsState) {
  BlockHandle block = make(large_codec, 9);
  const BlockHandle before = block;
  {
    const Pin pin(store, block);
    BlockHandle* mine[] = {&block};
    EXPECT_EQ(store.price(mine).frees, 0u);
    ASSERT_TRUE(pack({&block}, 50));
    EXPECT_FALSE(block == before) << "the holder has a packed one of its own";
    EXPECT_EQ(block.state(), BlockState::packed);
    EXPECT_EQ(before.state(), BlockState::resident);
    EXPECT_EQ(pin.keys()[3999], std::byte{9});
  }
  EXPECT_EQ(arena.allocated(MemoryTag::archive), 0u) << "the pin was the last to hold it";
  store.release(block);
}

TEST_F(BlockStoreTest, AGroupGoesWithItsLastBlock) {
  BlockHandle a = make(large_codec, 1), b = make(large_codec, 2, Tier::warm);
  ASSERT_TRUE(pack({&a, &b}, 1000));
  EXPECT_EQ(a.group(), b.group());
  EXPECT_EQ(a.group()->held(), 1024u);
  EXPECT_TRUE(a.group()->intact());
  EXPECT_EQ(b.tier(), Tier::warm);
  EXPECT_EQ(b.codec(), &large_codec);
  EXPECT_EQ(arena.allocated(MemoryTag::parked), 1024u);
  EXPECT_EQ(arena.allocated(MemoryTag::warm), 0u);
  store.release(a);
  EXPECT_EQ(arena.allocated(MemoryTag::parked), 1024u);
  store.release(b);
  EXPECT_EQ(arena.allocated(MemoryTag::parked), 0u);
}

TEST_F(BlockStoreTest, UnpackingThatIsNotCommittedChangesNothing) {
  BlockHandle a = make(large_codec, 1);
  ASSERT_TRUE(pack({&a}, 1000));
  {
    Unpacking unpacking(store, {&a});
    EXPECT_EQ(unpacking.bytes().size(), 1000u);
    ASSERT_TRUE(unpacking.allocate(0, large_codec));
    ASSERT_TRUE(unpacking.sealed(0));
  }
  EXPECT_EQ(a.state(), BlockState::packed);
  EXPECT_EQ(arena.allocated(MemoryTag::archive), 0u);
  {
    Unpacking unpacking(store, {&a});
    ASSERT_TRUE(unpacking.allocate(0, small_codec)) << "the codec may be another than before";
    std::memset(unpacking.payload(0).keys().data(), 3, 100);
    ASSERT_TRUE(unpacking.sealed(0));
    unpacking.commit();
  }
  EXPECT_EQ(a.state(), BlockState::resident);
  EXPECT_EQ(a.codec(), &small_codec);
  EXPECT_TRUE(store.intact(a));
  EXPECT_EQ(arena.allocated(MemoryTag::parked), 0u);
  store.release(a);
}

// Nothing is left to allocate: the packed bytes live in the memory of the blocks they replace, and give it back when those return.
TEST_F(FullStoreTest, MemoryIsExchangedBothWays) {
  std::vector<BlockHandle> blocks;
  for (BlockHandle block = make(large_codec, 1); block; block = make(large_codec, 1)) blocks.push_back(block);
  std::vector<void*> rest;
  while (void* p = arena.allocate(64, MemoryTag::hot)) rest.push_back(p);
  ASSERT_GE(blocks.size(), 4u);
  std::vector<BlockHandle*> all;
  for (BlockHandle& block : blocks) all.push_back(&block);
  const size_t archive = arena.allocated(MemoryTag::archive);
  ASSERT_FALSE(pack(all, archive)) << "more than the blocks have";
  EXPECT_EQ(blocks[0].state(), BlockState::resident);
  EXPECT_TRUE(store.intact(blocks[0]));
  ASSERT_TRUE(pack(all, 9000)) << "two of them have room for it";
  EXPECT_EQ(blocks[0].group()->held(), 2 * store.held_bytes(large_codec, Tier::archive));
  EXPECT_TRUE(blocks[0].group()->intact());
  EXPECT_EQ(arena.allocated(MemoryTag::archive), 0u);

  // Half of the memory goes to somebody else: the way back fails, and the packed bytes are there again.
  std::vector<BlockHandle> others;
  for (size_t i = 0; i + 4 < blocks.size(); ++i) others.push_back(make(large_codec, 4));
  const auto wake = [&] {
    Unpacking unpacking(store, all);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!unpacking.allocate(i, large_codec) || !unpacking.sealed(i)) return false;
    }
    unpacking.commit();
    return true;
  };
  EXPECT_FALSE(wake());
  for (const BlockHandle& block : blocks) EXPECT_EQ(block.state(), BlockState::packed);
  EXPECT_TRUE(blocks[0].group()->intact());
  EXPECT_EQ(blocks[0].group()->size(), 9000u);
  for (const BlockHandle other : others) store.release(other);
  EXPECT_TRUE(wake());
  for (const BlockHandle& block : blocks) EXPECT_EQ(block.state(), BlockState::resident);
  EXPECT_EQ(arena.allocated(MemoryTag::parked), 0u);
  for (const BlockHandle block : blocks) store.release(block);
  for (void* p : rest) arena.release(p, 64, MemoryTag::hot);
}

}  // namespace
}  // namespace tierkv::store
