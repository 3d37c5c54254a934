// codec.cc — what a codec that knows nothing of its errors says of them: they are alike in every direction.
#include "quant/codec.h"

#include <algorithm>

#include "base/status_macros.h"
#include "quant/frame.h"

namespace tierkv::quant {

Status Codec::encode_with_errors(const float* rows, const BlockContext& ctx, std::span<std::byte> out, float* errors) const {
  TIERKV_RETURN_IF_ERROR(encode(rows, ctx, out));
  const size_t size = static_cast<size_t>(shape().tokens) * shape().head_dim;
  decode(out, ctx, 0, shape().tokens, errors);
  for (size_t i = 0; i < size; ++i) errors[i] = rows[i] - errors[i];
  to_frame(Frame::hadamard, errors, shape().tokens, shape().head_dim);
  return Status();
}

void Codec::from_error_frame(const BlockContext&, float* rows, uint32_t count, bool, float* out) const {
  if (frame() != Frame::hadamard) from_frame(Frame::hadamard, rows, count, shape().head_dim);
  std::copy_n(rows, static_cast<size_t>(count) * shape().head_dim, out);
}

ErrorQueries Codec::error_queries(const BlockContext&, const float* queries, uint32_t, Workspace&) const {
  return {queries, frame() == Frame::hadamard ? nullptr : hadamard_signs(shape().head_dim)};
}

}  // namespace tierkv::quant
