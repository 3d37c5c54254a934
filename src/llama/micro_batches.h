// micro_batches.h — a batch as the micro-batches that libllama gets, and what became of each of its sequences.
//
// A batch of libllama's may leave out positions, sequences and logits, and may mix sequences; here all of them are spelled out and
// checked before anything is decoded. What is wrong with one sequence is that sequence's status; what is wrong with the batch
// refuses it. A micro-batch takes the next rows of the batch, without those of sequences that have failed; in it a sequence's rows
// are a list of runs: consecutive rows, consecutive positions.
//
// Numbers:  libllama's cache is empty before every micro-batch, so its sequence ids mean something within one only: a sequence has
//           the id of its own number where libllama has one, otherwise any that is free. Sequences may so be more than libllama's.
// Threads:  one at a time.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <span>
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

// What one sequence has in a batch.
struct Part {
  int32_t seq = 0;
  uint32_t start = 0;  // its length before the batch
  uint32_t left = 0;   // rows that have not been decoded
  Status status;
};

struct BatchLimits {
  int32_t embedding = 0;     // floats in a row of a batch of embeddings
  uint32_t micro_batch = 1;  // rows libllama takes at a time
  uint32_t together = 1;     // sequences libllama takes at a time
  uint32_t sequences = 1;    // that there are
  uint32_t context = 0;      // positions that there are; 0: any number
};

class MicroBatches {
 public:
  // `length` tells where a sequence ends now. The caller's batch must outlive the result.
  static Result<MicroBatches> make(const llama_batch& batch, const BatchLimits& limits,
                                   const std::function<Result<uint32_t>(int32_t)>& length);

  std::vector<Part>& parts() { return parts_; }
  Part& part(int32_t seq);
  const Part& part_of_row(uint32_t index) const { return parts_[part_of_[index]]; }

  // Takes the next micro-batch. False: there is none. REQUIRES: done() of the one before.
  bool next();
  // As llama_decode() takes it. Valid until next().
  llama_batch batch();
  const std::vector<SequenceRows>& rows() const { return rows_; }
  // Of each row: its index in the caller's batch, and whether its logits are wanted.
  std::span<const uint32_t> indices() const { return indices_; }
  std::span<const int8_t> wanted() const { return micro_.logits; }
  // The rows of the micro-batch have been decoded.
  void done();

  uint32_t size() const { return static_cast<uint32_t>(positions_.size()); }
  // The last row that wants logits; -1: none does.
  int32_t last_wanted() const;

 private:
  void number_sequences();

  llama_batch source_{};
  BatchLimits limits_;
  // Of each row of the batch.
  std::vector<llama_pos> positions_;
  std::vector<uint32_t> part_of_;
  std::vector<int8_t> logits_;
  std::vector<Part> parts_;
  uint32_t at_ = 0;  // the first row that no micro-batch has taken

  // The micro-batch.
  std::vector<uint32_t> indices_;
  std::vector<SequenceRows> rows_;
  struct {
    std::vector<llama_token> tokens;
    std::vector<float> embeddings;
    std::vector<llama_pos> positions;
    std::vector<llama_seq_id> ids;
    std::vector<llama_seq_id*> id_pointers;
    std::vector<int32_t> id_counts;
    std::vector<int8_t> logits;
  } micro_;
};

}  // namespace tierkv::llama
