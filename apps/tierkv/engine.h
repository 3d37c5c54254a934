// engine.h — a loaded GGUF and the sessions that run on it: with a tierkv cache, or with libllama's own for comparison.
//
//   Engine engine(options);                              // -m, or the default model of the cache folder
//   auto session = engine.open_session("balanced");      // or open_stock_session({...})
//   session->feed(tokens, Want::all, [&](uint32_t i, std::span<const float> logits) {...});
//
// Errors:   everything throws Failure (common.h) with one sentence. A missing, truncated or non-GGUF file and a model that the
//           cache does not serve are bad input.
// Threads:  one at a time; libllama and the cache use --threads inside. Sessions must not outlive their engine.
#pragma once

#include <llama.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common.h"
#include "tierkv/cache.h"
#include "tierkv/llama.h"

namespace tierkv::cli {

using Tokens = std::vector<llama_token>;

// Which tokens' logits feed() hands out.
enum class Want { none, last, all };

// `index` counts within the tokens given to feed(). The row is valid during the call.
using OnLogits = std::function<void(uint32_t index, std::span<const float> row)>;
// Called after every chunk with the tokens done so far.
using OnProgress = std::function<void(uint32_t done)>;

struct SessionTimes {
  double prefill_s = 0.0;  // feed() of several tokens
  double decode_s = 0.0;   // feed() of one
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  double prefill_rate() const { return prefill_s > 0 ? static_cast<double>(prefill_tokens) / prefill_s : 0.0; }
  double decode_rate() const { return decode_s > 0 ? static_cast<double>(decode_tokens) / decode_s : 0.0; }
};

// One sequence on one context. feed() stops with Interrupted soon after Ctrl-C; the session is then as long as length() says.
class Session {
 public:
  virtual ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Appends tokens, at most `chunk` (0: micro_batch()) at a time. Logits of token i are the prediction of token i + 1.
  void feed(std::span<const llama_token> tokens, Want want = Want::none, const OnLogits& on_logits = {}, uint32_t chunk = 0,
            const OnProgress& on_progress = {});
  // The logits of the last token fed with Want::last or Want::all; valid until the next feed().
  std::span<const float> last_logits() const { return last_; }

  uint32_t length() const { return length_; }
  uint32_t limit() const { return limit_; }  // positions that may be used
  virtual void truncate(uint32_t length) = 0;
  void reset() { truncate(0); }

  const std::string& name() const { return name_; }  // the --kv specification, or "stock f16"
  virtual bool stock() const = 0;
  // Bytes held for keys and values now: everything the cache has mapped, or the whole buffer that libllama allocated.
  virtual uint64_t kv_bytes() const = 0;
  // Beside them: what libllama's small cache for a micro-batch has in memory. 0 for stock.
  virtual uint64_t micro_batch_bytes() const { return 0; }
  // Of a tierkv cache; for stock all is in total_bytes and fp16_bytes.
  virtual MemoryStats memory() const = 0;
  virtual AdaptiveKVCache* cache() { return nullptr; }
  virtual llama::Host* host() { return nullptr; }
  // The sequence in the cache, and one put in its place (tierkv sessions only).
  virtual SeqId sequence();
  virtual void bind(SeqId id);

  const SessionTimes& times() const { return times_; }
  void reset_times() { times_ = {}; }
  uint32_t micro_batch() const { return micro_batch_; }
  llama_context* context() { return context_.get(); }

 protected:
  Session() = default;
  virtual void decode(const llama_batch& batch) = 0;

  std::string name_;
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
  uint32_t length_ = 0, limit_ = 0, micro_batch_ = 0, vocabulary_ = 0;

 private:
  void feed_chunk(std::span<const llama_token> tokens, uint32_t first, Want want, const OnLogits& on_logits);
  std::vector<float> last_;
  SessionTimes times_;
};

struct SessionOptions {
  uint32_t ctx = 0;  // positions; 0: the model's
  uint32_t micro_batch = 256;
  bool allow_patch = true;  // the fast path of the host
};

struct StockSpec {
  std::string type_k = "f16", type_v = "f16";  // f16, q8_0, q4_0
  bool flash = true;                           // quantized values need it
  uint32_t ctx = 0;                            // 0: the model's
  uint32_t micro_batch = 256;
  std::string name() const;  // "stock f16", "stock q8_0/q4_0", "stock f16 (no flash)"
};
// "f16", "q8_0", "q4_0" or "q8_0/q4_0" (keys/values).
StockSpec parse_stock(const std::string& text);

struct ChatMessage {
  std::string role, content;
};

class Engine {
 public:
  explicit Engine(const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  llama_model* model() const { return model_.get(); }
  const llama_vocab* vocab() const { return vocab_; }
  uint32_t vocabulary() const;
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }  // general.name of the file, or the file's own
  // Tells two models apart, even two of one shape: goes into snapshots.
  const std::string& fingerprint() const { return fingerprint_; }
  uint32_t context() const { return context_; }
  // Refuses more than the model's context, naming both; 0 stands for all of it.
  uint32_t check_context(uint64_t wanted) const;
  // bad input when the cache does not serve the model.
  const llama::ModelShape& shape();

  // The configuration that `kv` means for this model.
  CacheConfig config(const std::string& kv);
  // The calibration that serves it (calibrations.h says where it comes from), or null. Each is loaded once; its tables are read
  // when a codec needs them. Whether a named one fits the model is said when a session opens.
  CalibrationPtr calibration(const CacheConfig& config);
  std::unique_ptr<Session> open_session(const std::string& kv, const SessionOptions& options = {});
  // With a configuration that already has the model's shape (config() gave it, or a session file kept it).
  std::unique_ptr<Session> open_session(const std::string& name, const CacheConfig& config, const SessionOptions& options = {});
  std::unique_ptr<Session> open_stock_session(const StockSpec& spec);

  Tokens tokenize(const std::string& text, bool add_special, bool parse_special = false) const;
  std::string piece(llama_token token) const;
  std::string detokenize(std::span<const llama_token> tokens) const;
  bool is_end(llama_token token) const { return llama_vocab_is_eog(vocab_, token); }
  // The GGUF's template, or a plain "User:/Assistant:" form for models without one that libllama knows.
  std::string apply_template(const std::vector<ChatMessage>& messages, bool open_reply) const;
  bool has_template() const { return has_template_; }
  uint32_t threads() const { return threads_; }

 private:
  friend class TieredSession;
  friend class StockSession;
  llama_context_params context_params(uint32_t micro_batch) const;

  uint32_t threads_ = 1;
  std::string path_, name_, fingerprint_, template_;
  bool has_template_ = false;
  std::unique_ptr<llama_model, decltype(&llama_model_free)> model_{nullptr, llama_model_free};
  const llama_vocab* vocab_ = nullptr;
  uint32_t context_ = 0;
  std::unique_ptr<llama::ModelShape> shape_;
  std::map<std::string, CalibrationPtr> calibrations_;  // by the name of the file in the configuration; "": the one that was found
  bool tested_ = false, patch_works_ = false;           // what the first session's self-test found
};

// Streams text whose UTF-8 characters may be split over tokens: gives back what is complete.
class Utf8Joiner {
 public:
  std::string add(const std::string& piece);
  std::string rest();

 private:
  std::string held_;
};

}  // namespace tierkv::cli
