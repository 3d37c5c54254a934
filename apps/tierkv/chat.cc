// chat.cc — `tierkv chat`: a conversation in the terminal, or with lines from a pipe.
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/engine.h"
#include "engine/session_file.h"
#include "generation.h"
#include "learning.h"
#include "load_engine.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "In the chat:\n"
    "  /tiers         what each tier of the cache holds\n"
    "  /save FILE     keep the conversation, cache included\n"
    "  /load FILE     go on with one that was kept\n"
    "  /reset         forget everything\n"
    "  /help, /quit   (or Ctrl-D; Ctrl-C stops a reply)\n"
    "\n"
    "Examples:\n"
    "  tierkv chat --kv balanced --temp 0.7\n"
    "  tierkv chat --system \"You answer in one sentence.\" -m my-model.gguf\n"
    "  printf 'Hello!\\n/tiers\\n' | tierkv chat --json";

struct Request {
  Options options;
  SamplerOptions sampler;
  std::string system, load;
  uint32_t tokens = 512, ctx = 0;
};

class Chat {
 public:
  Chat(Request& request, Engine& engine)
      : request_(request),
        engine_(engine),
        sampler_(request.sampler, request.options.seed),
        terminal_(isatty(STDIN_FILENO) == 1),
        learning_(engine, request.options.quiet) {
    reset();
  }

  // False: the user is done.
  bool line(const std::string& text) {
    if (text.empty()) return true;
    if (text[0] != '/') {
      say(text);
      return true;
    }
    const size_t space = text.find(' ');
    const std::string command = text.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : text.substr(text.find_first_not_of(' ', space));
    if (command == "/quit" || command == "/exit") return false;
    try {
      obey(command, rest);
    } catch (const Cancelled&) {
      throw;
    } catch (const Error& failure) {
      problem(failure);
    }
    return true;
  }

  void load(const std::string& path) {
    if (path.empty()) bad_input("/load needs a file");
    const SessionFile file = read_session(path);
    auto session = resume(engine_, file, path);
    session_ = std::move(session);
    tokens_ = file.tokens;
    pending_ = file.pending;
    messages_ = file.messages;
    note(human_count(tokens_.size()) + " tokens and " + std::to_string(messages_.size()) + " messages loaded from " + path);
  }

  // What learning has to say, and the tables it is about to have.
  void tell() { learning_.tell(*session_); }
  void finish() { learning_.finish(*session_); }

  bool terminal() const { return terminal_; }
  int exit_code() const { return exit_code_; }
  nlohmann::json json() {
    nlohmann::json messages = nlohmann::json::array();
    for (const ChatMessage& message : messages_) messages.push_back({{"role", message.role}, {"content", message.content}});
    nlohmann::json value = session_json(engine_, *session_);
    value["command"] = "chat";
    value["model"] = engine_.name();
    value["template"] = engine_.chat_template().known();
    value["messages"] = messages;
    return value;
  }

 private:
  void note(const std::string& text) const {
    if (!request_.options.quiet) remark(dim(text) + "\n");
  }

  // A person corrects a typing error; a script must learn of it.
  void problem(const Error& failure) {
    remark("tierkv: " + std::string(failure.what()) + "\n");
    if (!terminal_) exit_code_ = cli::exit_code(failure);
  }

  void reset() {
    session_ = engine_.open_session(request_.options.kv.front(), learning_session(request_.ctx));
    tokens_.clear();
    pending_.clear();
    messages_.clear();
    if (!request_.system.empty()) messages_.push_back({"system", request_.system});
  }

  void obey(const std::string& command, const std::string& rest) {
    if (command == "/tiers") {
      const uint32_t streams = engine_.shape().layers * engine_.shape().kv_heads;
      const MemoryStats memory = session_->memory();
      std::string text = human_count(session_->length()) + " tokens, --kv " + session_->name() + "\n  " +
                         tier_bar(memory, std::max(memory.fp16_bytes, memory.resident_bytes()), 48) + " " +
                         human_bytes(static_cast<double>(memory.resident_bytes())) + ", " + versus_fp16(memory) + "\n";
      text += tier_lines(memory, streams, engine_.shape().head_dim, "  ");
      if (const AdaptiveKVCache* cache = session_->cache()) text += "  " + cache->learning().sentence + "\n";
      remark(text);
    } else if (command == "/save") {
      if (rest.empty()) bad_input("/save needs a file");
      SessionFile file = capture(engine_, *session_, tokens_);
      file.pending = pending_;
      file.messages = messages_;
      const uint64_t bytes = write_session(rest, file);
      note("saved to " + rest + ", " + human_bytes(static_cast<double>(bytes)));
    } else if (command == "/load") {
      load(rest);
    } else if (command == "/reset") {
      reset();
      note("forgotten");
    } else if (command == "/help") {
      remark("/tiers  /save FILE  /load FILE  /reset  /quit\n");
    } else {
      bad_input("there is no command " + command + ": /tiers, /save FILE, /load FILE, /reset, /help, /quit");
    }
  }

