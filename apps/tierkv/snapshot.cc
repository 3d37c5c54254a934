// snapshot.cc — `tierkv snapshot`: makes and resumes files of sequences, and looks into them (snapshot_look.h).
#include "tierkv/snapshot.h"
#include "number_range.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/engine.h"
#include "engine/session_file.h"
#include "generation.h"
#include "load_engine.h"
#include "snapshot_look.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr double kGoodQuality = 0.99;  // share of the energy: below it a deep archive is heard

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv snapshot save book.tkv -f book.txt --kv balanced     read a text once\n"
    "  tierkv snapshot load book.tkv -p \"In short,\" -n 100         go on without reading it again\n"
    "  tierkv snapshot save book.tkv -f book.txt --deep --kv deep,calibration=model.tkc   32 times smaller, if the model was "
    "calibrated with --deep\n"
    "  tierkv snapshot inspect book.tkv\n"
    "  tierkv snapshot verify book.tkv && echo whole\n"
    "\n"
    "A session holds the tokens and the cache of one sequence; `tierkv chat` saves and loads the same files. inspect and verify "
    "also\n"
    "take the plain snapshots that AdaptiveKVCache::save() writes.";

std::string text_of(const SnapshotRequest& request) {
  std::string text = request.file.empty() ? "" : read_file(request.file);
  if (!request.prompt.empty()) text += (text.empty() ? "" : "\n") + request.prompt;
  return text;
}

Generated go_on(const SnapshotRequest& request, Engine& engine, Session& session) {
  Sampler sampler(request.sampler, request.options.seed);
  GenerateOptions generation;
  generation.tokens = request.tokens;
  if (request.options.text()) generation.on_text = stream_text;
  Generated result = generate(engine, session, sampler, generation);
  if (request.options.text() && request.tokens > 0) std::printf("\n");
  return result;
}

// The last token of the text waits in the file: whoever resumes feeds it alone, as save itself does when it goes on, so both see
// the same bits.
int run_save(SnapshotRequest& request) {
  Options& options = request.options;
  settle_json(options, request.path);
  settle(options);
  if (request.path.empty()) bad_input("there is no file to save to: tierkv snapshot save FILE -f TEXT");
  check_writable(request.path);
  if (options.kv.size() > 1) bad_input("a session has one --kv, not " + std::to_string(options.kv.size()));
  if (options.kv.empty()) options.kv = {"balanced"};
  check_kv(options.kv);
  if (request.file.empty() && request.prompt.empty()) bad_input("there is no text to read: give -f FILE or -p TEXT");
  Engine engine = load_engine(options);
  std::string text = text_of(request);
  if (request.chat) text = engine.chat_template().apply({{"user", text}}, true);
  Tokens tokens = engine.tokenizer().encode(text, true, request.chat);
  if (tokens.empty()) bad_input("the text is empty");
  const auto session = engine.open_session(options.kv.front());
  if (tokens.size() >= session->limit()) {
    bad_input("the text has " + human_count(tokens.size()) + " tokens, and the model's context is " +
              human_count(session->limit()));
  }
  const llama_token last = tokens.back();
  tokens.pop_back();
  if (!tokens.empty()) prefill(*session, tokens, "reading " + human_count(tokens.size()) + " tokens", options.quiet);
  DeepOptions deep;
  deep.ratio = request.ratio;
  deep.quality = request.quality;
  DeepReport packed;
  SessionFile file = capture(engine, *session, tokens, request.deep ? &deep : nullptr, &packed);
  file.pending = {last};
  const uint64_t bytes = write_session(request.path, file);
  if (options.text() && !options.quiet) {
    remark("saved " + human_count(tokens.size() + 1) + " tokens to " + request.path + ", " +
           human_bytes(static_cast<double>(bytes)) + "\n");
    if (packed.tokens > 0) {
      remark(format("%s of them in a deep archive, %.1fx smaller than FP16\n", human_count(packed.tokens).c_str(), packed.ratio));
    }
    if (packed.tokens > 0 && packed.quality < kGoodQuality) {
      remark(
          format("only %.1f %% of what they say survives: tokens that wait in 4 bits (--kv deep) pack better than those of a 2-bit "
                 "archive\n",
                 100.0 * packed.quality));
    }
    if (!packed.note.empty()) remark(packed.note + "\n");
  }
  json value = session_json(engine, *session);
  value["file"] = request.path;
  value["file_bytes"] = bytes;
  if (request.deep) {
    value["deep"] = {{"tokens", packed.tokens},
                     {"bytes", packed.bytes},
                     {"ratio", packed.ratio},
                     {"quality", packed.quality},
                     {"note", packed.note}};
  }
  value["model"] = engine.name();
  if (request.tokens > 0) {
    session->feed(file.pending, Want::last);
    const Generated result = go_on(request, engine, *session);
    value["text"] = result.text;
    value["tokens"] = result.tokens;
  }
  emit_json(options, value);
  return interrupted() ? kInterrupted : 0;
}

