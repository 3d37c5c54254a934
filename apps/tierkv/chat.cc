// chat.cc — `tierkv chat`: a conversation in the terminal, or with lines from a pipe.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/engine.h"
#include "engine/session_file.h"
#include "generation.h"
#include "learning.h"
#include "line_input.h"
#include "load_engine.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "In the chat:\n"
    "  /tiers         what each tier of the cache holds\n"
    "  /save FILE     keep the conversation, cache included\n"
    "  /load FILE     go on with one that was kept\n"
    "  /drop N        forget the N oldest turns and read the rest again (a full context does so by itself)\n"
    "  /reset         forget everything\n"
    "  /help, /quit   (or Ctrl-D; Ctrl-C stops a reply)\n"
    "\n"
    "Lines that are pasted, and lines between \"\"\" and \"\"\", are one turn. Alt-Enter starts a new line, the arrow keys bring\n"
    "back earlier turns; they are kept in tierkv/chat_history of the XDG state folder unless --no-history is given.\n"
    "\n"
    "Examples:\n"
    "  tierkv chat --kv balanced --temp 0.7\n"
    "  tierkv chat --system \"You answer in one sentence.\" -m my-model.gguf\n"
    "  printf 'Hello!\\n/tiers\\n' | tierkv chat --json";

struct Request {
  Options options;
  SamplerOptions sampler;
  std::string system, load;
  std::vector<std::string> stop;
  uint32_t tokens = 512, ctx = 0;
  bool no_history = false;
};

// Stands in for a reply where only what the template puts around it is wanted.
const std::string kReplyMark = "REPLY";

class Chat {
 public:
  Chat(Request& request, Engine& engine, bool terminal)
      : request_(request),
        engine_(engine),
        sampler_(request.sampler, request.options.seed),
        terminal_(terminal),
        learning_(engine, request.options.quiet) {
    reset();
  }

