// generate.cc — `tierkv generate`: continues a prompt, token by token, with one cache setting or several in turn.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "generation.h"
#include "learning.h"
#include "load_engine.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv generate \"Once upon a time\" -n 64\n"
    "  tierkv generate -f report.txt --kv balanced --tiers\n"
    "  tierkv generate --chat \"Why is the sky blue?\" --temp 0.7 --seed 3\n"
    "  tierkv generate -f report.txt --kv fp16 --kv balanced --kv compact --json out.json\n"
    "  tierkv generate -p \"A tide is\" --stop . --stop \"\\n\" --ctx 8k\n"
    "  echo \"Dear Sir,\" | tierkv generate\n"
    "\n"
    "The text goes to stdout as it is made, everything else to stderr.";

struct Request {
  Options options;
  SamplerOptions sampler;
  std::string prompt, file;
  std::vector<std::string> stop;
  uint32_t tokens = 128, ctx = 0, tiers_every = 64;
  bool self_calibrate = false, chat = false, tiers = false, ignore_end = false, echo = false;
};

// The text to continue: the prompt, a file, both, or what a pipe sends where neither is given.
std::string read_prompt(Request& request) {
  if (request.file.empty() && request.prompt.empty() && !isatty(STDIN_FILENO)) request.file = "-";
  std::string text = request.file.empty() ? request.prompt : read_file(request.file);
  if (!request.file.empty() && !request.prompt.empty()) text += "\n" + request.prompt;
  if (text.empty()) bad_input("there is no prompt: give one with -p, a file with -f, or a pipe");
  return text;
}

// `--json TEXT` takes the text for a file's name: it is the prompt, unless it looks like one and a pipe has the text.
void settle_prompt(Request& request) {
  const bool piped = request.options.json_file.ends_with(".json") && !isatty(STDIN_FILENO);
  if (request.file.empty() && !piped) settle_json(request.options, request.prompt);
}

void show_tiers(Engine& engine, Session& session) {
  const uint32_t streams = engine.shape().layers * engine.shape().kv_heads;
  remark(dim("\n[" + human_count(session.length()) + " tokens: ") + tier_summary(session.memory(), streams) + dim("]") + "\n");
}

nlohmann::json run_one(Request& request, Engine& engine, const std::string& kv, const Tokens& prompt) {
  const Options& options = request.options;
  const auto session = engine.open_session(kv, learning_session(request.ctx));
  LearningRemarks learning(engine, options.quiet);
  learning.tell(*session);
  Sampler sampler(request.sampler, options.seed);
  for (const llama_token token : prompt) sampler.accept(token);
  if (options.text() && options.kv.size() > 1) std::printf("%s\n", bold("--kv " + kv).c_str());
  if (options.text() && request.echo) std::printf("%s", dim(engine.tokenizer().decode(prompt)).c_str());
  prefill(*session, prompt, "reading " + human_count(prompt.size()) + " tokens", options.quiet);
  learning.tell(*session);
  if (request.tiers) show_tiers(engine, *session);

  GenerateOptions generation;
  generation.tokens = request.tokens;
  generation.ignore_end = request.ignore_end;
  generation.stop = request.stop;
  if (options.text()) generation.on_text = stream_text;
  if (request.tiers) {
    generation.on_token = [&](uint32_t count) {
      if (count % request.tiers_every == 0) show_tiers(engine, *session);
    };
  }
  const Generated result = generate(engine, *session, sampler, generation);
  if (options.text()) std::printf("\n");
  if (!options.quiet) remark(dim(session_sentence(*session)) + "\n");
  learning.finish(*session);
  if (!options.quiet && result.stop == "context")
    remark("stopped: the context of " + human_count(session->limit()) + " tokens is full\n");

  nlohmann::json json = session_json(engine, *session);
  json["prompt_tokens"] = prompt.size();
  json["tokens"] = result.tokens;
  json["text"] = result.text;
  json["stop"] = result.stop;
  return json;
}

int run(Request& request) {
  Options& options = request.options;
  settle_prompt(request);
  settle(options);
  if (options.kv.empty()) options.kv = {"balanced"};
  check_kv(options.kv);
  const std::string text = read_prompt(request);
  Engine engine = load_engine(options);
  const uint32_t limit = engine.check_context(request.ctx);
  const std::string whole = request.chat ? engine.chat_template().apply({{"user", text}}, true) : text;
  const Tokens prompt = engine.tokenizer().encode(whole, true, request.chat);
  if (prompt.size() >= limit) {
    bad_input("the prompt has " + human_count(prompt.size()) + " tokens, which leaves no room in a context of " +
              human_count(limit));
  }
  if (request.self_calibrate && !options.quiet) {
    remark("--self-calibrate is no longer needed: a model without a calibration is learned while it reads\n");
  }
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& kv : options.kv) {
    results.push_back(run_one(request, engine, kv, prompt));
    if (interrupted()) break;
  }
  emit_json(options, {{"command", "generate"},
                      {"model", engine.name()},
                      {"title", engine.title()},
                      {"file", engine.path()},
                      {"seed", options.seed},
                      {"results", results}});
  return interrupted() ? kInterrupted : 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  const auto [command, request] =
      add_command<Request>(app, action, "generate", "Continue a prompt or a file, streaming, with any cache setting", kFooter, run);
  command->add_option("-p,--prompt,prompt", request->prompt, "the text to continue (default: what a pipe sends)")
      ->type_name("TEXT");
  command->add_option("-f,--file", request->file, "read the text from a file (- for stdin); a prompt is put after it")
      ->type_name("FILE");
  command->add_option("-n,--tokens", request->tokens, "how many tokens to write at most")
      ->check(CLI::Range(0u, 1u << 24))
      ->capture_default_str();
  command->add_option("-c,--ctx", request->ctx, "the context's length (default: the model's)")->type_name("N");
  command->add_flag("--chat", request->chat, "the text is a user's message: use the model's chat template");
  command->add_flag("--self-calibrate", request->self_calibrate)->group("");  // what learning in passing took the place of
  command->add_flag("--tiers", request->tiers, "say what the tiers hold as it goes");
  command->add_option("--tiers-every", request->tiers_every, "tokens between two such lines")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command->add_flag("--ignore-end", request->ignore_end, "go on after the model says that it is done");
  command->add_flag("--echo", request->echo, "print the prompt too");
  add_stop_option(*command, request->stop);
  add_writing_options(*command, request->options, request->sampler);
  add_kv_option(*command, request->options, "balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
