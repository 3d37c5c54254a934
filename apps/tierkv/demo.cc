// demo.cc — `tierkv demo`: a real model reads the project's documentation with several cache settings, side by side.
//
// For every setting: the document is read, its last part is scored token by token (perplexity), the model continues the text, and,
// from a fork of the same cache, answers a question about a fact hidden in the document. The first setting is the yardstick.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "document.h"
#include "engine.h"
#include "generation.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv demo                             fp16, int8 and balanced on 6,000 tokens: a few minutes on two cores\n"
    "  tierkv demo --tokens 2000               a quick look\n"
    "  tierkv demo --kv fp16 --kv kivi2 --kv hot=32,warm=0,archive=rot2\n"
    "\n"
    "A full bar is what plain FP16 takes. S first tokens, H newest, W recent, A archive. PPL is the perplexity of the document's "
    "last part,\n"
    "read through the compressed cache in steps of 32 tokens.";

struct Request {
  Options options;
  uint32_t tokens = 6000, scored = 256, written = 40;
};

struct Text {
  Tokens document;  // read, then scored
  Tokens question;
  uint32_t scored = 0;
};

struct Outcome {
  std::string kv, answer, continuation;
  bool right = false;
  MemoryStats memory;
  SessionTimes times;
  std::vector<double> losses;               // of each scored token
  double ppl = 0, delta = 0, delta_se = 0;  // delta: relative to the first setting
  json details;
};

// As many paragraphs as fit `tokens`, the fact two fifths into them.
Text make_text(const Engine& engine, const Request& request) {
  std::vector<std::string> paragraphs = documentation();
  std::vector<Tokens> parts;
  size_t total = 0;
  const Tokens needle = engine.tokenize(std::string(demo_needle().paragraph) + "\n\n", false);
  for (size_t i = 0; total + needle.size() < request.tokens && i < paragraphs.size(); ++i) {
    parts.push_back(engine.tokenize(paragraphs[i] + "\n\n", parts.empty()));
    total += parts.back().size();
  }
  Text text;
  bool hidden = false;
  for (const Tokens& part : parts) {
    if (!hidden && text.document.size() >= total * 2 / 5) {
      text.document.insert(text.document.end(), needle.begin(), needle.end());
      hidden = true;
    }
    text.document.insert(text.document.end(), part.begin(), part.end());
  }
  if (text.document.size() > request.tokens) text.document.resize(request.tokens);
  if (!hidden || text.document.size() < 64)
    bad_input("--tokens " + std::to_string(request.tokens) + " is too short a document to hide anything in");
  text.question = engine.tokenize("\n\n" + std::string(demo_needle().question), false);
  text.scored = std::min<uint32_t>(request.scored, static_cast<uint32_t>(text.document.size()) / 4);
  return text;
}

double loss_of(std::span<const float> logits, llama_token token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return std::log(sum) + top - static_cast<double>(logits[static_cast<size_t>(token)]);
}

std::string one_line(std::string text, size_t most) {
  for (char& c : text) c = c == '\n' || c == '\t' ? ' ' : c;
  text.erase(0, std::min(text.size(), text.find_first_not_of(' ')));
  size_t shown = 0, at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80 && ++shown > most) return text.substr(0, at) + "…";
  }
  return text;
}

Generated write_text(const Engine& engine, Session& session, uint32_t tokens, float repeat_penalty) {
  SamplerOptions options;
  options.repeat_penalty = repeat_penalty;
  Sampler likeliest(options, 0);
  GenerateOptions generation;
  generation.tokens = tokens;
  const Generated result = generate(engine, session, likeliest, generation);
  if (result.stop == "interrupted") throw Interrupted();
  return result;
}

