// bench_run.h — times cache settings against each other.
//
// A time alone means nothing on a busy machine, so all sessions are open at once and take turns: a slice of the prompt each, then a
// token each, with another one first every round.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deep_eval.h"
#include "eval_common.h"
#include "options.h"
#include "output.h"

namespace CLI {
class Option;
}

namespace tierkv::cli {

struct BenchRequest {
  Options options;
  std::vector<std::string> stock = {"f16", "q8_0", "q4_0"};
  std::vector<uint32_t> depths = {0, 1024, 2048, 4096, 8192};
  uint32_t tokens = 64, warm_up = 2, micro_batch = 256;
  double deep = 0.0;  // ratio; 0: not measured
  std::string file;
  const CLI::Option* depths_option = nullptr;
};

struct BenchSetting {
  SettingSpec spec;
  std::unique_ptr<Session> session;
  double prefill = 0.0;  // seconds so far
};

// One setting at one depth.
struct BenchPoint {
  SettingSpec spec;
  uint32_t depth = 0;
  double prefill = 0.0;       // seconds for the whole prompt
  double first_token = 0.0;   // until the first token could be chosen
  std::vector<double> steps;  // seconds of a decode step
  uint64_t resident = 0;
  ProcessMemory process;  // with every setting in it
  bool has_host = false;
  llama::HostTimes host;  // of the decode steps
  std::string path;
  std::optional<ParkTimes> nap;

  double total() const {
    double sum = 0.0;
    for (const double step : steps) sum += step;
    return sum;
  }
};

// Every setting at every depth, in the order of depths. REQUIRES: depths ascend, and the text is longer than the last of them by
// the tokens that are decoded.
std::vector<BenchPoint> run_bench(Engine& engine, const BenchRequest& request, const Tokens& text,
                                  std::vector<BenchSetting>& settings);

}  // namespace tierkv::cli