  // False: the user is done.
  bool turn(const Turn& turn) {
    const std::string& text = turn.text;
    if (text.empty()) return true;
    if (text[0] != '/' || turn.block) {
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

  int exit_code() const { return exit_code_; }
  nlohmann::json json() {
    nlohmann::json messages = nlohmann::json::array();
    for (const ChatMessage& message : messages_) messages.push_back({{"role", message.role}, {"content", message.content}});
    nlohmann::json value = session_json(engine_, *session_);
    value["command"] = "chat";
    value["model"] = engine_.name();
    value["title"] = engine_.title();
    value["template"] = engine_.chat_template().known();
    value["messages"] = messages;
    value["dropped_turns"] = dropped_;
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
    dropped_ = 0;
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
    } else if (command == "/drop") {
      drop_by_hand(rest);
    } else if (command == "/reset") {
      reset();
      note("forgotten");
    } else if (command == "/help") {
      remark("/tiers  /save FILE  /load FILE  /drop N  /reset  /quit; several lines between \"\"\" and \"\"\" are one turn\n");
    } else {
      bad_input("there is no command " + command + ": /tiers, /save FILE, /load FILE, /drop N, /reset, /help, /quit");
    }
  }

  void drop_by_hand(const std::string& rest) {
    size_t count = 0;
    if (!CLI::detail::lexical_cast(rest, count) || count == 0)
      bad_input("/drop needs the number of turns to forget, such as /drop 2");
    if (count > turns()) bad_input("/drop " + rest + ": there are " + std::to_string(turns()) + " turns");
    drop(count);
  }

  // Messages that are never dropped: what the model was told first.
  size_t kept_first() const { return !messages_.empty() && messages_.front().role == "system" ? 1 : 0; }
  size_t turns() const { return (messages_.size() - kept_first()) / 2; }

  // The conversation without its oldest turns, as tokens that end where its last reply does.
  Tokens tokens_without(size_t dropped) const {
    std::vector<ChatMessage> rest = messages_;
    const auto first = rest.begin() + static_cast<std::ptrdiff_t>(kept_first());
    rest.erase(first, first + static_cast<std::ptrdiff_t>(2 * dropped));
    if (rest.empty() || rest.back().role != "assistant") return {};
    const std::string reply = std::exchange(rest.back().content, kReplyMark);
    const std::string text = engine_.chat_template().apply(rest, false);
    return engine_.tokenizer().encode(text.substr(0, text.rfind(kReplyMark)) + reply, true, true);
  }

  // Forgets turns: what is left is read again, because its positions have moved. A conversation that is stopped meanwhile is as it
  // was; so is one whose reading fails.
  void drop(size_t count) {
    const Tokens rest = tokens_without(count);
    SessionOptions options;
    options.ctx = session_->limit();
    auto session = engine_.open_session(session_->name(), session_->cache()->config(), options);
    if (!rest.empty()) prefill(*session, rest, "reading what is left", request_.options.quiet);
    session_ = std::move(session);
    tokens_ = rest;
    pending_.clear();
    const auto first = messages_.begin() + static_cast<std::ptrdiff_t>(kept_first());
    messages_.erase(first, first + static_cast<std::ptrdiff_t>(2 * count));
    dropped_ += count;
    note(format("the %s dropped; %s tokens are left",
                count == 1 ? "oldest turn was" : format("%zu oldest turns were", count).c_str(),
                human_count(session_->length()).c_str()));
  }

  // Makes room for a turn of so many tokens and a reply: drops turns until half of the context is free, so that not every turn
  // has to. False: even alone it does not fit.
  bool make_room(size_t turn) {
    const size_t limit = session_->limit();
    if (turn >= limit) return false;
    const size_t room = std::max<size_t>(turn + std::min<size_t>(request_.tokens, limit / 4), limit / 2);
    size_t count = 1;
    while (count < turns() && tokens_without(count).size() + room > limit) ++count;
    if (turns() == 0 || tokens_without(count).size() + turn >= limit) return false;
    note("the context of " + human_count(limit) + " tokens is full");
    drop(count);
    return true;
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
    std::vector<ChatMessage> marked = messages_;
    if (marked.empty() || marked.back().role != "assistant") return "";
    marked.back().content = kReplyMark;
    const std::string formatted = engine_.chat_template().apply(marked, false);
    const size_t at = formatted.rfind(kReplyMark);
    return at == std::string::npos ? "" : formatted.substr(at + kReplyMark.size());
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
    Tokens turn = tokens_of_turn(text);
    try {
      if (session_->length() + turn.size() >= session_->limit()) {
        if (!make_room(turn.size())) {
          problem(Error(ErrorKind::bad_input, "the message has " + human_count(turn.size()) + " tokens, which a context of " +
                                                  human_count(session_->limit()) + " cannot hold: it was not read"));
          return;
        }
        turn = tokens_of_turn(text);
      }
    } catch (const Cancelled&) {
      clear_interrupt();
      note("stopped; nothing was dropped, and the message was not read");
      return;
    }
    const uint32_t start = session_->length();
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
    generation.stop = request_.stop;
    if (request_.options.text()) generation.on_text = stream_text;
    const Generated reply = generate(engine_, *session_, sampler_, generation);
    if (request_.options.text()) std::printf("\n");
    tokens_.insert(tokens_.end(), reply.tokens.begin(), reply.tokens.end());
    messages_.push_back({"user", text});
    messages_.push_back({"assistant", reply.text});
    if (reply.stop == "context") note("the context is full: the next message drops the oldest turns, /reset forgets all");
    if (reply.stop == "interrupted" && terminal_) clear_interrupt();
    learning_.tell(*session_);
  }

  Request& request_;
  Engine& engine_;
  Sampler sampler_;
  bool terminal_;
  int exit_code_ = 0;
  size_t dropped_ = 0;  // turns
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
  LineInput input(request.no_history ? "" : history_file());
  Chat chat(request, engine, input.terminal());
  if (!request.load.empty()) chat.load(request.load);
  if (input.terminal() && !options.quiet) {
    remark(bold(engine.title()) + dim(", --kv " + options.kv.front() + ". /help lists commands, /quit or Ctrl-D ends.") + "\n");
    if (!engine.chat_template().known())
      remark(dim("The model has no chat template that libllama knows: expect it to ramble.") + "\n");
  }
  chat.tell();
  while (!interrupted()) {
    const std::optional<Turn> turn = input.next();
    if (!turn || !chat.turn(*turn)) break;
  }
  if (input.terminal()) remark("\n");
  chat.finish();
  const bool stopped = interrupted() && !input.terminal();
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
  command->add_flag("--no-history", request->no_history, "do not remember what is typed for the next time");
  add_stop_option(*command, request->stop);
  add_writing_options(*command, request->options, request->sampler);
  add_kv_option(*command, request->options, "balanced", /*compares=*/false);
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
