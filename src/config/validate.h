// validate.h — what is impossible about a configuration, as data: apply_toml() shows the line, validate() does not.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "tierkv/config.h"

namespace tierkv::config {

struct ConfigProblem {
  // Paths of the keys that do not fit together ("warm_block", "eviction.pool", "layer[2].hot"); the first is the one to blame.
  std::vector<std::string> keys;
  std::string message;
};

// `whole`: the model must be there. Otherwise what is still 0 is not judged, because the program will set it later.
std::vector<ConfigProblem> find_problems(const CacheConfig& config, bool whole);

}  // namespace tierkv::config
