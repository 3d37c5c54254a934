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

}  // namespace tierkv::quant
