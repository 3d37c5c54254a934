// heat.h — how much queries looked at archived blocks lately (policy/promotion.h), of one layer of a sequence.
//
// A memory aid, not a part of the sequence: forks and loaded sequences begin without, and an entry whose block is gone is forgotten
// at the next look.
#pragma once

#include <cstdint>
#include <vector>

namespace tierkv::tiers {

struct BlockHeat {
  uint32_t head = 0, first_position = 0;
  float heat = 0.0f;

  bool before(uint32_t other_head, uint32_t position) const {
    return head != other_head ? head < other_head : first_position < position;
  }
};

struct LayerHeat {
  uint32_t calls = 0;             // attention calls since the last look
  std::vector<BlockHeat> blocks;  // in order of head and position; those that are cold are left out
};

}  // namespace tierkv::tiers
