// promotion.h — which archived blocks of a KV head come back in more bits, and which go again: a pure decision, as policy.h. Moves
// no bytes.
//
// The heat of a block is the share of attention that queries gave it when somebody looked, fading by half from look to look. A
// block comes back above kEnterHeat and goes below kLeaveHeat, a quarter of that, so that one near the bound does not come and go.
// Where no room is left it takes the place of the coldest, if it is clearly hotter. Few blocks move at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tierkv::policy {

inline constexpr float kEnterHeat = 0.05f, kLeaveHeat = 0.0125f;  // the first is AKV's
inline constexpr float kHeatFades = 0.5f;
inline constexpr float kClearlyHotter = 1.5f;
inline constexpr uint32_t kMostPromoted = 4;  // of a KV head at a time

// `seen`: the share of attention, averaged over the queries and their heads.
inline float next_heat(float heat, float seen) { return heat * kHeatFades + seen * (1.0f - kHeatFades); }

struct PromotionCandidate {
  float heat = 0.0f;
  bool promoted = false;
  bool has_copy = false;  // it could be
};

struct PromotionMoves {
  std::vector<size_t> promote, demote;  // indices of candidates
};

// `room`: blocks of the head that may be promoted together.
PromotionMoves choose_promotions(std::span<const PromotionCandidate> blocks, uint32_t room);

}  // namespace tierkv::policy
