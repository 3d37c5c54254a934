// session.cc — one sequence on one context, behind a tierkv cache or libllama's own.
#include <ggml.h>

#include <algorithm>
#include <chrono>

#include "engine.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

class Batch {
 public:
  explicit Batch(size_t capacity) : batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void add(llama_token token, uint32_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = 0;
    batch_.logits[i] = logits;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

ggml_type type_of(const std::string& name) {
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "q4_0") return GGML_TYPE_Q4_0;
  bad_input("libllama's own cache is compared with the types f16, q8_0 and q4_0, not " + name);
}

uint64_t pad(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

// --- what both have in common

Session::~Session() = default;

SeqId Session::sequence() { throw Failure(kRuntimeError, name_ + " has no tierkv cache"); }
void Session::bind(SeqId) { throw Failure(kRuntimeError, name_ + " has no tierkv cache"); }

void Session::feed(std::span<const llama_token> tokens, Want want, const OnLogits& on_logits, uint32_t chunk,
                   const OnProgress& on_progress) {
  if (tokens.empty()) return;
  if (length_ + tokens.size() > limit_) {
    bad_input("the text needs a context of " + human_count(length_ + tokens.size()) + " tokens, and " + human_count(limit_) +
              " is all there is");
  }
  const uint32_t step = chunk == 0 ? micro_batch_ : std::min(chunk, micro_batch_);
  const auto start = std::chrono::steady_clock::now();
  for (size_t done = 0; done < tokens.size();) {
    if (interrupted()) throw Interrupted();
    const size_t count = std::min<size_t>(step, tokens.size() - done);
    const bool final = done + count == tokens.size();
    feed_chunk(tokens.subspan(done, count), static_cast<uint32_t>(done), want == Want::last && !final ? Want::none : want,
               on_logits);
    done += count;
    if (on_progress) on_progress(static_cast<uint32_t>(done));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  (tokens.size() == 1 ? times_.decode_s : times_.prefill_s) += seconds;
  (tokens.size() == 1 ? times_.decode_tokens : times_.prefill_tokens) += tokens.size();
}

void Session::feed_chunk(std::span<const llama_token> tokens, uint32_t first, Want want, const OnLogits& on_logits) {
  Batch batch(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool logits = want == Want::all || (want == Want::last && i + 1 == tokens.size());
    batch.add(tokens[i], length_ + static_cast<uint32_t>(i), logits);
  }
  decode(batch.get());
  length_ += static_cast<uint32_t>(tokens.size());
  if (want == Want::none) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool last = i + 1 == tokens.size();
    if (want == Want::last && !last) continue;
    const float* row = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
    if (row == nullptr) throw Failure(kRuntimeError, "libllama gave no logits for token " + std::to_string(first + i));
    if (on_logits) on_logits(first + static_cast<uint32_t>(i), {row, vocabulary_});
    if (last) last_.assign(row, row + vocabulary_);
  }
}

// --- a tierkv cache

class TieredSession : public Session {
 public:
  TieredSession(Engine& engine, const std::string& name, const CacheConfig& config, const SessionOptions& options) {
    name_ = name;
    vocabulary_ = engine.vocabulary();
    const llama::ModelShape& shape = engine.shape();
    cache_ = take(AdaptiveKVCache::create(config, engine.calibration(config)), "--kv " + name);
    llama_context_params params = engine.context_params(options.micro_batch);
    llama::HostOptions host;
    host.micro_batch = options.micro_batch;
    // The self-test compares both paths with stock attention; once for each engine is enough.
    host.self_test = !engine.tested_;
    host.allow_patch = options.allow_patch && (!engine.tested_ || engine.patch_works_);
    host_ = take(llama::Host::attach(params, shape, *cache_, host), engine.path());
    if (!engine.tested_ && options.allow_patch) {
      engine.tested_ = true;
      engine.patch_works_ = host_->path() == llama::Path::patch;
    }
    context_.reset(llama_init_from_model(engine.model(), params));
    if (!context_) throw Failure(kRuntimeError, "libllama could not make a context");
    limit_ = engine.check_context(options.ctx);
    micro_batch_ = host_->micro_batch();
  }
  ~TieredSession() override { context_.reset(); }  // before the host it calls

  void truncate(uint32_t length) override {
    if (length >= length_) return;
    check(length == 0 ? host_->remove(0) : host_->truncate(0, length));
    length_ = length;
  }
  bool stock() const override { return false; }
  uint64_t kv_bytes() const override { return cache_->memory_usage().resident_bytes(); }
  uint64_t micro_batch_bytes() const override { return host_->micro_batch_bytes(); }
  MemoryStats memory() const override { return cache_->memory_usage(); }
  AdaptiveKVCache* cache() override { return cache_.get(); }
  llama::Host* host() override { return host_.get(); }
  SeqId sequence() override { return take(host_->sequence(0)); }
  void bind(SeqId id) override {
    check(host_->bind(0, id));
    length_ = take(cache_->length(id));
  }

 protected:
  void decode(const llama_batch& batch) override {
    const Status status = host_->decode(context_.get(), batch);
    if (!status.ok() && interrupted()) throw Interrupted();
    check(status);
  }

 private:
  std::unique_ptr<AdaptiveKVCache> cache_;
  std::unique_ptr<llama::Host> host_;
};

std::unique_ptr<Session> Engine::open_session(const std::string& kv, const SessionOptions& options) {
  return open_session(kv, config(kv), options);
}

std::unique_ptr<Session> Engine::open_session(const std::string& name, const CacheConfig& config, const SessionOptions& options) {
  return std::make_unique<TieredSession>(*this, name, config, options);
}

// --- libllama's own cache

std::string StockSpec::name() const {
  return "stock " + type_k + (type_k == type_v ? "" : "/" + type_v) + (flash ? "" : " (no flash)");
}

StockSpec parse_stock(const std::string& text) {
  StockSpec spec;
  const size_t slash = text.find('/');
  spec.type_k = text.substr(0, slash);
  spec.type_v = slash == std::string::npos ? spec.type_k : text.substr(slash + 1);
  (void)type_of(spec.type_k);
  (void)type_of(spec.type_v);
  return spec;
}

class StockSession : public Session {
 public:
  StockSession(Engine& engine, const StockSpec& spec) {
    name_ = spec.name();
    vocabulary_ = engine.vocabulary();
    limit_ = engine.check_context(spec.ctx);
    if (!spec.flash && spec.type_v != "f16") bad_input("libllama's own cache needs flash attention for values in " + spec.type_v);
    llama_context_params params = engine.context_params(spec.micro_batch);
    params.n_ctx = limit_;
    params.type_k = type_of(spec.type_k);
    params.type_v = type_of(spec.type_v);
    params.flash_attn_type = spec.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = false;
    context_.reset(llama_init_from_model(engine.model(), params));
    if (!context_) bad_input("libllama could not make a context of " + human_count(limit_) + " tokens with " + name_);
    micro_batch_ = spec.micro_batch;
    measure(engine.shape(), params);
  }

  void truncate(uint32_t length) override {
    if (length >= length_) return;
    if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(length), -1)) {
      throw Failure(kRuntimeError, "libllama's own cache cannot go back to " + std::to_string(length) + " tokens");
    }
    length_ = length;
  }
  bool stock() const override { return true; }
  uint64_t kv_bytes() const override { return bytes_; }
  MemoryStats memory() const override {
    MemoryStats stats;
    stats.total_bytes = stats.peak_bytes = bytes_;
    stats.fp16_bytes = fp16_per_token_ * length_;
    return stats;
  }

