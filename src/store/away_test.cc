// Blocks whose bytes only somebody far away has: they go, come back bit for bit or not at all, and are let go as often as held.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/status_macros.h"
#include "store/block_store.h"
#include "store/packed_group.h"

namespace tierkv::store {
namespace {

int tag = 0;
const quant::CodecEntry& codec = reinterpret_cast<const quant::CodecEntry&>(tag);  // the store never looks into one
PayloadSizes sizes_of(const quant::CodecEntry&) { return {100, 60}; }

// Somebody with copies of what he was shown.
class Elsewhere final : public FarBytes {
 public:
  struct Copy {
    std::vector<std::byte> keys, values;
    int holds = 0;
  };
  void* hold(const Name& name) const noexcept override {
    const auto found = copies.find(name.checksum);
    if (found == copies.end()) return nullptr;
    ++found->second.holds;
    return &found->second;
  }
  void let_go(void* held) const noexcept override { --static_cast<Copy*>(held)->holds; }
  Status read(const void* held, std::span<std::byte> keys, std::span<std::byte> values) const override {
    if (gone) return error(StatusCode::io_error, "gone");
    const auto* copy = static_cast<const Copy*>(held);
    std::copy(copy->keys.begin(), copy->keys.end(), keys.begin());
    std::copy(copy->values.begin(), copy->values.end(), values.begin());
    return {};
  }
  uint64_t held_bytes() const noexcept override { return 0; }
  uint64_t refusals() const noexcept override { return 0; }

  mutable std::map<uint64_t, Copy> copies;
  bool gone = false;
};

class Away : public ::testing::Test {
 protected:
  Away() { store.set_far(far); }
  ~Away() override {
    for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t) EXPECT_EQ(arena.allocated(static_cast<MemoryTag>(t)), 0u) << t;
    for (const auto& [sum, copy] : far->copies) EXPECT_EQ(copy.holds, 0);
  }
  BlockHandle make(uint8_t fill, bool shown = true) {
    Payload payload = store.allocate(codec, Tier::archive, Arena::Use::normal);
    if (!payload) return {};
    std::memset(payload.keys().data(), fill, payload.keys().size());
    std::memset(payload.values().data(), fill + 1, payload.values().size());
    const uint64_t sum = payload.compute_checksum();
    if (shown) {
      const auto of = [](std::span<std::byte> bytes) { return std::vector<std::byte>(bytes.begin(), bytes.end()); };
      far->copies[sum] = {of(payload.keys()), of(payload.values()), 0};
    }
    return store.seal(std::move(payload), sum, codec, Tier::archive, nullptr, Arena::Use::normal);
  }
  const Elsewhere::Copy& copy(BlockHandle block) const { return far->copies.at(block.checksum()); }

  Arena arena{64 << 10};
  std::shared_ptr<Elsewhere> far = std::make_shared<Elsewhere>();
  BlockStore store{arena, sizes_of};
};

TEST_F(Away, BytesGoAndComeBack) {
  const BlockHandle block = make(5), unknown = make(9, false);
  EXPECT_FALSE(store.send_away(unknown));
  EXPECT_TRUE(unknown.resident());
  ASSERT_TRUE(store.send_away(block));
  EXPECT_TRUE(block.away() && block.elsewhere() && !store.lost(block));
  EXPECT_EQ(copy(block).holds, 1);
  EXPECT_EQ(arena.allocated(MemoryTag::archive), store.held_bytes(codec, Tier::archive)) << "that of the other one";
  std::vector<std::byte> image;
  ASSERT_TRUE(store.load(block, image).ok());
  EXPECT_EQ(image[99], std::byte{5});
  EXPECT_EQ(image[sizes_of(codec).value_offset() + 59], std::byte{6});
  ASSERT_TRUE(store.bring_back(block).ok());
  EXPECT_TRUE(block.resident() && store.intact(block));
  EXPECT_EQ(copy(block).holds, 0);
  ASSERT_TRUE(store.send_away(block));
  store.retain(block);
  store.release(block);
  EXPECT_EQ(copy(block).holds, 1);
  store.release(block);
  store.release(unknown);
}

TEST_F(Away, OtherBytesAreNobodysAndAFailureChangesNothing) {
  const BlockHandle block = make(5);
  ASSERT_TRUE(store.send_away(block));
  std::vector<std::byte> image;
  far->gone = true;
  EXPECT_EQ(store.bring_back(block).code(), StatusCode::io_error);
  EXPECT_EQ(store.load(block, image).code(), StatusCode::io_error);
  far->gone = false;
  far->copies.at(block.checksum()).keys[3] ^= std::byte{1};
  EXPECT_EQ(store.bring_back(block).code(), StatusCode::data_loss);
  EXPECT_EQ(store.load(block, image).code(), StatusCode::data_loss);
  far->copies.at(block.checksum()).keys[3] ^= std::byte{1};
  EXPECT_TRUE(store.load(block, image).ok());
  store.give_up(block);
  EXPECT_TRUE(store.lost(block));
  EXPECT_EQ(copy(block).holds, 0);
  EXPECT_EQ(store.load(block, image).code(), StatusCode::data_loss);
  EXPECT_EQ(store.bring_back(block).code(), StatusCode::data_loss);
  store.release(block);
}

TEST_F(Away, WithoutRoomTheyStayThere) {
  const BlockHandle block = make(5);
  ASSERT_TRUE(store.send_away(block));
  std::vector<BlockHandle> others;
  while (const BlockHandle other = make(7, false)) others.push_back(other);
  EXPECT_EQ(store.bring_back(block).code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(block.away());
  for (const BlockHandle other : others) store.release(other);
  EXPECT_TRUE(store.bring_back(block).ok());
  store.release(block);
}

TEST_F(Away, PackingLetsGoOfThemAndLeavesAForksThere) {
  BlockHandle blocks[] = {make(1), make(2), make(3)};
  const uint64_t sums[] = {blocks[0].checksum(), blocks[1].checksum()};
  ASSERT_TRUE(store.send_away(blocks[0]) && store.send_away(blocks[1]));
  const BlockHandle fork = blocks[1];
  store.retain(fork);
  std::vector<BlockHandle*> all = {&blocks[0], &blocks[1], &blocks[2]};
  const std::vector<std::byte> archive(50, std::byte{7});
  ASSERT_TRUE(store.pack(all, std::make_unique<PackedGroup>(), archive));
  for (const BlockHandle& block : blocks) EXPECT_TRUE(block.packed());
  EXPECT_EQ(far->copies.at(sums[0]).holds, 0);
  EXPECT_EQ(far->copies.at(sums[1]).holds, 1);
  EXPECT_TRUE(fork.away());
  EXPECT_TRUE(blocks[0].group()->intact());
  store.release(fork);
  for (const BlockHandle block : blocks) store.release(block);
}

TEST_F(Away, SummariesKeepBlocksHere) {
  BlockStore other(arena, sizes_of, nullptr, 64);
  other.set_far(far);
  Payload payload = other.allocate(codec, Tier::archive, Arena::Use::normal);
  const uint64_t sum = payload.compute_checksum();
  far->copies[sum] = {std::vector<std::byte>(100), std::vector<std::byte>(60), 0};
  const BlockHandle block = other.seal(std::move(payload), sum, codec, Tier::archive, nullptr, Arena::Use::normal);
  EXPECT_FALSE(other.send_away(block));
  EXPECT_TRUE(block.resident());
  other.release(block);
}

}  // namespace
}  // namespace tierkv::store