Outcome run_one(const Request& request, Engine& engine, const std::string& kv, const Text& text) {
  Outcome outcome;
  outcome.kv = kv;
  const auto session = engine.open_session(kv);
  const std::span<const llama_token> document(text.document);
  const auto read = document.first(document.size() - text.scored), scored = document.last(text.scored);
  prefill(*session, read, format("%-9s reading", kv.c_str()), request.options.quiet);
  const SessionTimes reading = session->times();

  // The logits of one token are the prediction of the next.
  outcome.losses.push_back(loss_of(session->last_logits(), scored[0]));
  {
    Progress progress(format("%-9s scoring", kv.c_str()), scored.size(), request.options.quiet);
    session->feed(
        scored, Want::all,
        [&](uint32_t i, std::span<const float> row) {
          if (i + 1 < scored.size()) outcome.losses.push_back(loss_of(row, scored[i + 1]));
        },
        32, [&](uint32_t done) { progress.update(done); });
  }
  outcome.memory = session->memory();
  session->reset_times();

  Progress progress(format("%-9s writing", kv.c_str()), 2, request.options.quiet);
  progress.update(0);
  const SeqId fork = take(session->cache()->fork(session->sequence()));
  outcome.continuation = write_text(engine, *session, request.written, 1.3f).text;  // small models love to repeat themselves
  progress.update(1);
  outcome.times = session->times();
  outcome.times.prefill_s = reading.prefill_s;
  outcome.times.prefill_tokens = reading.prefill_tokens;
  outcome.details = session_json(engine, *session);

  session->bind(fork);
  session->feed(text.question, Want::last);
  const std::string answer = write_text(engine, *session, 16, 1.0f).text;
  outcome.answer = answer.substr(0, std::min(answer.find('\n'), answer.size()));
  outcome.right = outcome.answer.find(demo_needle().answer) != std::string::npos;
  return outcome;
}

// Perplexity, and the paired difference of the losses to the yardstick's.
void compare(Outcome& outcome, const Outcome& yardstick) {
  const double n = static_cast<double>(outcome.losses.size());
  double sum = 0, difference = 0, squares = 0;
  for (size_t i = 0; i < outcome.losses.size(); ++i) {
    const double d = outcome.losses[i] - yardstick.losses[i];
    sum += outcome.losses[i];
    difference += d;
    squares += d * d;
  }
  outcome.ppl = std::exp(sum / n);
  const double mean = difference / n;
  outcome.delta = std::exp(mean) - 1.0;
  outcome.delta_se = n > 1 ? std::exp(mean) * std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1)) : 0.0;
}

void print_outcome(const Outcome& o, Engine& engine, bool yardstick) {
  const llama::ModelShape& shape = engine.shape();
  const int bar = std::clamp(terminal_width() - 60, 24, 60);
  std::printf("%s |%s| %s %s\n", bold(format("%-9s", o.kv.c_str())).c_str(), tier_bar(o.memory, o.memory.fp16_bytes, bar).c_str(),
              bold(human_bytes(static_cast<double>(o.memory.resident_bytes()))).c_str(), dim(versus_fp16(o.memory)).c_str());
  std::printf("%s", tier_lines(o.memory, shape.layers * shape.kv_heads, shape.head_dim, "          ").c_str());
  std::printf("          reads %.0f tokens/s, writes %.1f tokens/s, PPL %.2f", o.times.prefill_rate(), o.times.decode_rate(),
              o.ppl);
  std::printf("%s\n", yardstick ? " (the yardstick)" : format(" (%+.2f %% ± %.2f)", 100 * o.delta, 100 * o.delta_se).c_str());
  const size_t width = static_cast<size_t>(std::max(40, terminal_width() - 24));
  std::printf("          continues %s\n", dim("…" + one_line(o.continuation, width)).c_str());
  std::printf("          answers   %s %s\n\n", one_line(o.answer, width - 8).c_str(),
              o.right ? green("✓ right").c_str() : red("✗ wrong").c_str());
}

