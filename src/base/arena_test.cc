#include "base/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/failing_memory.h"

namespace tierkv {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t used(const Arena& arena) {
  size_t sum = 0;
  for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t) sum += arena.allocated(static_cast<MemoryTag>(t));
  return sum;
}

struct Piece {
  unsigned char* p;
  size_t bytes;
  MemoryTag tag;
  unsigned char mark;
};

TEST(Arena, BooksBalanceUnderRandomUse) {
  for (const size_t limit : {size_t{0}, 4 * kMiB}) {
    const uint64_t seed = 7 + limit;
    std::mt19937_64 rng(seed);
    Arena arena(limit);
    std::vector<Piece> held;
    size_t by_tag[static_cast<int>(MemoryTag::count)] = {};
    for (int step = 0; step < 20000; ++step) {
      if (held.empty() || rng() % 100 < (held.size() < 300 ? 60u : 45u)) {
        const size_t bytes = rng() % 50 == 0 ? rng() % (600 << 10) : 1 + rng() % 20000;
        const MemoryTag tag = static_cast<MemoryTag>(rng() % 5);
        auto* p = static_cast<unsigned char*>(arena.allocate(bytes, tag));
        if (!p) {
          ASSERT_NE(limit, 0u) << "seed " << seed;
          continue;
        }
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % Arena::kAlign, 0u);
        const auto mark = static_cast<unsigned char>(rng());
        std::memset(p, mark, bytes);
        held.push_back({p, bytes, tag, mark});
        by_tag[static_cast<int>(tag)] += Arena::rounded(std::max<size_t>(bytes, 1));
      } else {
        const size_t i = rng() % held.size();
        const Piece piece = held[i];
        for (size_t b = 0; b < piece.bytes; b += 97) ASSERT_EQ(piece.p[b], piece.mark) << "overlap; seed " << seed;
        arena.release(piece.p, piece.bytes, piece.tag);
        by_tag[static_cast<int>(piece.tag)] -= Arena::rounded(std::max<size_t>(piece.bytes, 1));
        held[i] = held.back();
        held.pop_back();
      }
      for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t) ASSERT_EQ(arena.allocated(static_cast<MemoryTag>(t)), by_tag[t]);
      ASSERT_EQ(arena.mapped(), used(arena) + arena.free_bytes());
      ASSERT_TRUE(limit == 0 || arena.mapped() <= limit);
    }
    EXPECT_GE(arena.peak(), arena.mapped());
    for (const Piece& piece : held) arena.release(piece.p, piece.bytes, piece.tag);
    arena.trim();
    EXPECT_EQ(arena.mapped(), 0u) << "everything coalesced back into whole regions";
  }
}

// One random history, whatever the arena answers to it.
struct History {
  explicit History(uint64_t seed) : rng(seed) {}
  std::mt19937_64 rng;
  std::vector<Piece> held;
  void step(Arena& arena) {
    if (held.empty() || rng() % 100 < (held.size() < 400 ? 60u : 45u)) {
      const size_t bytes = rng() % 50 == 0 ? rng() % (600 << 10) : 1 + rng() % 20000;
      const auto tag = static_cast<MemoryTag>(rng() % 5);
      if (auto* p = static_cast<unsigned char*>(arena.allocate(bytes, tag))) held.push_back({p, bytes, tag, 0});
    } else {
      const size_t i = rng() % held.size();
      arena.release(held[i].p, held[i].bytes, held[i].tag);
      held[i] = held.back();
      held.pop_back();
    }
  }
  void release_all(Arena& arena) {
    for (const Piece& piece : held) arena.release(piece.p, piece.bytes, piece.tag);
    held.clear();
  }
};

// What fits where decides the memory figures that are published: the cut is the one they were measured with.
TEST(Arena, CutsAsItAlwaysDid) {
  const std::pair<size_t, uint64_t> known[] = {{0, 0x5e064dba4d1f5e3full}, {4 * kMiB, 0x1d5e38fd38c422e9ull}};
  for (const auto& [limit, wanted] : known) {
    Arena arena(limit);
    History history(11 + limit);
    uint64_t hash = 1469598103934665603ull;
    for (int step = 0; step < 30000; ++step) {
      history.step(arena);
      for (const uint64_t x : {uint64_t{arena.mapped()}, uint64_t{history.held.size()}}) hash = (hash ^ x) * 1099511628211ull;
    }
    EXPECT_EQ(hash, wanted) << "limit " << limit;
    history.release_all(arena);
  }
}

