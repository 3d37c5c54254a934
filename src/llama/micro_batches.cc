#include "llama/micro_batches.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::llama {

Result<MicroBatches> MicroBatches::make(const llama_batch& batch, const BatchLimits& limits,
                                        const std::function<Result<uint32_t>(int32_t)>& length) {
  if (batch.n_tokens <= 0) return error(StatusCode::invalid_argument, "the batch is empty");
  if ((batch.token == nullptr) == (batch.embd == nullptr)) {
    return error(StatusCode::invalid_argument, "the batch must have either tokens or embeddings");
  }
  const auto n = static_cast<uint32_t>(batch.n_tokens);
  MicroBatches plan;
  plan.source_ = batch;
  plan.limits_ = limits;
  plan.positions_.resize(n);
  plan.part_of_.resize(n);
  plan.logits_.assign(n, 0);
  for (uint32_t i = 0; i < n; ++i) {
    if (batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1) {
      return error(StatusCode::invalid_argument, "token ", i, " belongs to ", batch.n_seq_id[i],
                   " sequences, but one is allowed: decode it once and fork the sequence");
    }
    const int32_t seq = batch.seq_id != nullptr ? batch.seq_id[i][0] : 0;
    if (seq < 0 || static_cast<uint32_t>(seq) >= limits.sequences) {
      return error(StatusCode::invalid_argument, "token ", i, " belongs to sequence ", seq, ", but the context has sequences 0 to ",
                   limits.sequences - 1);
    }
    auto found = std::find_if(plan.parts_.begin(), plan.parts_.end(), [&](const Part& p) { return p.seq == seq; });
    if (found == plan.parts_.end()) {
      const auto known = length(seq);
      plan.parts_.push_back({seq, known.ok() ? *known : 0, 0, known.status()});
      found = plan.parts_.end() - 1;
    }
    Part& part = *found;
    const uint32_t expected = part.start + part.left;
    const llama_pos position = batch.pos != nullptr ? batch.pos[i] : static_cast<llama_pos>(expected);
    if (part.status.ok() && (position < 0 || static_cast<uint32_t>(position) != expected)) {
      part.status = error(StatusCode::invalid_argument, "token ", i, " is at position ", position, " of sequence ", seq,
                          ", which goes on at position ", expected);
    } else if (part.status.ok() && limits.context != 0 && expected >= limits.context) {
      part.status =
          error(StatusCode::out_of_range, "sequence ", seq, " is full: the model's context is ", limits.context, " tokens");
    }
    ++part.left;
    plan.positions_[i] = position;
    plan.part_of_[i] = static_cast<uint32_t>(found - plan.parts_.begin());
    plan.logits_[i] = batch.logits != nullptr ? batch.logits[i] : static_cast<int8_t>(i + 1 == n);
  }
  return plan;
}

Part& MicroBatches::part(int32_t seq) {
  return *std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.seq == seq; });
}

int32_t MicroBatches::last_wanted() const {
  for (uint32_t i = size(); i-- > 0;) {
    if (logits_[i] != 0) return static_cast<int32_t>(i);
  }
  return -1;
}

bool MicroBatches::next() {
  indices_.clear();
  rows_.clear();
  micro_.logits.clear();
  for (; at_ < size() && indices_.size() < limits_.micro_batch; ++at_) {
    const Part& part = parts_[part_of_[at_]];
    if (!part.status.ok()) continue;
    auto of = std::find_if(rows_.begin(), rows_.end(), [&](const SequenceRows& r) { return r.seq == part.seq; });
    if (of == rows_.end()) {
      if (rows_.size() == limits_.together) break;
      of = rows_.insert(rows_.end(), SequenceRows{part.seq, {}});
    }
    const auto row = static_cast<uint32_t>(indices_.size());
    if (!of->runs.empty() && of->runs.back().row + of->runs.back().count == row) {
      ++of->runs.back().count;
    } else {
      of->runs.push_back({row, 1, static_cast<uint32_t>(positions_[at_])});
    }
    indices_.push_back(at_);
    micro_.logits.push_back(logits_[at_]);
  }
  if (indices_.empty()) return false;
  number_sequences();
  return true;
}

void MicroBatches::number_sequences() {
  micro_.ids.resize(indices_.size());
  std::vector<bool> taken(limits_.together, false);
  for (const SequenceRows& of : rows_) {
    if (static_cast<uint32_t>(of.seq) < limits_.together) taken[static_cast<size_t>(of.seq)] = true;
  }
  for (const SequenceRows& of : rows_) {
    auto id = static_cast<size_t>(of.seq);
    if (id >= limits_.together) {
      id = static_cast<size_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
      taken[id] = true;
    }
    for (const Run& run : of.runs) {
      std::fill_n(micro_.ids.begin() + run.row, run.count, static_cast<llama_seq_id>(id));
    }
  }
}

llama_batch MicroBatches::batch() {
  const size_t n = indices_.size(), width = static_cast<size_t>(limits_.embedding);
  micro_.positions.resize(n);
  micro_.id_pointers.resize(n);
  micro_.id_counts.assign(n, 1);
  for (size_t i = 0; i < n; ++i) {
    micro_.positions[i] = positions_[indices_[i]];
    micro_.id_pointers[i] = &micro_.ids[i];
  }
  llama_batch result{};
  result.n_tokens = static_cast<int32_t>(n);
  // Rows that lie together are the caller's; others are gathered.
  const uint32_t first = indices_[0];
  const bool together = indices_[n - 1] - first + 1 == n;
  if (source_.token != nullptr) {
    micro_.tokens.clear();
    for (size_t i = 0; !together && i < n; ++i) micro_.tokens.push_back(source_.token[indices_[i]]);
    result.token = together ? source_.token + first : micro_.tokens.data();
  } else {
    micro_.embeddings.clear();
    for (size_t i = 0; !together && i < n; ++i) {
      const float* row = source_.embd + indices_[i] * width;
      micro_.embeddings.insert(micro_.embeddings.end(), row, row + width);
    }
    result.embd = together ? source_.embd + first * width : micro_.embeddings.data();
  }
  result.pos = micro_.positions.data();
  result.n_seq_id = micro_.id_counts.data();
  result.seq_id = micro_.id_pointers.data();
  result.logits = micro_.logits.data();
  return result;
}

void MicroBatches::done() {
  for (const uint32_t index : indices_) --parts_[part_of_[index]].left;
}

}  // namespace tierkv::llama
