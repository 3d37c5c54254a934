// recall_run.h — one setting reads texts and is asked about them.
//
// An answer is looked at in three ways. The expected tokens are fed behind the question, which gives their probability and, as long
// as each is the likeliest, the greedy answer itself. Where it is not, the model goes on from there: once with nothing but digits
// to choose from, and once freely.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "eval_common.h"
#include "recall_answer.h"
#include "recall_plan.h"
#include "terminal.h"

namespace tierkv::cli {

// What one setting said to one question.
struct RecallAnswer {
  bool correct = false;  // numbers: forced into digits; quotes: every word
  std::string said;      // numbers: the forced number; quotes: the copy, until a few tokens behind the first difference
  bool free_correct = false;
  std::string free;                 // greedy, without a mask: up to the end of its first number. Quotes: as `said`
  double p_digits = 0.0;            // numbers: probability of the expected one among numbers of that length
  double p_all = 0.0;               // among everything
  double p_token = 0.0;             // the geometric mean over the tokens, among everything
  uint32_t leading = 0, words = 0;  // quotes: words copied before the first difference, and words asked for
};

class Recall {
 public:
  Recall(Engine& engine, const RecallRequest& request, const SettingSpec& spec, uint32_t longest, const DigitMask& mask);
  // An answer to each question of the reading. Progress counts from `done`.
  std::vector<RecallAnswer> read(const Reading& reading, Progress& progress, uint64_t done);

 private:
  // What the logits said while the expected answer was fed.
  struct Followed {
    uint32_t forced = 0, free = 0;  // tokens from the first on that were the likeliest, with the mask and without
    bool ends = false;              // behind the last, no further digit or letter was
    double log_digits = 0.0, log_all = 0.0;
  };
  RecallAnswer ask(const Question& question, Checkpoint& checkpoint);
  Followed follow(const Question& question);
  std::string go_on(const Question& question, uint32_t right, bool forced, Checkpoint& checkpoint);

  Engine& engine_;
  const RecallRequest& request_;
  const DigitMask& mask_;
  std::unique_ptr<Session> session_;
};

}  // namespace tierkv::cli
