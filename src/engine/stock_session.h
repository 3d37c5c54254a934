// stock_session.h — a session on libllama's own cache, for comparison.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engine/session.h"

namespace tierkv::engine {

class Engine;

struct StockSpec {
  std::string type_k = "f16", type_v = "f16";  // f16, q8_0, q4_0
  bool flash = true;                           // quantized values need it
  uint32_t ctx = 0;                            // 0: the model's
  uint32_t micro_batch = 256;
  std::string name() const;  // "stock f16", "stock q8_0/q4_0", "stock f16 (no flash)"
};
// "f16", "q8_0", "q4_0" or "q8_0/q4_0" (keys/values).
StockSpec parse_stock(const std::string& text);

class StockSession : public Session {
 public:
  StockSession(Engine& engine, const StockSpec& spec);
  void truncate(uint32_t length) override;
  bool stock() const override { return true; }
  uint64_t kv_bytes() const override { return bytes_; }
  MemoryStats memory() const override;

 protected:
  void decode(const llama_batch& batch) override;
  llama_context* context() const override { return context_.get(); }

 private:
  void measure(const llama::ModelShape& shape, const llama_context_params& params);
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
  uint64_t bytes_ = 0, fp16_per_token_ = 0;
};

}  // namespace tierkv::engine
