// compare.h — `--compare SPEC`: other people's ways to keep a cache small beside ours, each at the resident bytes that SPEC has at
// the end of a window.
//
// Everything counts: rows, scales, headers, statistics, unused capacity, and SPEC's tables too. What gives way is each one's own
// measure: an eviction policy keeps fewer FP16 rows, an archive by age alone has wider or narrower codes, a quantizer without tiers
// a shorter or longer FP16 window. The bytes are not estimated: caches of the model's shape are filled with made-up rows, and the
// largest setting that does not take more than SPEC is used. Where even the least takes more, that is used, and says so.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval_common.h"

namespace CLI {
class App;
}

namespace tierkv::cli {

struct Compared {
  SettingSpec spec;
  uint64_t bytes = 0;    // resident at the end of a window, of made-up rows
  bool fits = true;      // no more than the bytes that are to be equalled
  std::string gave_way;  // "412 tokens kept", "archive at 1.75 bits"; empty for SPEC itself
};

void add_compare_option(CLI::App& app, std::string& compare);

// SPEC first, named "ours", then the others. `chunk`: tokens fed at a time. Error: SPEC does not work for the model.
std::vector<Compared> rivals_of(Engine& engine, const std::string& ours, uint32_t ctx, uint32_t chunk, bool quiet);

// Into results of these settings: "label", and "compare" with the bytes and what gave way.
void add_compared(nlohmann::json& values, const std::vector<Compared>& rivals);
// A line for each: what stands behind its name, and its bytes.
void print_rivals(const std::vector<Compared>& rivals);

}  // namespace tierkv::cli
