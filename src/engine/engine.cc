// engine.cc — loading a model, and what its caches are made with.
#include "engine/engine.h"

#include <ggml-backend.h>

#include <algorithm>

#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/text.h"

namespace tierkv::engine {
namespace {

bool keep_loading(float share, void* user) {
  const auto& options = *static_cast<const EngineOptions*>(user);
  if (options.on_progress) options.on_progress(share);
  return !requested(options.cancel);
}

void load_backends_once() {
  static const bool once = [] {
    ggml_backend_load_all();
    return true;
  }();
  (void)once;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : threads_(std::max(1u, options.threads)),
      fewer_threads_(options.fewer_threads),
      rope_(options.rope),
      cancel_(options.cancel),
      path_(find_model(options.model, options.cancel)) {
  const GgufFile file = read_gguf(path_);
  name_ = file.name;
  fingerprint_ = file.fingerprint;
  load_backends_once();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.progress_callback = keep_loading;
  params.progress_callback_user_data = const_cast<EngineOptions*>(&options);
  model_.reset(llama_model_load_from_file(path_.c_str(), params));
  if (requested(cancel_)) throw Cancelled();
  if (!model_) {
    const std::string reason = last_libllama_error();
    bad_input("libllama cannot load " + path_ + (reason.empty() ? "" : ": " + reason));
  }
  tokenizer_ = Tokenizer(llama_model_get_vocab(model_.get()));
  context_ = static_cast<uint32_t>(std::max(0, llama_model_n_ctx_train(model_.get())));
  if (const char* text = llama_model_chat_template(model_.get(), nullptr)) template_ = ChatTemplate(text);
  if (rope_ == llama::RopeSettings()) return;
  // Its keys are others, and so is its context.
  fingerprint_ += " " + rope_.text();
  context_ = shape().context;
}

Engine::~Engine() = default;

std::string Engine::title() const { return model_title(path_, name_); }

uint32_t Engine::check_context(uint64_t wanted) const {
  if (wanted == 0) return context_;
  if (wanted > context_) {
    bad_input("a context of " + human_count(wanted) + " tokens is longer than the model's: " + title() +
              (rope_ == llama::RopeSettings() ? " was made for " : " with " + rope_.text() + " runs to ") + human_count(context_));
  }
  return static_cast<uint32_t>(wanted);
}

const llama::ModelShape& Engine::shape() {
  if (!shape_) {
    shape_ = std::make_unique<llama::ModelShape>(take(llama::inspect(model_.get(), rope_), path_));
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
  check(validate(config), "--kv " + kv + " does not fit " + title());
  return config;
}

CalibrationPtr Engine::calibration(const CacheConfig& config) {
  if (config.calibrate == "off") return nullptr;
  CalibrationPtr& known = calibrations_[config.calibration_file()];
  if (!known) known = take(llama::find_calibration(shape(), config, &calibration_note_), "");
  return known;
}

llama_context_params Engine::context_params(uint32_t micro_batch, const Cancellation* cancel) const {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = micro_batch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(threads_);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.abort_callback = [](void* user) { return requested(static_cast<const Cancellation*>(user)); };
  params.abort_callback_data = const_cast<Cancellation*>(cancel);
  params.no_perf = true;
  rope_.apply(params);
  return params;
}

std::shared_ptr<TieredContext> Engine::open_context(const std::string& kv, const SessionOptions& options) {
  return open_context(kv, config(kv), options);
}

std::shared_ptr<TieredContext> Engine::open_context(const std::string& name, const CacheConfig& config,
                                                    const SessionOptions& options) {
  return std::make_shared<TieredContext>(*this, name, config, options);
}

std::unique_ptr<Session> Engine::open_session(const std::string& kv, const SessionOptions& options) {
  return open_context(kv, options)->open_session();
}

std::unique_ptr<Session> Engine::open_session(const std::string& name, const CacheConfig& config, const SessionOptions& options) {
  return open_context(name, config, options)->open_session();
}

std::unique_ptr<Session> Engine::open_stock_session(const StockSpec& spec) { return std::make_unique<StockSession>(*this, spec); }

}  // namespace tierkv::engine
