// ppl_run.h — scores cache settings over the same windows of a text.
//
// Every window is fed through the caches in chunks of --chunk tokens, all settings in lockstep: the reference first, whose logits
// of the chunk are kept until every other setting has been compared with them. So memory is one chunk's logits, however long the
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deep_eval.h"
#include "eval_common.h"
#include "eval_stats.h"
#include "options.h"
#include "output.h"

namespace tierkv::cli {

struct PplRequest {
  Options options;
  std::vector<std::string> stock;
  std::string file;
  std::string reference = "fp16", compare;
  uint32_t ctx = 0, chunk = 32;
  uint64_t tokens = 16384, from = 0;
  int64_t skip = -1;
  bool learn = false;
  std::vector<double> deep, deep_quality;
  std::string deep_kv = "fp16,sinks=4";
  uint32_t deep_every = 512, deep_recent = 512;
};

struct PplSetting {
  SettingSpec spec;
  std::unique_ptr<Session> session;
  std::unique_ptr<DeepPacker> deep;  // or null
  std::string deep_label;
  std::string label() const { return deep ? deep_label : spec.label(); }
  PairedScores scores;
  double seconds = 0.0;
  // At the end of the longest window.
  MemoryStats memory;
  uint64_t resident = 0;
  ProcessMemory process;  // with every setting in it
};

// A text cut into windows, each scored but for its first `skip` tokens.
struct ScoredWindows {
  std::vector<Tokens> windows;
  uint32_t skip = 0;
  uint32_t block = 0;  // tokens of a block of the standard error
  uint64_t fed = 0, scored = 0;
};

// REQUIRES: ctx is no longer than the model's context.
ScoredWindows make_windows(const PplRequest& request, const Engine& engine, const Tokens& source, uint32_t ctx);

// Feeds every window to every setting; the first is the reference. Memory is taken at the end of the first window.
void score(const ScoredWindows& text, const PplRequest& request, std::vector<PplSetting>& settings);

}  // namespace tierkv::cli
