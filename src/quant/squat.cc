#include "quant/squat.h"

#include <algorithm>

#include "base/status_macros.h"
#include "calib/calibration.h"
#include "quant/affine.h"
#include "quant/checks.h"
#include "quant/kivi.h"
#include "quant/scratch.h"
#include "quant/squat_feedback.h"

namespace tierkv::quant {

namespace {

class SquatCodec final : public Codec {
 public:
  SquatCodec(std::unique_ptr<Codec> inner, uint32_t group, std::span<const float> directions)
      : Codec(inner->spec(), inner->side(), inner->shape(), inner->frame()),
        inner_(std::move(inner)),
        feedback_(directions, shape().head_dim, kSquatStep),
        group_(group),
        fit_((spec().flags & CodecSpec::clip) != 0 ? FitKind::range_clip : FitKind::range) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes();
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    float* shifted = at_least(block_scratch().rotated, static_cast<size_t>(shape().tokens) * shape().head_dim);
    TIERKV_RETURN_IF_ERROR(shift_rows(rows, shifted));
    return inner_->encode(shifted, ctx, out);
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    inner_->decode(in, ctx, first, count, out);
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    inner_->scores(in, ctx, queries, count, rows, out, stride, ws);
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    inner_->accumulate(in, ctx, weights, stride, count, rows, acc, ws);
  }

  size_t table_bytes() const override { return 2 * sizeof(float) * feedback_.rank() * shape().head_dim; }

  bool layout(SideLayout& out) const override { return inner_->layout(out); }

  Status validate(std::span<const std::byte> in) const override { return inner_->validate(in); }

 private:
  // What kivi must be given so that its errors answer for each other. Each channel is a group of its own to kivi, so what it will
  // make of one is known as soon as the channel is.
  Status shift_rows(const float* rows, float* shifted) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens, r = feedback_.rank();
    std::vector<float> seen(static_cast<size_t>(r) * tokens), column(tokens),
        errors(static_cast<size_t>(feedback_.step()) * tokens);
    for (uint32_t from = 0; from < d; from += feedback_.step()) {
      const uint32_t to = std::min(d, from + feedback_.step());
      for (uint32_t c = from; c < to; ++c) {
        for (uint32_t t = 0; t < tokens; ++t) column[t] = rows[static_cast<size_t>(t) * d + c];
        const float* answer = feedback_.answer(c);
        for (uint32_t k = 0; k < r; ++k) {
          const float* g = seen.data() + static_cast<size_t>(k) * tokens;
          for (uint32_t t = 0; t < tokens; ++t) column[t] -= answer[k] * g[t];
        }
        float* e = errors.data() + static_cast<size_t>(c - from) * tokens;
        TIERKV_RETURN_IF_ERROR(round_column(column.data(), e));
        for (uint32_t t = 0; t < tokens; ++t) {
          const size_t i = static_cast<size_t>(t) * d + c;
          shifted[i] = column[t];
          e[t] -= rows[i];
        }
      }
      for (uint32_t c = from; c < to; ++c) {
        const float* e = errors.data() + static_cast<size_t>(c - from) * tokens;
        for (uint32_t k = 0; k < r; ++k) {
          float* g = seen.data() + static_cast<size_t>(k) * tokens;
          for (uint32_t t = 0; t < tokens; ++t) g[t] += feedback_.direction(c)[k] * e[t];
        }
      }
    }
    return Status();
  }

  // What kivi decodes a channel as.
  Status round_column(const float* x, float* rounded) const {
    const uint32_t tokens = shape().tokens, levels = 1u << spec().bits;
    const MetaFormat format{MetaKind::f16_pair, Rounding::cover, 1, levels, 0.0f};
    uint16_t codes[256];
    for (uint32_t from = 0; from < tokens; from += group_) {
      const uint32_t n = std::min(group_, tokens - from);
      const GroupFit fit = fit_group(fit_, x + from, n, levels);
      std::byte meta[4];
      TIERKV_RETURN_IF_ERROR(encode_meta(format, {&fit, 1}, meta));
      float scale = 0, offset = 0;
      decode_meta(format, meta, &scale, &offset);
      code_group(x + from, n, scale, offset, levels, codes);
      for (uint32_t i = 0; i < n; ++i) rounded[from + i] = offset + scale * static_cast<float>(codes[i]);
    }
    return Status();
  }

  std::unique_ptr<Codec> inner_;
  SquatFeedback feedback_;
  uint32_t group_;
  FitKind fit_;
};

}  // namespace

Result<std::unique_ptr<Codec>> make_squat(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables& tables) {
  if (!tables.calibration) {
    return error(StatusCode::failed_precondition, "squat needs a calibration with SQuat tables; `tierkv calibrate` makes one");
  }
  TIERKV_ASSIGN_OR_RETURN(const auto held, tables.calibration->squat_tables());
  const calib::SquatTables& known = *held;
  if (known.head_dim != shape.head_dim || tables.layer >= known.layers || tables.head >= known.kv_heads) {
    return error(StatusCode::invalid_argument, "the calibration has ", known.layers, " layers of ", known.kv_heads, " KV heads of ",
                 known.head_dim, "; layer ", tables.layer, ", head ", tables.head, " of ", shape.head_dim, " is not among them");
  }
  if ((spec.flags & ~CodecSpec::clip) != 0) {
    return error(StatusCode::invalid_argument,
                 "squat takes +clip and no other modifier: the grid of a channel must depend on that channel alone");
  }
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> inner, make_kivi(spec, side, shape));
  if (side == Side::value) return inner;
  TIERKV_ASSIGN_OR_RETURN(const uint32_t group, resolve_group(spec, shape.tokens, shape.tokens));
  return std::unique_ptr<Codec>(std::make_unique<SquatCodec>(std::move(inner), group, known.of(tables.layer, tables.head)));
}

}  // namespace tierkv::quant
