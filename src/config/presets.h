// presets.h — the named starting points.
#pragma once

#include <span>

#include "tierkv/config.h"

namespace tierkv::config {

struct Preset {
  const char* name;
  const char* summary;
  uint32_t hot, warm;
  const char* warm_codec;
  const char* archive_codec;
  uint32_t sinks;
  uint32_t warm_block, archive_block;
  double deep_ratio = 0.0;
};

std::span<const Preset> presets();

}  // namespace tierkv::config
