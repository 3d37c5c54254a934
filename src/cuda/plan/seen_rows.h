// seen_rows.h — which rows of a view a query sees, as a view's descriptor says it (desc.h). Host code.
#pragma once

#include <vector>

#include "attn/attention.h"
#include "cuda/launch/desc.h"

namespace tierkv::cuda {

// As the processor has it (attention.cc).
inline bool sees(const attn::AttendParams& params, uint64_t position, uint64_t key) {
  return key != attn::kDeadPosition && !(params.causal && key > position) && !(params.window && key + params.window <= position);
}

// Writes begin, end and mask of what a query at `position` sees; where that has gaps its mask goes to `masks`. False: none.
bool limit_rows(const attn::AttendParams& params, uint32_t position, const attn::BlockView& view, ViewDesc& desc,
                std::vector<uint32_t>& masks);

}  // namespace tierkv::cuda
