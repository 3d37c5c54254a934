// codec.cc — what a codec that knows nothing of its errors says of them: they are alike in every direction.
#include "quant/codec.h"

#include "quant/frame.h"

namespace tierkv::quant {

void Codec::to_error_frame(const BlockContext&, float* rows, uint32_t count) const {
  to_frame(Frame::hadamard, rows, count, shape().head_dim);
}

void Codec::from_error_frame(const BlockContext&, float* rows, uint32_t count, bool) const {
  if (frame() != Frame::hadamard) from_frame(Frame::hadamard, rows, count, shape().head_dim);
}

const float* Codec::error_queries(const BlockContext&, const float* queries, uint32_t count, Workspace& ws) const {
  if (frame() == Frame::hadamard) return queries;
  const size_t size = static_cast<size_t>(count) * shape().head_dim;
  if (ws.c.size() < size) ws.c.resize(size);
  to_frame(Frame::hadamard, queries, count, shape().head_dim, ws.c.data());
  return ws.c.data();
}

}  // namespace tierkv::quant
