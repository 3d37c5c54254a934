// recall_run.h — hides numbers in a long text and asks a model for them.
//
//   passkey  one number in a long text. The text before it is read once for all keys at that depth and all greater depths.
//   lines    as many named numbers as depths (or --keys); one reading serves the questions about every one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "eval_common.h"
#include "options.h"
#include "recall_text.h"
#include "terminal.h"

namespace tierkv::cli {

struct RecallRequest {
  Options options;
  std::vector<std::string> stock, tasks = {"passkey", "lines"};
  std::vector<uint32_t> ctx;
  std::vector<double> depths = {5, 25, 50, 75, 95};
  uint32_t trials = 2, keys = 8, micro_batch = 256;
  double deep = 0.0;  // ratio; 0: as it is
  bool learn = false;
  std::string haystack, plot;
};

// What one setting found at one depth.
struct RecallCell {
  std::string task;
  SettingSpec setting;
  uint32_t ctx = 0;
  double depth = 0.0;
  uint32_t correct = 0, total = 0;
  std::vector<std::string> wrong;  // what was said instead
};

// The tokens of a text, and the places where a sentence ends.
struct Haystack {
  Tokens tokens;
  std::vector<size_t> ends;

  // The end of a sentence nearest to a share of the first `length` tokens.
  size_t place(size_t length, double share) const {
    const size_t wanted = static_cast<size_t>(std::lround(share * static_cast<double>(length)));
    size_t best = wanted, distance = 64;  // without a sentence near by, the middle of one
    for (const size_t end : ends) {
      const size_t off = end > wanted ? end - wanted : wanted - end;
      if (end <= length && off < distance) best = end, distance = off;
    }
    return best;
  }
};

// The haystack that the request names, or a generated one; `length` tokens.
Haystack make_haystack(const RecallRequest& request, const Engine& engine, size_t length);

// One setting, asked again and again. The progress bar counts tokens over all settings.
class Recall {
 public:
  Recall(Engine& engine, const RecallRequest& request, const SettingSpec& spec, uint32_t longest, Progress& progress);

  // Tokens that the progress bar has seen before.
  void starts_at(uint64_t base) { base_ = base, done_ = 0; }
  // A cell for each depth.
  std::vector<RecallCell> passkey(uint32_t ctx, const Haystack& haystack);
  std::vector<RecallCell> lines(uint32_t ctx, const Haystack& haystack);
  // Tokens that will be fed, for the progress bar.
  static uint64_t work(const RecallRequest& request, const std::string& task, uint32_t ctx);

 private:
  void lines_trial(uint32_t ctx, const Haystack& haystack, std::mt19937& random, std::vector<RecallCell>& cells);
  RecallCell empty_cell(const char* task, uint32_t ctx, double depth) const { return {task, spec_, ctx, depth, 0, 0, {}}; }
  Tokens tokens(const std::string& text) const { return engine_.tokenizer().encode(text, false); }
  Tokens begin(const char* introduction) const;
  void feed(const Tokens& tokens, Want want);
  void nap();
  void judge(RecallCell& cell, const Needle& needle);

  Engine& engine_;
  const RecallRequest& request_;
  const SettingSpec& spec_;
  Progress& progress_;
  std::unique_ptr<Session> session_;
  uint64_t base_ = 0, done_ = 0;
};

}  // namespace tierkv::cli
