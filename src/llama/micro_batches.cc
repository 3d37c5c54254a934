#include "llama/micro_batches.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::llama {

Result<MicroBatches> MicroBatches::make(const llama_batch& batch, int32_t embedding, uint32_t micro_batch, uint32_t sequences,
                                        uint32_t context, const std::function<Result<uint32_t>(int32_t)>& length) {
  if (batch.n_tokens <= 0) return error(StatusCode::invalid_argument, "the batch is empty");
  if ((batch.token == nullptr) == (batch.embd == nullptr)) {
    return error(StatusCode::invalid_argument, "the batch must have either tokens or embeddings");
  }
  const auto n = static_cast<uint32_t>(batch.n_tokens);
  MicroBatches plan;
  plan.source_ = batch;
  plan.embedding_ = embedding;
  plan.size_ = micro_batch;
  plan.positions_.resize(n);
  plan.seqs_.resize(n);
  plan.seq_pointers_.resize(n);
  plan.seq_counts_.assign(n, 1);
  plan.logits_.assign(n, 0);
  plan.rows_.resize((n + micro_batch - 1) / micro_batch);

  std::vector<uint32_t> next;  // by start: the position the sequence's next row must have
  for (uint32_t i = 0; i < n; ++i) {
    if (batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1) {
      return error(StatusCode::invalid_argument, "token ", i, " belongs to ", batch.n_seq_id[i],
                   " sequences, but one is allowed: decode it once and fork the sequence");
    }
    const int32_t seq = batch.seq_id != nullptr ? batch.seq_id[i][0] : 0;
    if (seq < 0 || static_cast<uint32_t>(seq) >= sequences) {
      return error(StatusCode::invalid_argument, "token ", i, " belongs to sequence ", seq, ", but the context has sequences 0 to ",
                   sequences - 1);
    }
    auto start = std::find_if(plan.starts_.begin(), plan.starts_.end(), [&](const Start& s) { return s.seq == seq; });
    if (start == plan.starts_.end()) {
      TIERKV_ASSIGN_OR_RETURN(const uint32_t known, length(seq));
      plan.starts_.push_back({seq, known});
      next.push_back(known);
      start = plan.starts_.end() - 1;
    }
    uint32_t& expected = next[static_cast<size_t>(start - plan.starts_.begin())];
    const llama_pos position = batch.pos != nullptr ? batch.pos[i] : static_cast<llama_pos>(expected);
    if (position < 0 || static_cast<uint32_t>(position) != expected) {
      return error(StatusCode::invalid_argument, "token ", i, " is at position ", position, " of sequence ", seq,
                   ", which goes on at position ", expected);
    }
    if (context != 0 && expected >= context) {
      return error(StatusCode::out_of_range, "sequence ", seq, " is full: the model's context is ", context, " tokens");
    }
    ++expected;
    plan.positions_[i] = position;
    plan.seqs_[i] = seq;
    plan.logits_[i] = batch.logits != nullptr ? batch.logits[i] : static_cast<int8_t>(i + 1 == n);

    auto& rows = plan.rows_[i / micro_batch];
    auto of = std::find_if(rows.begin(), rows.end(), [&](const SequenceRows& r) { return r.seq == seq; });
    if (of == rows.end()) of = rows.insert(rows.end(), SequenceRows{seq, {}});
    const uint32_t row = i % micro_batch;
    if (!of->runs.empty() && of->runs.back().row + of->runs.back().count == row) {
      ++of->runs.back().count;
    } else {
      of->runs.push_back({row, 1, static_cast<uint32_t>(position)});
    }
  }
  for (uint32_t i = 0; i < n; ++i) plan.seq_pointers_[i] = &plan.seqs_[i];

  const uint32_t last = (plan.micro_batches() - 1) * micro_batch;
  if (std::any_of(plan.logits_.begin(), plan.logits_.begin() + last, [](int8_t wanted) { return wanted != 0; })) {
    return error(StatusCode::invalid_argument, "logits are wanted of tokens before row ", last, " of a batch of ", n,
                 " tokens, but only the last micro-batch keeps them: decode at most ", micro_batch, " tokens at a time");
  }
  return plan;
}

llama_batch MicroBatches::batch(uint32_t micro_batch) {
  const uint32_t first = micro_batch * size_;
  llama_batch result{};
  result.n_tokens = static_cast<int32_t>(std::min(size_, static_cast<uint32_t>(source_.n_tokens) - first));
  if (source_.token != nullptr) result.token = source_.token + first;
  if (source_.embd != nullptr) result.embd = source_.embd + static_cast<size_t>(first) * static_cast<size_t>(embedding_);
  result.pos = positions_.data() + first;
  result.n_seq_id = seq_counts_.data() + first;
  result.seq_id = seq_pointers_.data() + first;
  result.logits = logits_.data() + first;
  return result;
}

}  // namespace tierkv::llama
