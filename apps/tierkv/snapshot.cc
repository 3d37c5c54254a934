// snapshot.cc — `tierkv snapshot`: looks into files of sequences, and makes and resumes them.
#include "tierkv/snapshot.h"
#include "number_range.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine.h"
#include "generation.h"
#include "session_file.h"
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

struct Request {
  Options options;
  SamplerOptions sampler;
  std::string path, prompt, file;
  uint32_t tokens = 0;
  bool chat = false;
  bool deep = false;
  double ratio = 0.0, quality = 0.0;
};

// --- inspect and verify

struct Content {
  SnapshotInfo info;
  SessionFile session;  // empty for a plain snapshot
  bool is_session = false;
};

Content look(const std::string& path) {
  Content content;
  content.is_session = is_session_file(path);
  if (content.is_session) {
    content.session = read_session(path);
    content.info = take(inspect_snapshot(std::span<const std::byte>(content.session.snapshot)), path);
    const uint64_t tokens = content.session.tokens.size();
    if (tokens != content.info.length) {
      bad_input(path + " is damaged: its cache holds " + std::to_string(content.info.length) + " tokens, its text " +
                std::to_string(tokens));
    }
  } else {
    content.info = take(inspect_snapshot(path));
  }
  return content;
}

json content_json(const std::string& path, const Content& content) {
  const SnapshotInfo& info = content.info;
  json tiers = json::object();
  for (int t = 0; t < kNumTiers; ++t) {
    tiers[tier_name(static_cast<Tier>(t))] = {{"rows", info.tier[t].tokens}, {"bytes", info.tier[t].bytes}};
  }
  json value = {{"file", path},
                {"kind", content.is_session ? "session" : "snapshot"},
                {"model", info.model},
                {"version", info.version},
                {"min_reader", info.min_reader},
                {"layers", info.num_layers},
                {"kv_heads", info.num_kv_heads},
                {"head_dim", info.head_dim},
                {"hot_type", info.hot_type},
                {"length", info.length},
                {"blocks", info.blocks},
                {"codecs", info.codecs},
                {"snapshot_bytes", info.file_bytes},
                {"tiers", tiers}};
  if (info.deep_tokens > 0) {
    value["deep"] = {{"tokens", info.deep_tokens},
                     {"first_position", info.deep_first_position},
                     {"layers", info.deep_layers},
                     {"bytes", info.deep_bytes},
                     {"calibration", format("%016llx", static_cast<unsigned long long>(info.calibration))}};
  }
  if (content.is_session) {
    value["kv"] = content.session.kv;
    value["pending_tokens"] = content.session.pending.size();
    value["messages"] = content.session.messages.size();
  }
  return value;
}

void print_content(const std::string& path, const Content& content) {
  const SnapshotInfo& info = content.info;
  const double rows = static_cast<double>(info.num_layers) * info.num_kv_heads;
  const uint64_t fp16 = 4ull * info.length * info.num_layers * info.num_kv_heads * info.head_dim;
  std::printf("%s: %s of %s tokens, %s\n", bold(path).c_str(), content.is_session ? "a session" : "a snapshot",
              human_count(info.length).c_str(), human_bytes(static_cast<double>(info.file_bytes)).c_str());
  std::printf("  model   %s: %u layers, %u KV heads of %u channels\n", info.model.empty() ? "not named" : info.model.c_str(),
              info.num_layers, info.num_kv_heads, info.head_dim);
  if (content.is_session) {
    std::printf("  kv      %s\n", content.session.kv.c_str());
    if (!content.session.messages.empty()) std::printf("  chat    %zu messages\n", content.session.messages.size());
  }
  std::string codecs;
  for (const std::string& codec : info.codecs) codecs += (codecs.empty() ? "" : ", ") + codec;
  std::printf("  blocks  %s%s%s\n", human_count(info.blocks).c_str(), codecs.empty() ? "" : ": ", codecs.c_str());
  for (int t = 0; t < kNumTiers; ++t) {
    const SnapshotTier& tier = info.tier[t];
    if (tier.tokens == 0) continue;
    const Tier which = static_cast<Tier>(t);
    std::printf("  %s %7.0f tokens %10s\n", tier_colour(which, format("%c %-7s", "SHWA"[t], tier_name(which))).c_str(),
                static_cast<double>(tier.tokens) / rows, human_bytes(static_cast<double>(tier.bytes)).c_str());
  }
  if (info.deep_tokens > 0) {
    std::printf("  D deep    %7u tokens %10s from position %u on, %u layers, calibration %016llx\n", info.deep_tokens,
                human_bytes(static_cast<double>(info.deep_bytes)).c_str(), info.deep_first_position, info.deep_layers,
                static_cast<unsigned long long>(info.calibration));
  }
  if (info.file_bytes != 0)
    std::printf("  %.1fx smaller than FP16\n", static_cast<double>(fp16) / static_cast<double>(info.file_bytes));
}

