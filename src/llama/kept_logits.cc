#include "llama/kept_logits.h"

#include "base/status_macros.h"

namespace tierkv::llama {

void KeptLogits::begin(uint32_t rows, int32_t last) {
  rows_.assign(rows, {});
  last_ = last;
  in_context_.clear();
  std::vector<float>().swap(kept_);  // a long prompt's may be hundreds of megabytes
}

void KeptLogits::computed(llama_context* context, std::span<const uint32_t> indices, std::span<const int8_t> wanted) {
  context_ = context;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (wanted[i] == 0) continue;
    rows_[indices[i]].in_context = static_cast<int32_t>(i);
    in_context_.push_back(indices[i]);
  }
}

void KeptLogits::keep() {
  for (const uint32_t index : in_context_) {
    Row& row = rows_[index];
    const float* logits = row.in_context >= 0 ? llama_get_logits_ith(context_, row.in_context) : nullptr;
    if (logits != nullptr) {
      row.kept = kept_.size();
      kept_.insert(kept_.end(), logits, logits + vocabulary_);
    }
    row.in_context = -1;
  }
  in_context_.clear();
}

Result<std::span<const float>> KeptLogits::get(int32_t index) const {
  const int32_t at = index == -1 ? last_ : index;
  if (at < 0 || static_cast<size_t>(at) >= rows_.size()) {
    return error(StatusCode::out_of_range, "there are no logits of token ", index, ": the last batch had ", rows_.size(),
                 " tokens");
  }
  const Row& row = rows_[static_cast<size_t>(at)];
  const float* logits = row.kept != kNone     ? kept_.data() + row.kept
                        : row.in_context >= 0 ? llama_get_logits_ith(context_, row.in_context)
                                              : nullptr;
  if (logits != nullptr) return std::span<const float>(logits, vocabulary_);
  return error(StatusCode::failed_precondition, "token ", at, " of the last batch did not ask for logits, or its sequence failed");
}

}  // namespace tierkv::llama
