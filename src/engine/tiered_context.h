// tiered_context.h — a libllama context whose sequences live in a tierkv cache, and the sessions on it.
//
// A command has one sequence: Engine::open_session() makes a context for it alone. Whoever has many (a server) makes one context
// with as many slots, opens a session in each, and may decode tokens of several of them in one batch:
//
//   auto context = engine.open_context("balanced", {.slots = 8});
//   auto one = context->open_session(), two = context->open_session();
//   Batch batch(2);
//   batch.add(a, one->length(), one->slot(), true);
//   batch.add(b, two->length(), two->slot(), true);
//   check(context->decode(batch));                      // then llama_get_logits_ith(context->get(), i)
//   one->advanced(1), two->advanced(1);
//
// Errors:   Error, but for decode(), which gives back the host's Status: a server answers for each of its requests.
// Threads:  one at a time. The engine outlives its contexts; a context lives as long as one of its sessions.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/session.h"
#include "tierkv/cache.h"
#include "tierkv/llama.h"

namespace tierkv::engine {

class Engine;
class TieredContext;

// Whether a cache learns a model that it has no calibration of, where its configuration does not say (CacheConfig::calibrate).
enum class Learning {
  none,          // the archive is what it is: measurements compare fixed settings
  in_passing,    // as calibrate = auto
  from_nothing,  // the same as on a model's first day: calibrations are not looked for, and nothing is read or written
};

struct SessionOptions {
  uint32_t ctx = 0;  // positions of a sequence; 0: the model's
  uint32_t micro_batch = 256;
  uint32_t chunk = 0;                    // rows of a sequence that are served at a time (llama::HostOptions::chunk)
  bool allow_patch = true;               // the fast path of the host
  uint32_t slots = 1;                    // sequences at a time
  const Cancellation* cancel = nullptr;  // null: the engine's
  Learning learning = Learning::none;
};

class TieredSession : public Session {
 public:
  explicit TieredSession(std::shared_ptr<TieredContext> context);  // takes a slot
  ~TieredSession() override;                                       // frees it, and its sequence

  void truncate(uint32_t length) override;
  bool stock() const override { return false; }
  uint64_t kv_bytes() const override;
  uint64_t micro_batch_bytes() const override;
  MemoryStats memory() const override;
  AdaptiveKVCache* cache() override;
  llama::Host* host() override;
  SeqId sequence() override;
  void bind(SeqId id) override;

  int32_t slot() const { return slot_; }
  // Tokens of this sequence went through TieredContext::decode().
  void advanced(uint32_t tokens) { length_ += tokens; }

 protected:
  void decode(const llama_batch& batch) override;
  llama_context* context() const override;

 private:
  std::shared_ptr<TieredContext> context_;
};

class TieredContext : public std::enable_shared_from_this<TieredContext> {
 public:
  // REQUIRES: the configuration has the model's shape (Engine::config() gave it).
  TieredContext(Engine& engine, const std::string& name, const CacheConfig& config, const SessionOptions& options);
  ~TieredContext();
  TieredContext(const TieredContext&) = delete;
  TieredContext& operator=(const TieredContext&) = delete;

  // A sequence in a free slot; Error, no_room, when there is none.
  std::unique_ptr<TieredSession> open_session();
  // Tokens of any number of sequences. Positions go on where each ends.
  Status decode(const Batch& batch) { return host_->decode(context_.get(), batch.get()); }

  llama_context* get() const { return context_.get(); }
  AdaptiveKVCache& cache() { return *cache_; }
  llama::Host& host() { return *host_; }
  const std::string& name() const { return name_; }
  uint32_t slots() const { return static_cast<uint32_t>(taken_.size()); }

 private:
  friend class TieredSession;
  int32_t take_slot();

  std::string name_;
  uint32_t limit_ = 0, vocabulary_ = 0;
  const Cancellation* cancel_;
  ThreadCount threads_;  // what sessions start with
  std::vector<bool> taken_;
  std::unique_ptr<AdaptiveKVCache> cache_;
  std::unique_ptr<llama::Host> host_;
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
};

}  // namespace tierkv::engine
