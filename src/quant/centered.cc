#include "quant/centered.h"

#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/isa.h"
#include "quant/layout.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"

namespace tierkv::quant {

namespace {

class CenteredCodec final : public Codec {
 public:
  explicit CenteredCodec(std::unique_ptr<Codec> inner)
      : Codec(inner->spec(), inner->side(), inner->shape(), inner->frame()), inner_(std::move(inner)) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes() + shape().head_dim * sizeof(uint16_t);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    const Kernels* kernels = active_kernels();
    float sums[256] = {}, shift[256];
    if (kernels) kernels->column_sums(rows, tokens, d, sums);
    for (uint32_t t = 0; t < tokens && !kernels; ++t) {
      for (uint32_t c = 0; c < d; ++c) sums[c] += rows[static_cast<size_t>(t) * d + c];
    }
    uint16_t stored[256];
    for (uint32_t c = 0; c < d; ++c) {
      const float mean = sums[c] / static_cast<float>(tokens);
      stored[c] = f32_to_f16(mean);
      if ((stored[c] & 0x7C00u) == 0x7C00u) {
        return error(StatusCode::invalid_argument, "the mean of channel ", c, " is ", mean, ", past 65504, the largest fp16");
      }
      shift[c] = -f16_to_f32(stored[c]);
    }
    float* rest = at_least(block_scratch().centered, static_cast<size_t>(tokens) * d);
    add_to_rows(rows, shift, tokens, rest);
    TIERKV_RETURN_IF_ERROR(inner_->encode(rest, ctx, out.first(inner_->bytes())));
    std::memcpy(out.data() + inner_->bytes(), stored, d * sizeof(uint16_t));
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    inner_->decode(in.first(inner_->bytes()), ctx, first, count, out);
    float mean[256];
    load_mean(in, mean);
    add_to_rows(out, mean, count, out);
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    inner_->scores(in.first(inner_->bytes()), ctx, queries, count, rows, out, stride, ws);
    const uint32_t d = shape().head_dim;
    float mean[256];
    load_mean(in, mean);
    for (uint32_t i = 0; i < count; ++i) {
      const float shift = product(queries + static_cast<size_t>(i) * d, mean, d);
      for (uint32_t t = 0; t < rows; ++t) out[i * stride + t] += shift;
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    inner_->accumulate(in.first(inner_->bytes()), ctx, weights, stride, count, rows, acc, ws);
    const uint32_t d = shape().head_dim;
    float mean[256];
    load_mean(in, mean);
    for (uint32_t i = 0; i < count; ++i) {
      double total = 0.0;
      for (uint32_t t = 0; t < rows; ++t) total += weights[i * stride + t];
      for (uint32_t c = 0; c < d; ++c) acc[static_cast<size_t>(i) * d + c] += static_cast<float>(total) * mean[c];
    }
  }

  bool layout(SideLayout& out) const override {
    if (!inner_->layout(out) || out.kind != LayoutKind::packed || out.mean_at != 0) return false;
    out.mean_at = static_cast<uint32_t>(inner_->bytes());
    out.bytes = static_cast<uint32_t>(bytes());
    return true;
  }

  bool coding(SideCoding& out) const override { return inner_->coding(out) && layout(out.layout); }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    float mean[256];
    load_mean(in, mean);
    for (uint32_t c = 0; c < shape().head_dim; ++c) {
      if (!std::isfinite(mean[c])) return error(StatusCode::data_loss, "the stored mean of channel ", c, " is not finite");
    }
    return inner_->validate(in.first(inner_->bytes()));
  }

 private:
  void add_to_rows(const float* in, const float* row, uint32_t count, float* out) const {
    const uint32_t d = shape().head_dim;
    if (const Kernels* kernels = active_kernels()) return kernels->add_row(in, row, count, d, out);
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t c = 0; c < d; ++c) out[static_cast<size_t>(t) * d + c] = in[static_cast<size_t>(t) * d + c] + row[c];
    }
  }

  void load_mean(std::span<const std::byte> in, float* mean) const {
    uint16_t stored[256];
    std::memcpy(stored, in.data() + inner_->bytes(), shape().head_dim * sizeof(uint16_t));
    if (const Kernels* kernels = active_kernels()) return kernels->widen(stored, /*bf16=*/false, shape().head_dim, mean);
    for (uint32_t c = 0; c < shape().head_dim; ++c) mean[c] = f16_to_f32(stored[c]);
  }

  std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> center_codec(std::unique_ptr<Codec> inner) { return std::make_unique<CenteredCodec>(std::move(inner)); }

}  // namespace tierkv::quant
