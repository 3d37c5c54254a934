#include "quant/turned_queries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "quant/isa.h"

namespace tierkv::quant {
namespace {

enum class Order { neighbours, halves, mixed, few_halves };

calib::Rope rope_of(Order order, uint32_t d) {
  const uint32_t pairs = order == Order::few_halves ? 16 : order == Order::mixed ? d / 2 - 3 : d / 2;
  calib::Rope rope;
  for (uint32_t p = 0; p < pairs; ++p) {
    const double angle = std::pow(10000.0, -2.0 * p / d);
    const uint32_t a = order == Order::neighbours ? 2 * p : p;
    const uint32_t b = order == Order::neighbours ? a + 1 : order == Order::mixed ? d - 1 - p : p + pairs;
    rope.push_back({static_cast<uint16_t>(a), static_cast<uint16_t>(b), angle});
  }
  return rope;
}

double farthest(const float* a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < b.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - b[i]));
  return most;
}

// Blocks in a row, further than a run of steps goes; one left out, one twice, one before.
TEST(TurnedQueries, TurningOnIsTurningAfresh) {
  constexpr BlockShape kShape{128, 64};
  constexpr uint32_t kCount = 3;
  std::vector<uint32_t> blocks;
  for (uint32_t b = 0; b < 3 * kMostSteps; ++b) blocks.push_back(b);
  blocks.insert(blocks.end(), {60, 61, 61, 62, 5, 6, 7});
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<float> queries(kCount * kShape.head_dim), fresh(queries.size());
  for (float& q : queries) q = normal(rng);
  const std::string_view before = active_isa();
  for (const std::string_view isa : available_isas()) {
    ASSERT_TRUE(set_active_isa(isa));
    for (const Order order : {Order::neighbours, Order::halves, Order::mixed, Order::few_halves}) {
      const calib::Turner turner(rope_of(order, kShape.head_dim), kShape.head_dim);
      EXPECT_EQ(turner.apart(), order == Order::neighbours   ? 1u
                                : order == Order::halves     ? 32u
                                : order == Order::few_halves ? 16u
                                                             : 0u);
      Workspace ws;
      ws.queries_id = 3;
      bool stepped = false;
      for (const uint32_t b : blocks) {
        const uint32_t first = 77 + kShape.tokens * b;
        turner.turn(queries.data(), kCount, -static_cast<int64_t>(first), fresh.data());
        const float* turned = turn_to_block(turner, kShape, queries.data(), kCount, first, ws);
        ASSERT_LT(farthest(turned, fresh), 2e-5) << isa << " order " << static_cast<int>(order) << " block " << b;
        stepped |= ws.turned.steps != 0;
      }
      EXPECT_EQ(stepped, active_kernels() && order != Order::mixed);
    }
  }
  set_active_isa(before);
}

// Who begins at a block, or comes to it from elsewhere, has the bits of who came to it block by block.
TEST(TurnedQueries, BitsDependOnTheBlockAlone) {
  constexpr BlockShape kShape{128, 64};
  const calib::Turner turner(rope_of(Order::halves, 64), 64);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<float> queries(3 * 64);
  for (float& q : queries) q = normal(rng);
  Workspace in_a_row;
  in_a_row.queries_id = 9;
  for (uint32_t b = 0; b < 3 * kMostSteps; ++b) {
    const uint32_t first = 4 + kShape.tokens * b;
    const float* turned = turn_to_block(turner, kShape, queries.data(), 3, first, in_a_row);
    const std::vector<float> want(turned, turned + queries.size());
    Workspace fresh, jumping;
    jumping.queries_id = 9;
    turn_to_block(turner, kShape, queries.data(), 3, 4 + kShape.tokens * (b * 7 % 40), jumping);
    for (Workspace* ws : {&fresh, &jumping}) {
      turned = turn_to_block(turner, kShape, queries.data(), 3, first, *ws);
      ASSERT_EQ(std::vector<float>(turned, turned + queries.size()), want) << b;
    }
  }
}

TEST(TurnedQueries, OtherQueriesBeginAgain) {
  constexpr BlockShape kShape{128, 64};
  const calib::Turner turner(rope_of(Order::neighbours, 64), 64), other(rope_of(Order::halves, 64), 64);
  std::vector<float> a(2 * 64, 1.0f), b(2 * 64, -2.0f), fresh(2 * 64);
  Workspace ws;
  const struct {
    uint64_t id;
    const calib::Turner* turner;
    const float* queries;
    uint32_t count;
  } all[] = {{1, &turner, a.data(), 2}, {1, &turner, b.data(), 2}, {2, &turner, b.data(), 2}, {2, &turner, b.data(), 1},
             {2, &other, b.data(), 1},  {0, &other, b.data(), 1},  {0, &other, a.data(), 1}};
  uint32_t first = 0;
  for (const auto& asked : all) {
    ws.queries_id = asked.id;
    first += kShape.tokens;
    const float* turned = turn_to_block(*asked.turner, kShape, asked.queries, asked.count, first, ws);
    fresh.resize(asked.count * 64);
    asked.turner->turn(asked.queries, asked.count, -static_cast<int64_t>(first), fresh.data());
    EXPECT_LT(farthest(turned, fresh), 2e-5) << "position " << first;
  }
}

}  // namespace
}  // namespace tierkv::quant
