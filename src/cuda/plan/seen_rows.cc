#include "cuda/plan/seen_rows.h"

#include <algorithm>

namespace tierkv::cuda {

bool limit_rows(const attn::AttendParams& params, uint32_t position, const attn::BlockView& view, ViewDesc& desc,
                std::vector<uint32_t>& masks) {
  uint32_t begin = 0, end = view.rows;
  if (view.ctx.positions == nullptr) {
    const uint64_t first = view.ctx.first_position, at = position;
    if (params.causal) end = static_cast<uint32_t>(std::min<uint64_t>(end, at >= first ? at - first + 1 : 0));
    if (params.window && first + params.window <= at) {
      begin = static_cast<uint32_t>(std::min<uint64_t>(end, at - params.window - first + 1));
    }
  } else {
    uint32_t words[kMaskWords] = {};
    uint32_t seen = 0;
    begin = view.rows, end = 0;
    for (uint32_t row = 0; row < view.rows; ++row) {
      if (!sees(params, position, view.position(row))) continue;
      words[row / 32] |= 1u << (row % 32);
      begin = std::min(begin, row), end = row + 1, ++seen;
    }
    if (seen != 0 && seen != end - begin) {
      desc.mask = static_cast<uint32_t>(masks.size() / kMaskWords);
      masks.insert(masks.end(), words, words + kMaskWords);
    }
  }
  desc.begin = static_cast<uint16_t>(begin), desc.end = static_cast<uint16_t>(end);
  return begin < end;
}

}  // namespace tierkv::cuda