// Every request to the system in turn, and all of them: the arena says no, its books stay right, and freeing goes on.
TEST(Arena, ARefusalOfTheSystemIsAnAnswer) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "mappings are ThreadSanitizer's own";
#endif
  using testing::FailingMemory;
  for (const auto mode : {FailingMemory::Mode::once, FailingMemory::Mode::from_then_on}) {
    long refusals = 0;
    for (long nth = 1;; ++nth) {
      Arena arena;
      History history(3);
      history.held.reserve(4000);
      bool balanced = true;
      FailingMemory::arm(nth, mode);
      for (int step = 0; step < 3000; ++step) {
        history.step(arena);
        balanced &= arena.mapped() == used(arena) + arena.free_bytes();
      }
      const bool refused = FailingMemory::disarm();
      refusals += refused;
      ASSERT_TRUE(balanced) << "request " << nth;
      FailingMemory::arm(1, FailingMemory::Mode::from_then_on);
      history.release_all(arena);
      arena.trim();
      const bool asked = FailingMemory::disarm();
      ASSERT_FALSE(asked) << "freeing asked the system for memory";
      ASSERT_EQ(arena.mapped(), 0u) << "request " << nth;
      if (!refused) break;
    }
    EXPECT_GT(refusals, 5);
  }
}

TEST(Arena, FreedNeighboursBecomeOnePiece) {
  Arena arena;
  std::vector<void*> pieces;
  for (int i = 0; i < 64; ++i) pieces.push_back(arena.allocate(1024, MemoryTag::hot));
  const size_t mapped = arena.mapped();
  // Odd ones first, so that every release of an even one has free neighbours on both sides.
  for (int i = 1; i < 64; i += 2) arena.release(pieces[i], 1024, MemoryTag::hot);
  for (int i = 0; i < 64; i += 2) arena.release(pieces[i], 1024, MemoryTag::hot);
  void* whole = arena.allocate(64 << 10, MemoryTag::warm);
  EXPECT_NE(whole, nullptr);
  EXPECT_EQ(arena.mapped(), mapped) << "no new region was needed";
  arena.release(whole, 64 << 10, MemoryTag::warm);
}

TEST(Arena, NeverMapsPastItsLimit) {
  const size_t limit = 300 << 10;
  Arena arena(limit);
  size_t taken = 0;
  while (arena.allocate(4096, MemoryTag::hot)) {
    taken += 4096;
    ASSERT_LE(arena.mapped(), limit);
  }
  EXPECT_EQ(taken, limit) << "and all of it can be used";
  EXPECT_EQ(arena.allocate(1, MemoryTag::hot, Arena::Use::relief), nullptr);
}

TEST(Arena, AnEmptyRegionOfTheWrongSizeMakesWayAtTheLimit) {
  Arena arena(1 * kMiB);
  void* small = arena.allocate(200 << 10, MemoryTag::hot);
  arena.release(small, 200 << 10, MemoryTag::hot);
  EXPECT_NE(arena.allocate(900 << 10, MemoryTag::hot), nullptr);
}

TEST(Arena, HeadroomServesReliefAlone) {
  const size_t limit = 256 << 10, headroom = 64 << 10;
  Arena arena(limit, headroom);
  size_t taken = 0;
  while (arena.allocate(4096, MemoryTag::hot)) taken += 4096;
  EXPECT_EQ(taken, limit - headroom);
  for (int round = 0; round < 3; ++round) {
    void* relief = arena.allocate(headroom, MemoryTag::warm, Arena::Use::relief);
    ASSERT_NE(relief, nullptr) << "round " << round;
    arena.release(relief, headroom, MemoryTag::warm);
    // What relief gave back is relief's again, even where it stays mapped.
    EXPECT_EQ(arena.allocate(4096, MemoryTag::hot), nullptr) << "round " << round;
  }
  EXPECT_LE(arena.mapped(), limit);
}

TEST(Arena, GivesEmptyRegionsBackButOne) {
  Arena arena;
  std::vector<void*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(arena.allocate(2 * kMiB, MemoryTag::hot));
  EXPECT_GE(arena.mapped(), 16 * kMiB);
  for (void* p : pieces) arena.release(p, 2 * kMiB, MemoryTag::hot);
  EXPECT_LE(arena.mapped(), 2 * kMiB + 4096);
  arena.trim();
  EXPECT_EQ(arena.mapped(), 0u);
  EXPECT_GE(arena.peak(), 16 * kMiB);
}

