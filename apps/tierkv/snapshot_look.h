// snapshot_look.h — `tierkv snapshot inspect` and `verify`: what a file of a sequence holds, and whether it is whole.
#pragma once

#include <cstdint>
#include <string>

#include "engine/sampler.h"
#include "options.h"

namespace tierkv::cli {

// Of all parts of the command.
struct SnapshotRequest {
  Options options;
  SamplerOptions sampler;
  std::string path, prompt, file;
  uint32_t tokens = 0;
  bool chat = false;
  bool deep = false;
  double ratio = 0.0, quality = 0.0;
};

int run_inspect(SnapshotRequest& request);
int run_verify(SnapshotRequest& request);

}  // namespace tierkv::cli
