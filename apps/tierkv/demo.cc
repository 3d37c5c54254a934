// demo.cc — `tierkv demo`: a model reads a story with several caches, one after the other, and is asked three questions about it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "eval_common.h"
#include "eval_stats.h"
#include "generation.h"
#include "learning.h"
#include "load_engine.h"
#include "story.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv demo                             fp16, int8 and balanced: a few minutes on two cores\n"
    "  tierkv demo --tokens 2000               a quick look: the story's beginning, and the questions that it answers\n"
    "  tierkv demo --kv fp16 --kv kivi2 --kv hot=32,warm=0,archive=rot2\n"
    "\n"
    "The story is in the program. Every token is scored as it is read, 32 at a time: perplexity is over the whole story. Answers "
    "are "
    "the\n"
    "likeliest words, and one is right when it contains what the story says. Nothing is read twice: each question starts from a "
    "copy "
    "of\n"
    "the cache that shares its blocks.";

constexpr uint32_t kChunk = 32;         // tokens read at a time
constexpr uint32_t kAnswerTokens = 12;  // of an answer at most
constexpr size_t kBlock = 256;          // tokens of a block of the standard error

struct Request {
  Options options;
  uint32_t tokens = 0;
};

struct Question {
  const Fact* fact;
  double depth = 0;  // where the story tells it, as a share of its tokens
  Tokens tokens;
};

struct Text {
  Tokens tokens;
  json facts = json::array();       // all of the story's, read or not
  std::vector<Question> questions;  // those whose answer has been read

  // Tokens of the longest question and its answer.
  size_t room() const {
    size_t longest = 0;
    for (const Question& question : questions) longest = std::max(longest, question.tokens.size() + kAnswerTokens);
    return longest;
  }
};

struct Answer {
  std::string text;
  bool right = false;
};

struct Outcome {
  std::string kv;
  std::vector<Answer> answers;
  MemoryStats memory;
  SessionTimes times;
  std::vector<double> losses;      // of each token but the first
  PairedResult score;              // beside the first setting's
  double delta = 0, delta_se = 0;  // of the perplexity, relative to the first setting's, in percent
  json details;

  size_t right() const {
    return static_cast<size_t>(std::count_if(answers.begin(), answers.end(), [](const Answer& a) { return a.right; }));
  }
};

Text make_text(const Engine& engine, uint32_t tokens) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const std::string whole = story();
  Text text;
  text.tokens = tokenizer.encode(whole, true);
  const double length = static_cast<double>(text.tokens.size());
  if (tokens != 0 && text.tokens.size() > tokens) text.tokens.resize(tokens);
  const std::string read = tokenizer.decode(text.tokens);
  for (const Fact& fact : story_facts()) {
    const std::string before = whole.substr(0, whole.find(fact.answer));
    const double depth = static_cast<double>(tokenizer.encode(before, true).size()) / length;
    text.facts.push_back({{"question", fact.question}, {"expected", fact.answer}, {"depth_percent", 100 * depth}});
    if (read.find(fact.answer) == std::string::npos) continue;
    const std::string question = std::string("\n\nQuestion: ") + fact.question + "\nAnswer: " + fact.beginning;
    text.questions.push_back({&fact, depth, tokenizer.encode(question, false)});
  }
  return text;
}

void read_story(Session& session, const Tokens& tokens, Outcome& outcome, bool quiet) {
  Progress progress(format("%-9s reading", outcome.kv.c_str()), tokens.size(), quiet);
  // The logits of one token are the prediction of the next.
  session.feed(
      tokens, Want::all,
      [&](uint32_t i, std::span<const float> row) {
        if (i + 1 >= tokens.size()) return;
        outcome.losses.push_back(summarise(row).log_sum_exp - static_cast<double>(row[static_cast<size_t>(tokens[i + 1])]));
      },
      kChunk, [&](uint32_t done) { progress.update(done); });
}