TEST(Arena, WithALimitEmptyRegionsStayUntilTheyAreNeededInAnotherShape) {
  Arena arena(16 * kMiB);
  std::vector<void*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(arena.allocate(kMiB, MemoryTag::hot));
  const size_t mapped = arena.mapped();
  for (void* p : pieces) arena.release(p, kMiB, MemoryTag::hot);
  EXPECT_EQ(arena.mapped(), mapped);
  EXPECT_EQ(arena.free_bytes(), mapped);
  for (void*& p : pieces) p = arena.allocate(kMiB, MemoryTag::warm);
  EXPECT_EQ(arena.mapped(), mapped) << "the same shapes fit where they were";
  for (void* p : pieces) arena.release(p, kMiB, MemoryTag::warm);

  void* large = arena.allocate(12 * kMiB, MemoryTag::hot);
  ASSERT_NE(large, nullptr) << "what is kept gives way";
  EXPECT_LE(arena.mapped(), 16 * kMiB);
  arena.release(large, 12 * kMiB, MemoryTag::hot);
  arena.trim();
  EXPECT_EQ(arena.mapped(), 0u);
}

TEST(Arena, CountsWhatWasUsedAndNoMore) {
  Arena arena;
  void* small = arena.allocate(100, MemoryTag::hot);
  EXPECT_EQ(arena.mapped(), 4096u);
  std::vector<void*> blocks;
  for (int i = 0; i < 700; ++i) blocks.push_back(arena.allocate(4032, MemoryTag::archive));
  EXPECT_LE(arena.free_bytes(), 3 * 4096u + (64u << 10)) << "of 2.7 MiB";
  for (void* p : blocks) arena.release(p, 4032, MemoryTag::archive);
  arena.release(small, 100, MemoryTag::hot);
  arena.trim();
  EXPECT_EQ(arena.mapped(), 0u);
}

// What comes and goes leaves holes; blocks of other sizes that stay must not break them up.
TEST(Arena, ArchiveBlocksStayOutOfTheHolesOfWarmOnes) {
  Arena arena;
  std::vector<void*> warm;
  for (int i = 0; i < 100; ++i) warm.push_back(arena.allocate(4672, MemoryTag::warm));
  for (int i = 0; i < 100; i += 2) arena.release(warm[static_cast<size_t>(i)], 4672, MemoryTag::warm);
  for (int i = 0; i < 100; ++i) ASSERT_NE(arena.allocate(3200, MemoryTag::archive), nullptr);
  const size_t mapped = arena.mapped();
  for (int i = 0; i < 100; i += 2) ASSERT_NE(arena.allocate(4672, MemoryTag::warm), nullptr);
  EXPECT_EQ(arena.mapped(), mapped) << "every hole was still whole";
}

TEST(Arena, NearTheLimitThePoolsServeEachOther) {
  const size_t limit = 256 << 10;
  Arena arena(limit);
  void* p = arena.allocate(limit, MemoryTag::warm);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(arena.allocate(4096, MemoryTag::archive), nullptr);
  arena.release(p, limit, MemoryTag::warm);
  size_t taken = 0;
  while (arena.allocate(4096, MemoryTag::archive)) taken += 4096;
  EXPECT_EQ(taken, limit);
  EXPECT_LE(arena.mapped(), limit);
}

TEST(Arena, AbsurdSizesAreRefused) {
  Arena arena;
  EXPECT_EQ(arena.allocate(~size_t{0}, MemoryTag::hot), nullptr);
  EXPECT_EQ(arena.allocate(~size_t{0} - 63, MemoryTag::hot), nullptr);
  EXPECT_EQ(arena.allocate(size_t{1} << 62, MemoryTag::hot), nullptr);
  EXPECT_EQ(used(arena), 0u);
  arena.release(nullptr, 100, MemoryTag::hot);
}

TEST(Arena, ThreadsShareIt) {
  Arena arena(32 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      std::mt19937 rng(static_cast<unsigned>(t));
      std::vector<std::pair<unsigned char*, size_t>> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() < 20) {
          const size_t bytes = 1 + rng() % 8000;
          auto* p = static_cast<unsigned char*>(arena.allocate(bytes, MemoryTag::warm));
          ASSERT_NE(p, nullptr);
          std::memset(p, t, bytes);
          held.emplace_back(p, bytes);
        } else {
          const auto [p, bytes] = held[rng() % held.size()];
          ASSERT_EQ(p[bytes - 1], t);
          std::erase(held, std::pair(p, bytes));
          arena.release(p, bytes, MemoryTag::warm);
        }
      }
      for (const auto& [p, bytes] : held) arena.release(p, bytes, MemoryTag::warm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(used(arena), 0u);
}

}  // namespace
}  // namespace tierkv