  // What the template adds to the conversation for this message. Tokens of the earlier part stay as they are in the cache.
  Tokens tokens_of_turn(const std::string& text) const {
    std::vector<ChatMessage> after = messages_;
    after.push_back({"user", text});
    const std::string all = engine_.chat_template().apply(after, true);
    const bool first = tokens_.empty() && pending_.empty();
    const size_t before = first ? 0 : std::min(all.size(), engine_.chat_template().apply(messages_, false).size());
    Tokens tokens = pending_;
    const Tokens added = engine_.tokenizer().encode((first ? "" : end_of_reply()) + all.substr(before), first, true);
    tokens.insert(tokens.end(), added.begin(), added.end());
    return tokens;
  }

  // What the template puts after a reply: the end mark that the model said, or should have said, and that was not fed.
  std::string end_of_reply() const {
    const std::string mark = "REPLY";
    std::vector<ChatMessage> marked = messages_;
    if (marked.empty() || marked.back().role != "assistant") return "";
    marked.back().content = mark;
    const std::string formatted = engine_.chat_template().apply(marked, false);
    const size_t at = formatted.rfind(mark);
    return at == std::string::npos ? "" : formatted.substr(at + mark.size());
  }

  // A window that has moved on cannot go back: then the conversation starts anew.
  void forget_from(uint32_t length) {
    try {
      session_->truncate(length);
    } catch (const Error&) {
      reset();
      note("the conversation could not go back, and starts anew");
    }
  }

  void say(const std::string& text) {
    const Tokens turn = tokens_of_turn(text);
    const uint32_t start = session_->length();
    if (start + turn.size() >= session_->limit()) {
      problem(Error(ErrorKind::bad_input, "the conversation has reached the model's context of " + human_count(session_->limit()) +
                                              " tokens: /reset starts anew"));
      return;
    }
    try {
      prefill(*session_, turn, "reading", request_.options.quiet);
    } catch (const Cancelled&) {
      clear_interrupt();
      forget_from(start);
      note("stopped; the message was not read");
      return;
    }
    tokens_.insert(tokens_.end(), turn.begin(), turn.end());
    pending_.clear();
    GenerateOptions generation;
    generation.tokens = request_.tokens;
    if (request_.options.text()) generation.on_text = stream_text;
    const Generated reply = generate(engine_, *session_, sampler_, generation);
    if (request_.options.text()) std::printf("\n");
    tokens_.insert(tokens_.end(), reply.tokens.begin(), reply.tokens.end());
    messages_.push_back({"user", text});
    messages_.push_back({"assistant", reply.text});
    if (reply.stop == "context") note("the context is full: /reset starts anew");
    if (reply.stop == "interrupted" && terminal_) clear_interrupt();
    learning_.tell(*session_);
  }

  Request& request_;
  Engine& engine_;
  Sampler sampler_;
  bool terminal_;
  int exit_code_ = 0;
  std::unique_ptr<Session> session_;
  Tokens tokens_, pending_;
  std::vector<ChatMessage> messages_;
  LearningRemarks learning_;
};

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.size() > 1) bad_input("a chat has one --kv, not " + std::to_string(options.kv.size()));
  if (options.kv.empty()) options.kv = {"balanced"};
  check_kv(options.kv);
  Engine engine = load_engine(options);
  engine.check_context(request.ctx);
  Chat chat(request, engine);
  if (!request.load.empty()) chat.load(request.load);
  if (chat.terminal() && !options.quiet) {
    remark(bold(engine.name()) + dim(", --kv " + options.kv.front() + ". /help lists commands, /quit or Ctrl-D ends.") + "\n");
    if (!engine.chat_template().known())
      remark(dim("The model has no chat template that libllama knows: expect it to ramble.") + "\n");
  }
  chat.tell();
  std::string line;
  while (!interrupted()) {
    if (chat.terminal()) remark(green("> "));
    if (!std::getline(std::cin, line)) break;
    if (!chat.line(line)) break;
  }
  if (chat.terminal()) remark("\n");
  chat.finish();
  const bool stopped = interrupted() && !chat.terminal();
  emit_json(options, chat.json());
  return stopped ? kInterrupted : chat.exit_code();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  const auto [command, request] =
      add_command<Request>(app, action, "chat", "Talk to a model; see its cache, save and load the conversation", kFooter, run);
  request->sampler.temperature = 0.7f;
  command->add_option("--system", request->system, "what the model is told first")->type_name("TEXT");
  command->add_option("--load", request->load, "go on with a conversation that /save kept")->type_name("FILE");
  command->add_option("-n,--tokens", request->tokens, "tokens of a reply at most")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  command->add_option("-c,--ctx", request->ctx, "the context's length (default: the model's)")->type_name("N");
  add_writing_options(*command, request->options, request->sampler);
  add_kv_option(*command, request->options, "balanced", /*compares=*/false);
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