Answer ask(const Engine& engine, Session& session, const Question& question) {
  session.feed(question.tokens, Want::last);
  Sampler likeliest(SamplerOptions{}, 0);
  GenerateOptions generation;
  generation.tokens = kAnswerTokens;
  const Generated result = generate(engine, session, likeliest, generation);
  if (result.stop == "interrupted") throw Cancelled();
  Answer answer;
  answer.text = result.text.substr(0, result.text.find('\n'));
  answer.text.erase(0, std::min(answer.text.size(), answer.text.find_first_not_of(' ')));
  answer.right = answer.text.find(question.fact->answer) != std::string::npos;
  return answer;
}

Outcome run_one(const Request& request, Engine& engine, const std::string& kv, const Text& text) {
  Outcome outcome;
  outcome.kv = kv;
  const auto session = engine.open_session(kv, learning_session());
  LearningRemarks learning(engine, request.options.quiet);
  read_story(*session, text.tokens, outcome, request.options.quiet);
  learning.tell(*session);
  outcome.memory = session->memory();
  outcome.details = session_json(engine, *session);
  const SessionTimes reading = session->times();
  Progress progress(format("%-9s answering", kv.c_str()), text.questions.size(), request.options.quiet);
  Checkpoint checkpoint(engine, *session, text.tokens);
  for (const Question& question : text.questions) {
    if (!outcome.answers.empty()) checkpoint.restore();
    outcome.answers.push_back(ask(engine, *session, question));
    progress.update(outcome.answers.size());
  }
  outcome.times = session->times();
  outcome.times.prefill_s = reading.prefill_s;
  outcome.times.prefill_tokens = reading.prefill_tokens;
  learning.finish(*session);
  return outcome;
}

void compare(Outcome& outcome, const Outcome& reference) {
  PairedScores scores;
  for (size_t i = 0; i < outcome.losses.size(); ++i) {
    if (!std::isfinite(outcome.losses[i])) fail(outcome.kv + " gave logits that are not numbers at token " + std::to_string(i));
    scores.add(i / kBlock, outcome.losses[i], reference.losses[i], 0.0, true);
  }
  outcome.score = scores.result();
  const double ppl = outcome.score.ppl - outcome.score.delta;  // the reference's
  outcome.delta = 100.0 * outcome.score.delta / ppl;
  outcome.delta_se = 100.0 * outcome.score.delta_se / ppl;
}

void print_beginning(Engine& engine, const Text& text) {
  std::printf("%s reads a story, \"%s\" (%s tokens), and is then asked %s about it.\n", bold(engine.title()).c_str(),
              story_title().c_str(), human_count(text.tokens.size()).c_str(),
              text.questions.empty()       ? "nothing"
              : text.questions.size() == 1 ? "one question"
                                           : format("%zu questions", text.questions.size()).c_str());
  std::printf(
      "A KV cache is what a model remembers of a text: for every token, in every layer, a key to find it by and a value to take "
      "from it.\n"
      "Each part below is the same model with the same story and another cache; the first keeps 16 bits a number, as is usual.\n"
      "A full bar is what that takes: %s first tokens, %s newest, %s recent, %s archive. Perplexity is how surprised the model is "
      "by "
      "the story; lower is better.\n\n",
      tier_colour(Tier::sink, "S").c_str(), tier_colour(Tier::hot, "H").c_str(), tier_colour(Tier::warm, "W").c_str(),
      tier_colour(Tier::archive, "A").c_str());
  std::fflush(stdout);
}

