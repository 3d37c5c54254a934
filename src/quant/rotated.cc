#include "quant/rotated.h"

#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/frame.h"
#include "quant/layout.h"
#include "quant/scratch.h"

namespace tierkv::quant {

namespace {

class RotatedCodec final : public Codec {
 public:
  explicit RotatedCodec(std::unique_ptr<Codec> inner)
      : Codec(inner->spec(), inner->side(), inner->shape(), Frame::hadamard), inner_(std::move(inner)) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes();
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    float* rotated = at_least(block_scratch().rotated, static_cast<size_t>(shape().tokens) * shape().head_dim);
    to_frame(Frame::hadamard, rows, shape().tokens, shape().head_dim, rotated);
    return inner_->encode(rotated, ctx, out);
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    inner_->decode(in, ctx, first, count, out);
    from_frame(Frame::hadamard, out, count, shape().head_dim);
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    inner_->scores(in, ctx, queries, count, rows, out, stride, ws);
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    inner_->accumulate(in, ctx, weights, stride, count, rows, acc, ws);
  }

  bool layout(SideLayout& out) const override {
    if (!inner_->layout(out)) return false;
    out.hadamard = 1;
    return true;
  }

  bool coding(SideCoding& out) const override { return inner_->coding(out) && layout(out.layout); }

  Status validate(std::span<const std::byte> in) const override { return inner_->validate(in); }

 private:
  std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> rotate_codec(std::unique_ptr<Codec> inner) { return std::make_unique<RotatedCodec>(std::move(inner)); }

}  // namespace tierkv::quant