json outcome_json(const Outcome& o) {
  json value = o.details;
  value["text"] = o.continuation;
  value["answer"] = o.answer;
  value["right"] = o.right;
  value["ppl"] = o.ppl;
  value["delta_ppl_percent"] = 100 * o.delta;
  value["delta_ppl_percent_se"] = 100 * o.delta_se;
  value["prefill_tokens"] = o.times.prefill_tokens;
  value["prefill_seconds"] = o.times.prefill_s;
  value["prefill_tokens_per_second"] = o.times.prefill_rate();
  value["resident_bytes"] = o.memory.resident_bytes();
  return value;
}

// What was saved at what cost: the last setting against the first.
std::string closing(const std::vector<Outcome>& outcomes, size_t tokens) {
  const Outcome &first = outcomes.front(), &last = outcomes.back();
  const double smaller =
      static_cast<double>(first.memory.resident_bytes()) / static_cast<double>(std::max<uint64_t>(1, last.memory.resident_bytes()));
  std::string text = "In words: \"" + last.kv + "\" remembers all " + human_count(tokens) + " tokens in " +
                     human_bytes(static_cast<double>(last.memory.resident_bytes())) + " instead of " +
                     human_bytes(static_cast<double>(first.memory.resident_bytes())) +
                     format(", %.1f times less memory; perplexity changes by %+.1f %%, ", smaller, 100 * last.delta);
  text += last.right    ? "it still finds the hidden fact, "
          : first.right ? "it no longer finds the hidden fact, "
                        : "neither finds the hidden fact, ";
  const double speed = first.times.decode_rate() > 0 ? last.times.decode_rate() / first.times.decode_rate() : 0;
  return text + format("and it writes %.2f times as fast.", speed);
}

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.empty()) options.kv = {"fp16", "int8", "balanced"};
  check_kv(options.kv);
  Engine engine(options);
  const llama::ModelShape& shape = engine.shape();
  engine.check_context(static_cast<uint64_t>(request.tokens) + request.written + 64);
  const Text text = make_text(engine, request);
  if (options.text()) {
    std::printf(
        "%s reads tierkv's own documentation: %s tokens, a fact hidden in them, %u layers with %u KV heads of %u channels.\n"
        "A full bar is what plain FP16 takes. Tiers: %s first tokens, %s newest, %s recent, %s archive.\n\n",
        bold(engine.name()).c_str(), human_count(text.document.size()).c_str(), shape.layers, shape.kv_heads, shape.head_dim,
        tier_colour(Tier::sink, "S").c_str(), tier_colour(Tier::hot, "H").c_str(), tier_colour(Tier::warm, "W").c_str(),
        tier_colour(Tier::archive, "A").c_str());
    std::fflush(stdout);
  }
  std::vector<Outcome> outcomes;
  json results = json::array();
  for (const std::string& kv : options.kv) {
    outcomes.push_back(run_one(request, engine, kv, text));
    compare(outcomes.back(), outcomes.front());
    if (options.text()) print_outcome(outcomes.back(), engine, outcomes.size() == 1);
    std::fflush(stdout);
    results.push_back(outcome_json(outcomes.back()));
  }
  const std::string sentence = closing(outcomes, text.document.size());
  if (options.text() && outcomes.size() > 1) std::printf("%s\n", sentence.c_str());
  emit_json(options, {{"command", "demo"},
                      {"model", engine.name()},
                      {"tokens", text.document.size()},
                      {"scored_tokens", text.scored},
                      {"question", demo_needle().question},
                      {"expected", demo_needle().answer},
                      {"results", results},
                      {"summary", sentence}});
  return 0;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
      app, action, "demo", "A real model reads a long document with several cache settings, side by side", kFooter, run);
  command->add_option("--tokens", request->tokens, "length of the document")
      ->check(CLI::Range(256u, 1u << 24))
      ->capture_default_str();
  command->add_option("--scored", request->scored, "tokens at its end that the perplexity is taken of")
      ->check(CLI::Range(16u, 1u << 20))
      ->capture_default_str();
  command->add_option("-n,--written", request->written, "tokens of the continuation")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "fp16, int8 and balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