int run_inspect(Request& request) {
  settle_json(request.options, request.path);
  settle(request.options);
  if (request.path.empty()) bad_input("there is no file to look into: tierkv snapshot inspect FILE");
  const Content content = look(request.path);
  if (request.options.text()) print_content(request.path, content);
  emit_json(request.options, content_json(request.path, content));
  return 0;
}

int run_verify(Request& request) {
  settle_json(request.options, request.path);
  settle(request.options);
  if (request.path.empty()) bad_input("there is no file to verify: tierkv snapshot verify FILE");
  const Content content = look(request.path);
  if (request.options.text() && !request.options.quiet) {
    std::printf("%s is whole: every checksum matches, %s tokens in %s blocks\n", request.path.c_str(),
                human_count(content.info.length).c_str(), human_count(content.info.blocks).c_str());
  }
  json value = content_json(request.path, content);
  value["whole"] = true;
  emit_json(request.options, value);
  return 0;
}

// --- save and load

std::string text_of(const Request& request) {
  std::string text = request.file.empty() ? "" : read_file(request.file);
  if (!request.prompt.empty()) text += (text.empty() ? "" : "\n") + request.prompt;
  return text;
}

Generated go_on(const Request& request, Engine& engine, Session& session) {
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
int run_save(Request& request) {
  Options& options = request.options;
  settle_json(options, request.path);
  settle(options);
  if (request.path.empty()) bad_input("there is no file to save to: tierkv snapshot save FILE -f TEXT");
  check_writable(request.path);
  if (options.kv.size() > 1) bad_input("a session has one --kv, not " + std::to_string(options.kv.size()));
  if (options.kv.empty()) options.kv = {"balanced"};
  check_kv(options.kv);
  if (request.file.empty() && request.prompt.empty()) bad_input("there is no text to read: give -f FILE or -p TEXT");
  Engine engine(options);
  std::string text = text_of(request);
  if (request.chat) text = engine.apply_template({{"user", text}}, true);
  Tokens tokens = engine.tokenize(text, true, request.chat);
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

int run_load(Request& request) {
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
  Engine engine(options);
  const auto session = resume(engine, file, request.path, options.kv.empty() ? "" : options.kv.front());
  Tokens more = file.pending;
  if (const std::string text = text_of(request); !text.empty()) {
    const Tokens added = engine.tokenize(text, false);
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

CLI::App* add_part(CLI::App& parent, const char* name, const char* about, const std::shared_ptr<Request>& request, Action& action,
                   int (*part)(Request&)) {
  CLI::App* command = parent.add_subcommand(name, about);
  command->add_option("file", request->path, "the session or snapshot")->type_name("FILE");
  add_output_options(*command, request->options);
  command->callback([request, &action, part] { action = [request, part] { return part(*request); }; });
  return command;
}

void add_text_options(CLI::App& command, Request& request) {
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
  auto request = std::make_shared<Request>();
  add_part(*command, "inspect", "What a file holds: model, length, tiers, codecs", request, action, run_inspect);
  add_part(*command, "verify", "Check every checksum of a file", request, action, run_verify);
  auto saved = std::make_shared<Request>();
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
  auto loaded = std::make_shared<Request>();
  loaded->tokens = 64;
  CLI::App* load =
      add_part(*command, "load", "Go on where a session ends, without reading its text again", loaded, action, run_load);
  add_text_options(*load, *loaded);
  add_kv_option(*load, loaded->options, "the session's own", /*compares=*/false);
}

}  // namespace tierkv::cli
