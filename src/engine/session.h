// session.h — one sequence that grows: what a tierkv cache (tiered_context.h) and libllama's own (stock_session.h) have in common.
//
// Errors:   Error (error.h). feed() stops with Cancelled soon after the engine's or the session's Cancellation was requested; the
//           session is then as long as length() says.
// Threads:  one at a time for all sessions of one context.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/cancellation.h"
#include "engine/thread_count.h"
#include "tierkv/cache.h"
#include "tierkv/llama.h"

namespace tierkv::engine {

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
  uint32_t limit() const { return limits_.positions; }
  virtual void truncate(uint32_t length) = 0;
  void reset() { truncate(0); }

  const std::string& name() const { return name_; }  // the specification of its cache, or "stock f16"
  virtual bool stock() const = 0;
  // Bytes held for keys and values now: everything the cache has mapped, or the whole buffer that libllama allocated. Of all
  // sequences, where sessions share a cache.
  virtual uint64_t kv_bytes() const = 0;
  // Beside them: what libllama's small cache for a micro-batch has in memory. 0 for stock.
  virtual uint64_t micro_batch_bytes() const { return 0; }
  // Of a tierkv cache; for stock all is in total_bytes and fp16_bytes.
  virtual MemoryStats memory() const = 0;
  virtual AdaptiveKVCache* cache() { return nullptr; }
  virtual llama::Host* host() { return nullptr; }
  // The sequence in the cache, and one put in its place (tierkv sessions only). The one before is removed.
  virtual SeqId sequence();
  virtual void bind(SeqId id);

  const SessionTimes& times() const { return times_; }
  void reset_times() { times_ = {}; }
  uint32_t micro_batch() const { return limits_.micro_batch; }
  // Somebody asked this session to stop.
  bool cancelled() const { return requested(cancel_); }

 protected:
  struct Limits {
    uint32_t positions = 0;    // that may be used
    uint32_t micro_batch = 0;  // tokens of one decode
    uint32_t vocabulary = 0;
  };
  Session(std::string name, int32_t slot, const Cancellation* cancel, const ThreadCount& threads);

  // All of the batch or nothing: throws, and the sequence is as it was.
  virtual void decode(const llama_batch& batch) = 0;
  virtual llama_context* context() const = 0;

  std::string name_;
  int32_t slot_;  // libllama's number of the sequence
  const Cancellation* cancel_;
  Limits limits_;
  uint32_t length_ = 0;

 private:
  void feed_chunk(std::span<const llama_token> tokens, uint32_t first, Want want, const OnLogits& on_logits);
  void decode_one(const llama_batch& batch);
  std::vector<float> last_;
  SessionTimes times_;
  ThreadCount threads_;  // for a token by itself; prompts take all there are
};

}  // namespace tierkv::engine