 protected:
  void decode(const llama_batch& batch) override {
    const int32_t result = llama_decode(context_.get(), batch);
    if (result == 0) return;
    (void)llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(length_), -1);
    if (interrupted()) throw Interrupted();
    throw Failure(kRuntimeError, "llama_decode() failed with " + std::to_string(result));
  }

 private:
  // The buffers libllama allocates: all cells of full layers, the window and a micro-batch for those that slide.
  void measure(const llama::ModelShape& shape, const llama_context_params& params) {
    const int64_t row = static_cast<int64_t>(shape.kv_heads) * shape.head_dim;
    const uint64_t cell = ggml_row_size(params.type_k, row) + ggml_row_size(params.type_v, row);
    const uint64_t all = pad(llama_n_ctx(context_.get()), 256);
    for (const uint32_t window : shape.window) {
      bytes_ += cell * (window == 0 ? all : std::min(all, pad(window + params.n_ubatch, 256)));
      fp16_per_token_ += 4 * static_cast<uint64_t>(row);
    }
  }
  uint64_t bytes_ = 0, fp16_per_token_ = 0;
};

std::unique_ptr<Session> Engine::open_stock_session(const StockSpec& spec) { return std::make_unique<StockSession>(*this, spec); }

}  // namespace tierkv::cli
