#include "cuda/launch/row_moves.h"

#include <cstring>

#include "attn/rows.h"
#include "base/f16.h"

namespace tierkv::cuda {

RowMove move_dense(const RowsView& from, void* to, DType type) {
  RowMove move;
  move.from = from.data, move.to = to;
  move.from_token = from.token_stride, move.from_head = from.head_stride;
  move.to_token = static_cast<int64_t>(from.heads) * from.head_dim, move.to_head = from.head_dim;
  move.tokens = from.tokens, move.heads = from.heads;
  move.from_type = from.type, move.to_type = type;
  return move;
}

void move_rows_on_host(std::span<const RowMove> moves, uint32_t head_dim) {
  for (const RowMove& move : moves) {
    RowsView from = RowsView::dense(move.from, move.from_type, move.tokens, move.heads, head_dim);
    from.token_stride = move.from_token, from.head_stride = move.from_head;
    for (uint32_t t = 0; t < move.tokens; ++t) {
      for (uint32_t h = 0; h < move.heads; ++h) {
        const ptrdiff_t at = attn::offset_of(from, t, h);
        auto* const to = static_cast<uint8_t*>(move.to) + (t * move.to_token + h * move.to_head) * element_bytes(move.to_type);
        if (move.from_type == move.to_type) {
          const size_t size = element_bytes(move.to_type);
          std::memcpy(to, static_cast<const uint8_t*>(move.from) + at * static_cast<ptrdiff_t>(size), head_dim * size);
          continue;
        }
        for (uint32_t c = 0; c < head_dim; ++c) {
          const float x = attn::element(from, at + c);
          const uint16_t half = move.to_type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
          if (move.to_type == DType::f32) std::memcpy(to + size_t{4} * c, &x, 4);
          else std::memcpy(to + size_t{2} * c, &half, 2);
        }
      }
    }
  }
}

}  // namespace tierkv::cuda