int run_load(SnapshotRequest& request) {
  Options& options = request.options;
  settle_json(options, request.path);
  settle(options);
  if (request.path.empty()) bad_input("there is no file to load: tierkv snapshot load FILE");
  if (options.kv.size() > 1) bad_input("a session has one --kv, not " + std::to_string(options.kv.size()));
  check_kv(options.kv);
  if (!is_session_file(request.path)) {
    (void)take(inspect_snapshot(request.path));  // says what is wrong with the file, if anything is
    bad_input(request.path + " is a plain snapshot without its tokens: only sessions can be resumed");
  }
  SessionFile file = read_session(request.path);
  Engine engine = load_engine(options);
  const auto session = resume(engine, file, request.path, options.kv.empty() ? "" : options.kv.front());
  Tokens more = file.pending;
  if (const std::string text = text_of(request); !text.empty()) {
    const Tokens added = engine.tokenizer().encode(text, false);
    more.insert(more.end(), added.begin(), added.end());
  }
  if (more.empty() && request.tokens > 0) bad_input("the session ends with a finished reply: say with -p how it goes on");
  if (session->length() + more.size() > session->limit()) {
    bad_input("the session and the new text have " + human_count(session->length() + more.size()) +
              " tokens, and the model's context is " + human_count(session->limit()));
  }
  if (!options.quiet)
    remark(dim(human_count(session->length() + file.pending.size()) + " tokens resumed without reading them again") + "\n");
  Generated result;
  if (!more.empty()) {
    // One by one as far as the file asks for it, the new text in one go.
    session->feed(std::span(more).first(file.pending.size()), Want::last);
    if (more.size() > file.pending.size()) session->feed(std::span(more).subspan(file.pending.size()), Want::last);
    result = go_on(request, engine, *session);
  }
  json value = session_json(engine, *session);
  value["file"] = request.path;
  value["model"] = engine.name();
  value["text"] = result.text;
  value["tokens"] = result.tokens;
  emit_json(options, value);
  return interrupted() ? kInterrupted : 0;
}

CLI::App* add_part(CLI::App& parent, const char* name, const char* about, const std::shared_ptr<SnapshotRequest>& request,
                   Action& action, int (*part)(SnapshotRequest&)) {
  CLI::App* command = parent.add_subcommand(name, about);
  command->add_option("file", request->path, "the session or snapshot")->type_name("FILE");
  add_output_options(*command, request->options);
  command->callback([request, &action, part] { action = [request, part] { return part(*request); }; });
  return command;
}

void add_text_options(CLI::App& command, SnapshotRequest& request) {
  command.add_option("-f,--text", request.file, "text to read (- for stdin)")->type_name("FILE");
  command.add_option("-p,--prompt", request.prompt, "text after it")->type_name("TEXT");
  command.add_option("-n,--tokens", request.tokens, "tokens to write afterwards")
      ->check(CLI::Range(0u, 1u << 24))
      ->capture_default_str();
  add_writing_options(command, request.options, request.sampler);
}

}  // namespace

void add_snapshot(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("snapshot", "Inspect, verify, save and resume sessions");
  command->require_subcommand(1);
  command->footer(kFooter);
  auto request = std::make_shared<SnapshotRequest>();
  add_part(*command, "inspect", "What a file holds: model, length, tiers, codecs", request, action, run_inspect);
  add_part(*command, "verify", "Check every checksum of a file", request, action, run_verify);
  auto saved = std::make_shared<SnapshotRequest>();
  CLI::App* save = add_part(*command, "save", "Read a text and keep the cache in a file", saved, action, run_save);
  add_text_options(*save, *saved);
  save->add_flag("--deep", saved->deep,
                 "archived tokens in a deep archive: slower to load, several times smaller (takes a calibration made with --deep)");
  auto* ratio =
      save->add_option("--ratio", saved->ratio, "how much smaller than FP16 it is to be (default: the --kv's deep.ratio, or 20)")
          ->check(number_range(2.0, 1000.0))
          ->needs("--deep");
  save->add_option("--quality", saved->quality, "or: the share of the energy, as attention sees it, that must survive, e.g. 0.97")
      ->check(number_range(0.0, 1.0))
      ->needs("--deep")
      ->excludes(ratio);
  save->add_flag("--chat", saved->chat, "the text is a user's message: use the model's chat template");
  add_kv_option(*save, saved->options, "balanced", /*compares=*/false);
  auto loaded = std::make_shared<SnapshotRequest>();
  loaded->tokens = 64;
  CLI::App* load =
      add_part(*command, "load", "Go on where a session ends, without reading its text again", loaded, action, run_load);
  add_text_options(*load, *loaded);
  add_kv_option(*load, loaded->options, "the session's own", /*compares=*/false);
}

}  // namespace tierkv::cli
