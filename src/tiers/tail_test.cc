#include "tiers/tail.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace tierkv::tiers {
namespace {

constexpr uint32_t kDim = 32;

// Rows are recognisable: channel c of the key of number n is n*64+c, of its value the complement.
void write(Tail& tail, uint32_t position, uint32_t number) {
  uint16_t* key;
  uint16_t* value;
  tail.push(position, key, value);
  for (uint32_t c = 0; c < kDim; ++c) {
    key[c] = static_cast<uint16_t>(number * 64 + c);
    value[c] = static_cast<uint16_t>(~key[c]);
  }
}

struct Row {
  uint32_t position, number;
  float stat = 0.0f;
};

::testing::AssertionResult holds(const Tail& tail, const std::deque<Row>& rows, uint32_t signals) {
  if (tail.rows() != rows.size()) return ::testing::AssertionFailure() << tail.rows() << " rows, expected " << rows.size();
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (tail.position(i) != rows[i].position)
      return ::testing::AssertionFailure() << "row " << i << " is at " << tail.position(i) << ", expected " << rows[i].position;
    const auto expected = static_cast<uint16_t>(rows[i].number * 64 + 7);
    if (tail.key_row(i)[7] != expected || tail.value_row(i)[7] != static_cast<uint16_t>(~expected))
      return ::testing::AssertionFailure() << "row " << i << " has other bytes";
    if (signals && tail.stats_row(i)[signals - 1] != rows[i].stat)
      return ::testing::AssertionFailure() << "row " << i << " has other statistics";
  }
  Tail::Run runs[2];
  tail.runs(runs);
  if (runs[0].rows + runs[1].rows != rows.size()) return ::testing::AssertionFailure() << "runs miss rows";
  uint32_t i = 0;
  for (const Tail::Run& run : runs) {
    for (uint32_t r = 0; r < run.rows; ++r, ++i) {
      if ((run.positions ? run.positions[r] : run.first_position + r) != rows[i].position)
        return ::testing::AssertionFailure() << "a run's position is wrong";
      if (run.keys + static_cast<size_t>(r) * kDim != tail.key_row(i))
        return ::testing::AssertionFailure() << "a run is not where its rows are";
    }
  }
  return ::testing::AssertionSuccess();
}

class Fixture : public ::testing::Test {
 protected:
  ~Fixture() override {
    size_t left = 0;
    tail.reset(arena);
    for (int t = 0; t < static_cast<int>(MemoryTag::count); ++t) left += arena.allocated(static_cast<MemoryTag>(t));
    EXPECT_EQ(left, 0u) << "everything was given back";
  }
  Arena arena;
  Tail tail;
};
using TailTest = Fixture;

TEST_F(TailTest, LinearTailAgainstAListOfRows) {
  const uint32_t signals = 2;
  tail.configure(kDim, signals, false);
  std::mt19937 rng(21);
  std::deque<Row> rows;
  uint32_t length = 0, number = 0;
  std::vector<std::pair<Tail*, std::deque<Row>>> forks;
  for (int step = 0; step < 6000; ++step) {
    switch (rng() % 10) {
      case 0: {  // graduation
        const uint32_t n = rows.empty() ? 0 : rng() % (rows.size() + 1);
        tail.drop_front(n);
        rows.erase(rows.begin(), rows.begin() + n);
        break;
      }
      case 1: {
        if (length == 0) break;
        const uint32_t back = rng() % std::min(length + 1, 12u);
        length -= back;
        tail.truncate(length);
        while (!rows.empty() && rows.back().position >= length) rows.pop_back();
        break;
      }
      case 2: {  // eviction
        std::vector<uint8_t> keep(rows.size());
        for (auto& k : keep) k = rng() % 4 != 0;
        ASSERT_TRUE(tail.reserve(arena, 0, 0));
        ASSERT_TRUE(tail.reserve_positions(arena));
        tail.keep(keep);
        std::deque<Row> left;
        for (size_t i = 0; i < rows.size(); ++i) {
          if (keep[i]) left.push_back(rows[i]);
        }
        rows = left;
        break;
      }
      case 3: {  // a fork that lives a while
        if (forks.size() > 3) {
          ASSERT_TRUE(holds(*forks[0].first, forks[0].second, signals)) << "a fork saw the original's changes, step " << step;
          forks[0].first->reset(arena);
          delete forks[0].first;
          forks.erase(forks.begin());
        }
        auto* copy = new Tail;
        ASSERT_TRUE(copy->clone_from(arena, tail));
        forks.emplace_back(copy, rows);
        break;
      }
      default: {
        const uint32_t n = 1 + rng() % 20;
        ASSERT_TRUE(tail.continue_at(arena, length));
        ASSERT_TRUE(tail.reserve(arena, n, 0));
        for (uint32_t i = 0; i < n; ++i) {
          write(tail, length, number);
          const float stat = static_cast<float>(number);
          tail.stats_row(tail.rows() - 1)[1] = stat;
          rows.push_back({length++, number++, stat});
        }
      }
    }
    ASSERT_TRUE(holds(tail, rows, signals)) << "step " << step;
    ASSERT_EQ(arena.mapped(), arena.free_bytes() + arena.allocated(MemoryTag::hot) + arena.allocated(MemoryTag::bookkeeping));
  }
  for (auto& [copy, expected] : forks) {
    EXPECT_TRUE(holds(*copy, expected, signals));
    copy->reset(arena);
    delete copy;
  }
}

