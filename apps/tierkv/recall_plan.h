// recall_plan.h — which texts are read and what is asked after each. The same for every setting, and settled by the seed.
//
//   passkey  one number in a text. A reading for each depth and trial.
//   quote    a sentence in the same readings, to be copied word for word; at least 500 tokens stand between it and the question.
//   lines    as many named numbers as depths (or --keys); a reading for each trial serves the questions about every depth.
//
// Every reading has a stretch of text of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/tokenizer.h"
#include "options.h"

namespace tierkv::cli {

struct RecallRequest {
  Options options;
  std::vector<std::string> stock, tasks = {"passkey", "quote"};
  std::vector<uint32_t> ctx;
  std::vector<double> depths = {5, 25, 50, 75, 95};
  uint32_t trials = 2, keys = 8, quotes = 1, micro_batch = 256;
  double deep = 0.0;               // ratio; 0: as it is
  bool learn = false;              // the cache learns the model in passing
  bool by_token = false;           // answers go in one token at a time, as decoding does it
  std::string question = "token";  // and then questions too, or as prompts
  bool question_by_token() const { return by_token && question == "token"; }
  std::vector<std::string> kinds, haystacks;  // generated texts, and files
  std::string plot, compare;
  bool has(const char* task) const;
};

// A text to hide things in. `content` is empty for a generated one.
struct TextSource {
  std::string kind;  // prose, code, ...; of a file its name
  std::string content;
};
// Reads the files. Error, bad_input, for one that has no text.
std::vector<TextSource> text_sources(const RecallRequest& request);

struct Question {
  std::string task;
  double depth = 0.0;
  Tokens question, answer;  // answer: " " and what is expected, as it continues the question
  std::string expected;
  uint32_t away = 0;  // tokens of the text behind what is asked for
};

struct Reading {
  std::string kind;
  uint32_t ctx = 0, trial = 0;
  uint64_t stretch = 0;  // the seed of a generated text; of a file the byte it starts at
  Tokens text;
  std::vector<Question> questions;
};

// REQUIRES: tasks, depths (sorted) and lengths are settled. Error, bad_input, for a length that has no room.
std::vector<Reading> plan_readings(const RecallRequest& request, const std::vector<TextSource>& sources,
                                   const Tokenizer& tokenizer);

// Tokens that an answer may take beside the expected ones.
constexpr uint32_t kAnswerTokens = 12;

}  // namespace tierkv::cli
