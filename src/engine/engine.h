// engine.h — a loaded GGUF and what runs on it: with a tierkv cache, or with libllama's own for comparison. What a command and a
// server share.
//
//   Engine engine({.model = "smollm2", .threads = 2});   // a path, or a known name in the cache folder
//   auto session = engine.open_session("balanced");      // or open_stock_session({...})
//   session->feed(engine.tokenizer().encode(text, true), Want::all, [&](uint32_t i, std::span<const float> logits) {...});
//
// The engine never prints, never ends the process, reads no options and handles no signal. libllama's own messages are kept back.
//
// Errors:   everything throws Error (error.h). A missing, truncated or non-GGUF file and a model that the cache does not serve are
//           bad input.
// Threads:  one at a time; libllama and the cache use `threads` inside. Contexts and sessions must not outlive their engine.
#pragma once

#include <llama.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/cancellation.h"
#include "engine/chat_template.h"
#include "engine/session.h"
#include "engine/stock_session.h"
#include "engine/tiered_context.h"
#include "engine/tokenizer.h"
#include "tierkv/cache.h"
#include "tierkv/llama.h"

namespace tierkv::engine {

struct EngineOptions {
  std::string model = "smollm2";  // a path or a known name (gguf_file.h)
  uint32_t threads = 1;
  bool fewer_threads = false;                    // for a token by itself, while the machine has other work (thread_count.h)
  llama::RopeSettings rope;                      // of every context; sessions made with others are refused
  const Cancellation* cancel = nullptr;          // of loading, and of sessions that have none of their own; outlives the engine
  std::function<void(float share)> on_progress;  // of loading, 0..1
};

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  llama_model* model() const { return model_.get(); }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTemplate& chat_template() const { return template_; }
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }  // general.name of the file, or the file's own: goes into snapshots
  std::string title() const;                         // as people know it (model_title() in gguf_file.h)
  // Tells two models apart, even two of one shape, and one with its RoPE set from itself as it is: goes into snapshots.
  const std::string& fingerprint() const { return fingerprint_; }
  uint32_t threads() const { return threads_; }
  // How many of them take part in a token by itself.
  ThreadCount step_threads() const { return ThreadCount(fewer_threads_ ? threads_ : 1); }
  const Cancellation* cancellation() const { return cancel_; }
  uint32_t context() const { return context_; }
  // Refuses more than the model's context, naming both; 0 stands for all of it.
  uint32_t check_context(uint64_t wanted) const;
  // bad input when the cache does not serve the model.
  const llama::ModelShape& shape();

  // The configuration that `kv` (a preset, a file, or the inline form) means for this model.
  CacheConfig config(const std::string& kv);
  // The calibration that serves it (llama::find_calibration()), or null. Each is loaded once; its tables are read
  // when a codec needs them. Whether a named one fits the model is said when a context opens.
  CalibrationPtr calibration(const CacheConfig& config);
  // Why one that is there is not used; empty: there is none such.
  const std::string& calibration_note() const { return calibration_note_; }

  // A context for SessionOptions::slots sequences (tiered_context.h).
  std::shared_ptr<TieredContext> open_context(const std::string& kv, const SessionOptions& options = {});
  // With a configuration that already has the model's shape (config() gave it, or a session file kept it).
  std::shared_ptr<TieredContext> open_context(const std::string& name, const CacheConfig& config,
                                              const SessionOptions& options = {});
  // One sequence on a context of its own.
  std::unique_ptr<Session> open_session(const std::string& kv, const SessionOptions& options = {});
  std::unique_ptr<Session> open_session(const std::string& name, const CacheConfig& config, const SessionOptions& options = {});
  std::unique_ptr<Session> open_stock_session(const StockSpec& spec);

 private:
  friend class TieredContext;
  friend class StockSession;
  // What the first context's self-test found.
  struct HostPath {
    bool tested = false, patch_works = false;
  };
  llama_context_params context_params(uint32_t micro_batch, const Cancellation* cancel) const;

  uint32_t threads_ = 1;
  bool fewer_threads_ = false;
  llama::RopeSettings rope_;
  const Cancellation* cancel_ = nullptr;
  std::string path_, name_, fingerprint_;
  std::unique_ptr<llama_model, decltype(&llama_model_free)> model_{nullptr, llama_model_free};
  Tokenizer tokenizer_{nullptr};
  ChatTemplate template_;
  uint32_t context_ = 0;
  std::unique_ptr<llama::ModelShape> shape_;
  std::map<std::string, CalibrationPtr> calibrations_;  // by the name of the file in the configuration; "": the one that was found
  std::string calibration_note_;
  HostPath host_path_;
};

}  // namespace tierkv::engine
