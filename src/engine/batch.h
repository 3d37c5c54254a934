// batch.h — a llama_batch that owns its arrays: tokens of one sequence or of several, for one decode.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>

namespace tierkv::engine {

class Batch {
 public:
  explicit Batch(size_t capacity) : batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // REQUIRES: fewer than `capacity` tokens so far. Positions of a sequence go on where it ends.
  void add(llama_token token, uint32_t position, int32_t slot, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = slot;
    batch_.logits[i] = logits;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace tierkv::engine
