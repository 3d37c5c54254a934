// engine.cc — loading a model, its tokens and its chat template.
#include "engine.h"

#include <ggml-backend.h>

#include <algorithm>
#include <filesystem>

#include "calibrations.h"
#include "gguf_file.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

bool keep_loading(float share, void* user) {
  static_cast<Progress*>(user)->update(static_cast<uint64_t>(share * 100.0f));
  return !interrupted();
}

// What libllama's matcher of templates makes of the messages, or nothing.
std::string libllama_template(const std::string& text, const std::vector<ChatMessage>& messages, bool open_reply) {
  std::vector<llama_chat_message> chat;
  size_t size = 256;
  for (const ChatMessage& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
    size += 2 * message.content.size() + 64;
  }
  std::string out(size, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t length =
        llama_chat_apply_template(text.c_str(), chat.data(), chat.size(), open_reply, out.data(), static_cast<int32_t>(out.size()));
    if (length < 0) return "";
    const bool fits = static_cast<size_t>(length) <= out.size();
    out.resize(static_cast<size_t>(length));
    if (fits) return out;
  }
  return "";
}

}  // namespace

Engine::Engine(const Options& options) : threads_(std::max(1u, options.threads)), path_(find_model(options.model)) {
  const GgufFile file = read_gguf(path_);
  name_ = file.name;
  fingerprint_ = file.fingerprint;
  static const bool once = [] {
    ggml_backend_load_all();
    return true;
  }();
  (void)once;

  Progress progress("loading " + std::filesystem::path(path_).filename().string(), 100, options.quiet);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.progress_callback = keep_loading;
  params.progress_callback_user_data = &progress;
  model_.reset(llama_model_load_from_file(path_.c_str(), params));
  progress.finish();
  if (interrupted()) throw Interrupted();
  if (!model_) {
    const std::string reason = last_libllama_error();
    bad_input("libllama cannot load " + path_ + (reason.empty() ? "" : ": " + reason));
  }
  vocab_ = llama_model_get_vocab(model_.get());
  context_ = static_cast<uint32_t>(std::max(0, llama_model_n_ctx_train(model_.get())));
  if (const char* text = llama_model_chat_template(model_.get(), nullptr)) {
    template_ = text;
    has_template_ = !libllama_template(template_, {{"user", "x"}}, true).empty();
  }
}

Engine::~Engine() = default;

uint32_t Engine::vocabulary() const { return static_cast<uint32_t>(llama_vocab_n_tokens(vocab_)); }

uint32_t Engine::check_context(uint64_t wanted) const {
  if (wanted == 0) return context_;
  if (wanted > context_) {
    bad_input("a context of " + human_count(wanted) + " tokens is longer than the model's: " + name_ + " was made for " +
              human_count(context_));
  }
  return static_cast<uint32_t>(wanted);
}

const llama::ModelShape& Engine::shape() {
  if (!shape_) {
    shape_ = std::make_unique<llama::ModelShape>(take(llama::inspect(model_.get()), path_));
    context_ = std::min(context_, shape_->context);
  }
  return *shape_;
}

CacheConfig Engine::config(const std::string& kv) {
  CacheConfig config;
  config.model = name_ + " " + fingerprint_;
  config.threads = threads_;
  check(apply_spec(kv, config), "--kv " + kv);
  shape().apply(config);
  check(validate(config), "--kv " + kv + " does not fit " + name_);
  return config;
}

CalibrationPtr Engine::calibration(const CacheConfig& config) {
  CalibrationPtr& known = calibrations_[config.calibration];
  if (!known) known = take(llama::find_calibration(shape(), config), "");
  if (!known) known = shipped_calibration(shape());
  return known;
}

llama_context_params Engine::context_params(uint32_t micro_batch) const {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = micro_batch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(threads_);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.abort_callback = [](void*) { return interrupted(); };
  params.no_perf = true;
  return params;
}

Tokens Engine::tokenize(const std::string& text, bool add_special, bool parse_special) const {
  Tokens tokens(text.size() + 8);
  auto run = [&] {
    return llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, parse_special);
  };
  if (text.size() > (1u << 30)) bad_input("the text is longer than a gibibyte");
  int32_t count = run();
  if (count < 0) {
    tokens.resize(static_cast<size_t>(-count));
    count = run();
  }
  tokens.resize(static_cast<size_t>(std::max(0, count)));
  return tokens;
}

std::string Engine::piece(llama_token token) const {
  std::string text(64, '\0');
  int32_t size = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  if (size < 0) {
    text.resize(static_cast<size_t>(-size));
    size = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  }
  text.resize(static_cast<size_t>(std::max(0, size)));
  return text;
}

std::string Engine::detokenize(std::span<const llama_token> tokens) const {
  std::string text;
  for (const llama_token token : tokens) text += piece(token);
  return text;
}

std::string Engine::apply_template(const std::vector<ChatMessage>& messages, bool open_reply) const {
  if (has_template_) return libllama_template(template_, messages, open_reply);
  std::string text;
  for (const ChatMessage& message : messages) {
    const std::string who = message.role == "system" ? "" : message.role == "user" ? "User: " : "Assistant: ";
    text += who + message.content + "\n";
  }
  return text + (open_reply ? "Assistant:" : "");
}

// --- UTF-8

std::string Utf8Joiner::add(const std::string& piece) {
  held_ += piece;
  // The last character is complete when as many bytes follow its first one as that says.
  size_t start = held_.size();
  while (start > 0 && held_.size() - start < 4 && (static_cast<unsigned char>(held_[start - 1]) & 0xC0) == 0x80) --start;
  if (start == 0) return held_.size() >= 4 ? std::exchange(held_, "") : "";
  const unsigned char lead = static_cast<unsigned char>(held_[start - 1]);
  const size_t needed = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (held_.size() - (start - 1) >= needed) return std::exchange(held_, "");
  const std::string ready = held_.substr(0, start - 1);
  held_.erase(0, start - 1);
  return ready;
}

std::string Utf8Joiner::rest() { return std::exchange(held_, ""); }

}  // namespace tierkv::cli
