// stock_session.cc — llama_decode() as it is, and what its buffers take.
#include "engine/stock_session.h"

#include <ggml.h>

#include <algorithm>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/text.h"

namespace tierkv::engine {
namespace {

ggml_type type_of(const std::string& name) {
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "q4_0") return GGML_TYPE_Q4_0;
  bad_input("libllama's own cache is compared with the types f16, q8_0 and q4_0, not " + name);
}

uint64_t pad(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

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

StockSession::StockSession(Engine& engine, const StockSpec& spec)
    : Session(spec.name(), 0, engine.cancellation(), engine.step_threads()) {
  limits_ = {engine.check_context(spec.ctx), spec.micro_batch, engine.tokenizer().size()};
  if (!spec.flash && spec.type_v != "f16") bad_input("libllama's own cache needs flash attention for values in " + spec.type_v);
  llama_context_params params = engine.context_params(spec.micro_batch, cancel_);
  params.n_ctx = limit();
  params.type_k = type_of(spec.type_k);
  params.type_v = type_of(spec.type_v);
  params.flash_attn_type = spec.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.swa_full = false;
  context_.reset(llama_init_from_model(engine.model(), params));
  if (!context_) bad_input("libllama could not make a context of " + human_count(limit()) + " tokens with " + name_);
  measure(engine.shape(), params);
}

void StockSession::truncate(uint32_t length) {
  if (length >= length_) return;
  if (!llama_memory_seq_rm(llama_get_memory(context_.get()), slot_, static_cast<llama_pos>(length), -1)) {
    fail("libllama's own cache cannot go back to " + std::to_string(length) + " tokens");
  }
  length_ = length;
}

MemoryStats StockSession::memory() const {
  MemoryStats stats;
  stats.total_bytes = stats.peak_bytes = bytes_;
  stats.fp16_bytes = fp16_per_token_ * length_;
  return stats;
}

void StockSession::decode(const llama_batch& batch) {
  const int32_t result = llama_decode(context_.get(), batch);
  if (result == 0) return;
  (void)llama_memory_seq_rm(llama_get_memory(context_.get()), slot_, static_cast<llama_pos>(length_), -1);
  if (cancelled()) throw Cancelled();
  fail("llama_decode() failed with " + std::to_string(result));
}

// The buffers libllama allocates: all cells of full layers, the window and a micro-batch for those that slide.
void StockSession::measure(const llama::ModelShape& shape, const llama_context_params& params) {
  const int64_t row = static_cast<int64_t>(shape.kv_heads) * shape.head_dim;
  const uint64_t cell = ggml_row_size(params.type_k, row) + ggml_row_size(params.type_v, row);
  const uint64_t all = pad(llama_n_ctx(context_.get()), 256);
  for (const uint32_t window : shape.window) {
    bytes_ += cell * (window == 0 ? all : std::min(all, pad(window + params.n_ubatch, 256)));
    fp16_per_token_ += 4 * static_cast<uint64_t>(row);
  }
}

}  // namespace tierkv::engine