void print_outcome(const Outcome& o, Engine& engine, const Text& text, bool reference) {
  const llama::ModelShape& shape = engine.shape();
  const int bar = std::clamp(terminal_width() - 60, 24, 60);
  const std::string indent(10, ' ');
  std::printf("%s |%s| %s %s\n", bold(format("%-9s", o.kv.c_str())).c_str(), tier_bar(o.memory, o.memory.fp16_bytes, bar).c_str(),
              bold(human_bytes(static_cast<double>(o.memory.resident_bytes()))).c_str(), dim(versus_fp16(o.memory)).c_str());
  std::printf("%s", tier_lines(o.memory, shape.layers * shape.kv_heads, shape.head_dim, indent).c_str());
  std::printf("%sperplexity %.3f %s, reads %.0f tokens/s, writes %.1f tokens/s\n", indent.c_str(), o.score.ppl,
              reference ? "(the reference)" : format("(%+.2f %% ± %.2f)", o.delta, o.delta_se).c_str(), o.times.prefill_rate(),
              o.times.decode_rate());
  for (size_t i = 0; i < o.answers.size(); ++i) {
    const Question& question = text.questions[i];
    std::printf("%s%s %s\n%s  %s %s %s\n", indent.c_str(), question.fact->question,
                dim(format("(told at %.0f %% of the story)", 100 * question.depth)).c_str(), indent.c_str(),
                o.answers[i].right ? green("✓ right").c_str() : red("✗ wrong").c_str(), dim(question.fact->beginning).c_str(),
                o.answers[i].text.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

json outcome_json(const Outcome& o, const Text& text) {
  json value = o.details;
  json answers = json::array();
  for (size_t i = 0; i < o.answers.size(); ++i) {
    const Question& question = text.questions[i];
    answers.push_back({{"question", question.fact->question},
                       {"beginning", question.fact->beginning},
                       {"expected", question.fact->answer},
                       {"answer", o.answers[i].text},
                       {"right", o.answers[i].right}});
  }
  value["answers"] = answers;
  value["right"] = o.right();
  value["ppl"] = o.score.ppl;
  value["delta_ppl_percent"] = o.delta;
  value["delta_ppl_percent_se"] = o.delta_se;
  value["decode_tokens"] = o.times.decode_tokens;
  value["decode_seconds"] = o.times.decode_s;
  value["decode_tokens_per_second"] = o.times.decode_rate();
  return value;
}

// What was saved at what cost: the last setting against the first.
std::string closing(const std::vector<Outcome>& outcomes, const Text& text) {
  const Outcome &first = outcomes.front(), &last = outcomes.back();
  const double smaller =
      static_cast<double>(first.memory.resident_bytes()) / static_cast<double>(std::max<uint64_t>(1, last.memory.resident_bytes()));
  std::string sentence = "In words: \"" + last.kv + "\" remembers all " + human_count(text.tokens.size()) + " tokens in " +
                         human_bytes(static_cast<double>(last.memory.resident_bytes())) + " instead of " +
                         human_bytes(static_cast<double>(first.memory.resident_bytes())) +
                         format(", %.1f times less memory; perplexity changes by %+.1f %%", smaller, last.delta);
  if (text.questions.empty()) return sentence + ".";
  sentence += format("; of %zu questions it answers %zu right, \"%s\" %zu", text.questions.size(), last.right(), first.kv.c_str(),
                     first.right());
  const double speed = first.times.decode_rate() > 0 ? last.times.decode_rate() / first.times.decode_rate() : 0;
  return sentence + format("; it writes %.2f times as fast.", speed);
}

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.empty()) options.kv = {"fp16", "int8", "balanced"};
  check_kv(options.kv);
  Engine engine = load_engine(options);
  (void)engine.shape();  // refuses what the cache does not serve, and settles the context
  const Text text = make_text(engine, request.tokens);
  engine.check_context(text.tokens.size() + text.room());
  if (options.text()) print_beginning(engine, text);
  std::vector<Outcome> outcomes;
  json results = json::array();
  for (const std::string& kv : options.kv) {
    outcomes.push_back(run_one(request, engine, kv, text));
    compare(outcomes.back(), outcomes.front());
    if (options.text()) print_outcome(outcomes.back(), engine, text, outcomes.size() == 1);
    results.push_back(outcome_json(outcomes.back(), text));
  }
  const std::string sentence = closing(outcomes, text);
  if (options.text() && outcomes.size() > 1) std::printf("%s\n", sentence.c_str());
  emit_json(options, {{"command", "demo"},
                      {"model", engine.name()},
                      {"title", engine.title()},
                      {"story", story_title()},
                      {"tokens", text.tokens.size()},
                      {"facts", text.facts},
                      {"results", results},
                      {"summary", sentence}});
  return 0;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
      app, action, "demo", "A model reads a story with several caches and is asked about it, side by side", kFooter, run);
  command->add_option("--tokens", request->tokens, "read only so many tokens of the story (default: all of it)")
      ->check(CLI::Range(64u, 1u << 24));
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "fp16, int8 and balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
