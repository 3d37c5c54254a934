// spill_mode.h — what the key `spill` says: whether archive blocks may go to the cold file, and which of them attention loads.
#pragma once

#include <cstdint>
#include <string_view>

#include "tierkv/status.h"

namespace tierkv::config {

struct SpillMode {
  enum class Kind : uint8_t { off, exact, top, bounded };
  Kind kind = Kind::off;
  uint32_t top = 0;      // blocks of a KV head that a decoding step loads
  double bounded = 0.0;  // mass that all blocks it leaves out may have together
};

// "off", "exact", "top:K", "bounded:EPS".
Result<SpillMode> parse_spill_mode(std::string_view text);

}  // namespace tierkv::config
