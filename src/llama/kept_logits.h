// kept_logits.h — logits of every row of a batch that asked for them, by its index in the batch.
//
// libllama holds those of its last micro-batch. Those of earlier ones are copied before the next is decoded; so a batch of one
// micro-batch costs nothing.
//
// Threads: one at a time, as the host's.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tierkv/status.h"

namespace tierkv::llama {

class KeptLogits {
 public:
  explicit KeptLogits(size_t vocabulary) : vocabulary_(vocabulary) {}

  // A batch of `rows` rows begins; -1 as an index will mean `last`.
  void begin(uint32_t rows, int32_t last);
  // The context has computed a micro-batch: rows `indices` of the batch, those that are `wanted` with logits.
  void computed(llama_context* context, std::span<const uint32_t> indices, std::span<const int8_t> wanted);
  // Before the context computes another one.
  void keep();
  // The row's sequence failed.
  void forget(uint32_t index) { rows_[index] = {}; }

  // Valid until the next begin(), and as long as the context.
  Result<std::span<const float>> get(int32_t index) const;

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Row {
    int32_t in_context = -1;  // row of the last micro-batch, or
    size_t kept = kNone;      // index into kept_
  };

  const size_t vocabulary_;
  llama_context* context_ = nullptr;
  int32_t last_ = -1;
  std::vector<Row> rows_;
  std::vector<uint32_t> in_context_;  // rows whose logits the context has
  std::vector<float> kept_;
};

}  // namespace tierkv::llama
