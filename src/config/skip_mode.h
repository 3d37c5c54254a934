// skip_mode.h — what the key `skip` says: which resident archive blocks a decoding step may leave unread.
#pragma once

#include <cstdint>
#include <string_view>

#include "tierkv/status.h"

namespace tierkv::config {

struct SkipMode {
  enum class Kind : uint8_t { off, top, bounded, top_p };
  Kind kind = Kind::off;
  uint32_t top = 0;    // blocks of a KV head that are read
  double share = 0.0;  // bounded: attention that all blocks it leaves out may have together; top_p: that those it reads shall have
};

// "off", "bounded:EPS", "top:K", "top_p:P".
Result<SkipMode> parse_skip_mode(std::string_view text);

}  // namespace tierkv::config
