// recall_run.h — one setting reads texts and is asked about them.
//
// An answer is looked at in three ways. The expected tokens are fed behind the question, which gives their probability and, as long
// as each is the likeliest, the greedy answer itself. Where it is not, the model goes on from there: once with nothing but digits
// to choose from, and once freely.
//
// Texts are read as prompts are. So are questions and expected answers, unless one of the settings leaves blocks unread when it
// decodes (`skip`): prompts read all of them, and what such a setting loses would not be seen. Then all settings get everything
// behind the text one token at a time, which is harder than what most questions are, namely prompts; or the answer alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  // Archive blocks that the steps behind the text had a choice about, of all layers and KV heads, and the most that those skipped
  // in one step may have had of a query's attention, in the answers up to this one.
  uint64_t read_blocks = 0, skipped_blocks = 0;
  double skipped_mass = 0.0;
};

class Recall {
 public:
  Recall(Engine& engine, const RecallRequest& request, const SettingSpec& spec, uint32_t longest, const DigitMask& mask);
  // An answer to each question of the reading. Progress counts from `done`. With `keep`, kept() then has what the text left in the
  // cache.
  std::vector<RecallAnswer> read(const Reading& reading, Progress& progress, uint64_t done, bool keep = false);
  const std::vector<std::byte>& kept() const { return kept_; }
  // The same of what another setting that reads alike (eval_common.h) kept of the reading.
  std::vector<RecallAnswer> take_over(const Reading& reading, std::span<const std::byte> kept);

 private:
  // What the logits said while the expected answer was fed.
  struct Followed {
    uint32_t forced = 0, free = 0;  // tokens from the first on that were the likeliest, with the mask and without
    bool ends = false;              // behind the last, no further digit or letter was
    double log_digits = 0.0, log_all = 0.0;
  };
  std::vector<RecallAnswer> ask_all(const Reading& reading);
  RecallAnswer ask(const Question& question, Checkpoint& checkpoint);
  RecallAnswer look(const Question& question, Checkpoint& checkpoint);
  Followed follow(const Question& question);
  // Tokens behind the text, of which the question is the first part. Logits of each from the question's last on, or of the last.
  void feed(const Question& question, std::span<const llama_token> answer, Want want, const OnLogits& on_logits = {});
  std::string go_on(const Question& question, uint32_t right, bool forced, Checkpoint& checkpoint);

  Engine& engine_;
  const RecallRequest& request_;
  const DigitMask& mask_;
  std::unique_ptr<Session> session_;
  std::vector<std::byte> kept_;
};

}  // namespace tierkv::cli
