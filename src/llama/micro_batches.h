// micro_batches.h — which rows of a batch belong to which sequence, checked before anything is decoded.
//
// A batch of libllama's may leave out positions, sequences and logits, and may mix sequences; the plan has all of them spelled
// out. Its micro-batches are consecutive rows, in each of which a sequence's rows are a list of runs: consecutive rows,
// consecutive positions.
//
// Threads: a plan is built, then only read.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tierkv/status.h"

namespace tierkv::llama {

struct Run {
  uint32_t row = 0;  // within the micro-batch
  uint32_t count = 0;
  uint32_t position = 0;
};

struct SequenceRows {
  int32_t seq = 0;
  std::vector<Run> runs;  // by position
};

class MicroBatches {
 public:
  // `length` tells where a sequence ends now. `micro_batch` > 0 is the number of rows libllama takes at a time; `sequences` and
  // `context` bound sequence numbers and positions.
  static Result<MicroBatches> make(const llama_batch& batch, int32_t embedding, uint32_t micro_batch, uint32_t sequences,
                                   uint32_t context, const std::function<Result<uint32_t>(int32_t)>& length);

  uint32_t micro_batches() const { return static_cast<uint32_t>(rows_.size()); }
  // As llama_decode() takes it. Valid as long as the plan and the caller's batch.
  llama_batch batch(uint32_t micro_batch);
  const std::vector<SequenceRows>& rows(uint32_t micro_batch) const { return rows_[micro_batch]; }
  // Every sequence of the batch, and its length before it.
  struct Start {
    int32_t seq;
    uint32_t length;
  };
  const std::vector<Start>& starts() const { return starts_; }

 private:
  llama_batch source_{};
  int32_t embedding_ = 0;
  uint32_t size_ = 0;
  std::vector<llama_pos> positions_;
  std::vector<llama_seq_id> seqs_;
  std::vector<llama_seq_id*> seq_pointers_;
  std::vector<int32_t> seq_counts_;
  std::vector<int8_t> logits_;
  std::vector<Start> starts_;
  std::vector<std::vector<SequenceRows>> rows_;
};

}  // namespace tierkv::llama