TEST_F(TailTest, RingAgainstTheLastRows) {
  tail.configure(kDim, 0, true);
  std::mt19937 rng(22);
  std::deque<Row> rows;
  uint32_t length = 0, number = 0;
  const uint32_t window = 37;
  for (int step = 0; step < 4000; ++step) {
    if (rng() % 12 == 0 && !rows.empty()) {
      length -= rng() % std::min<uint32_t>(static_cast<uint32_t>(rows.size()), 9);
      tail.truncate(length);
      while (!rows.empty() && rows.back().position >= length) rows.pop_back();
    } else {
      const uint32_t n = rng() % 30 == 0 ? 1 + rng() % 100 : 1 + rng() % 3;
      while (!rows.empty() && rows.front().position + window <= length) {
        rows.pop_front();
        tail.drop_front(1);
      }
      ASSERT_TRUE(tail.reserve(arena, n, window - 1 + n));
      tail.shrink(arena, window - 1 + n);
      for (uint32_t i = 0; i < n; ++i) {
        write(tail, length, number);
        rows.push_back({length++, number++});
      }
    }
    ASSERT_TRUE(holds(tail, rows, 0)) << "step " << step;
    ASSERT_LE(tail.capacity(), 2 * (window + 100)) << "step " << step;
  }
}

TEST_F(TailTest, AGapBehindTheLastRowSurvivesEvictionAndTruncation) {
  tail.configure(kDim, 0, false);
  ASSERT_TRUE(tail.reserve(arena, 10, 0));
  for (uint32_t p = 0; p < 10; ++p) write(tail, p, p);
  // Evict 6, 7 and 8, cut 9, then evict 0: 1..5 are consecutive, but the next position is 8.
  std::vector<uint8_t> keep = {1, 1, 1, 1, 1, 1, 0, 0, 0, 1};
  ASSERT_TRUE(tail.reserve_positions(arena));
  tail.keep(keep);
  tail.truncate(8);
  keep = {0, 1, 1, 1, 1, 1};
  ASSERT_TRUE(tail.reserve_positions(arena));
  tail.keep(keep);
  ASSERT_TRUE(tail.continue_at(arena, 8));
  ASSERT_TRUE(tail.reserve(arena, 1, 0));
  write(tail, 8, 8);
  EXPECT_EQ(tail.position(4), 5u);
  EXPECT_EQ(tail.position(5), 8u);
}

TEST_F(TailTest, GrowthHasFewStepsAndStopsAtTheBound) {
  tail.configure(kDim, 0, false);
  for (uint32_t p = 0; p < 132; ++p) {
    ASSERT_TRUE(tail.reserve(arena, 1, 132));
    write(tail, p, p);
    ASSERT_LT(tail.capacity(), tail.rows() + 24) << "a short sequence holds little that is empty";
  }
  EXPECT_EQ(tail.capacity(), 132u);
  EXPECT_LE(tail.reallocations(), 6u);
  // It graduates for the first time.
  tail.drop_front(68);
  ASSERT_TRUE(tail.reserve(arena, 14, 132));
  EXPECT_EQ(tail.capacity(), 80u);
  for (uint32_t p = 132; p < 200; ++p) {
    ASSERT_TRUE(tail.reserve(arena, 1, 132));
    write(tail, p, p);
  }
  EXPECT_EQ(tail.capacity(), 132u);
  const uint32_t reallocations = tail.reallocations();
  EXPECT_LE(reallocations, 10u);
  // From here on it only graduates and refills.
  for (uint32_t p = 200; p < 5000; ++p) {
    if (tail.rows() == 132) tail.drop_front(64);
    ASSERT_TRUE(tail.reserve(arena, 1, 132));
    write(tail, p, p);
  }
  EXPECT_EQ(tail.reallocations(), reallocations);
}

TEST_F(TailTest, UnderALimitABufferKeepsItsSize) {
  Arena limited(1 << 20);
  Tail bounded;
  bounded.configure(kDim, 0, false);
  for (uint32_t p = 0; p < 1000; ++p) {
    if (bounded.rows() == 132) bounded.drop_front(64);
    ASSERT_TRUE(bounded.reserve(limited, 1, 132));
    write(bounded, p, p);
    if (p >= 132) {
      ASSERT_EQ(bounded.capacity(), 132u);
    }
  }
  bounded.reset(limited);
}

TEST_F(TailTest, RowsComeBackInFront) {
  tail.configure(kDim, 1, false);
  ASSERT_TRUE(tail.reserve(arena, 40, 0));
  for (uint32_t p = 0; p < 40; ++p) {
    write(tail, p, p);
    tail.stats_row(p)[0] = static_cast<float>(p);
  }
  std::vector<uint16_t> keys(tail.key_row(0), tail.key_row(0) + 4 * kDim), values(tail.value_row(0), tail.value_row(0) + 4 * kDim);
  const float stats[] = {0, 1, 2, 3};
  tail.drop_front(4);
  ASSERT_TRUE(tail.can_push_front(4));
  tail.push_front(4, keys.data(), values.data(), stats);
  std::deque<Row> expected;
  for (uint32_t p = 0; p < 40; ++p) expected.push_back({p, p, static_cast<float>(p)});
  EXPECT_TRUE(holds(tail, expected, 1));
}

TEST(TailLimit, RefusedGrowthChangesNothing) {
  Arena arena(64 << 10);
  Tail tail;
  tail.configure(kDim, 1, false);
  std::deque<Row> rows;
  uint32_t p = 0;
  while (tail.reserve(arena, 1, 0)) {
    write(tail, p, p);
    rows.push_back({p, p});
    ++p;
  }
  EXPECT_GT(p, 100u);
  EXPECT_TRUE(holds(tail, rows, 1));
  tail.reset(arena);
}

}  // namespace
}  // namespace tierkv::tiers
