#include "quant/overlaid.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/frame.h"
#include "quant/grid.h"
#include "quant/isa.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kBits = 3, kLevels = 1u << kBits;
constexpr float kMiddle = 0.5f * static_cast<float>(kLevels - 1);
constexpr uint32_t kPlanes[] = {2, 1};  // low bits first
constexpr uint32_t kNoStep = 0xF8u;     // the first byte whose half float is not finite
// So many more queries than better rows are turned before it is cheaper to turn the rows: part of a query is turned already.
constexpr uint32_t kFewQueries = 4;

size_t code_bytes(uint32_t head_dim) { return static_cast<size_t>(head_dim) * kBits / 8; }

float step_of(std::byte stored) { return f16_to_f32(static_cast<uint16_t>(std::to_integer<uint32_t>(stored) << 7)); }

// To nearest; what is too large becomes the largest there is, since a coarse correction is better than none.
std::byte stored_step(float step) {
  const uint32_t half = f32_to_f16(std::min(step, kMaxF16));
  return static_cast<std::byte>(std::min((half + 64u) >> 7, kNoStep - 1u));
}

void pack(const uint16_t* codes, uint32_t d, std::byte* out) {
  uint32_t shift = 0;
  for (const uint32_t bits : kPlanes) {
    const uint32_t bytes = d * bits / 8, mask = (1u << bits) - 1u;
    for (uint32_t j = 0; j < bytes; ++j) {
      uint32_t packed = 0;
      for (uint32_t k = 0; k < 8 / bits; ++k) packed |= (codes[k * bytes + j] >> shift & mask) << (k * bits);
      out[j] = static_cast<std::byte>(packed);
    }
    out += bytes;
    shift += bits;
  }
}

void unpack(const std::byte* in, uint32_t d, uint8_t* codes) {
  const auto* from = reinterpret_cast<const uint8_t*>(in);
  const uint32_t quarter = d / 4, eighth = d / 8;
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t j = 0; j < quarter; ++j) codes[k * quarter + j] = static_cast<uint8_t>(from[j] >> (2 * k) & 3u);
  }
  from += quarter;
  for (uint32_t k = 0; k < 8; ++k) {
    for (uint32_t j = 0; j < eighth; ++j) codes[k * eighth + j] |= static_cast<uint8_t>((from[j] >> k & 1u) << 2);
  }
}

class OverlaidCodec final : public Codec {
 public:
  OverlaidCodec(std::unique_ptr<Codec> inner, const CodecSpec& spec)
      : Codec(spec, inner->side(), inner->shape(), inner->frame()), inner_(std::move(inner)) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes() + overlay_bytes(spec.top, shape().head_dim);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(inner_->encode(rows, ctx, base(out)));
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    float* lost = at_least(block_scratch().decoded, static_cast<size_t>(tokens) * d);
    inner_->decode(base(out), ctx, 0, tokens, lost);
    for (size_t i = 0; i < static_cast<size_t>(tokens) * d; ++i) lost[i] = rows[i] - lost[i];
    inner_->to_error_frame(ctx, lost, tokens);
    uint32_t chosen[kMostTop];
    choose(lost, ctx.mass, chosen);
    std::byte* at = out.data() + inner_->bytes();
    for (uint32_t i = 0; i < top(); ++i) {
      const float* row = lost + static_cast<size_t>(chosen[i]) * d;
      at[i] = static_cast<std::byte>(chosen[i]);
      at[top() + i] = encode_row(row, at + 2 * top() + i * code_bytes(d));
    }
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    inner_->decode(base(in), ctx, first, count, out);
    const uint32_t d = shape().head_dim;
    float row[256];
    for (uint32_t i = 0; i < top(); ++i) {
      const uint32_t t = index(in, i);
      if (t < first || t >= first + count) continue;
      decode_row(in, i, row);
      inner_->from_error_frame(ctx, row, 1, /*exact=*/true);
      from_frame(frame(), row, 1, d);
      float* to = out + static_cast<size_t>(t - first) * d;
      for (uint32_t c = 0; c < d; ++c) to[c] += row[c];
    }
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    inner_->scores(base(in), ctx, queries, count, rows, out, stride, ws);
    const uint32_t d = shape().head_dim, better = better_below(in, rows);
    if (count <= better + kFewQueries)
      return add_to_scores(in, inner_->error_queries(ctx, queries, count, ws), better, count, out, stride);
    const float* lost = decode_better(in, ctx, better, ws);
    for (uint32_t i = 0; i < count; ++i) {
      const float* query = queries + static_cast<size_t>(i) * d;
      for (uint32_t b = 0; b < better; ++b) out[i * stride + index(in, b)] += product(query, lost + b * d, d);
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    inner_->accumulate(base(in), ctx, weights, stride, count, rows, acc, ws);
    const uint32_t d = shape().head_dim, better = better_below(in, rows);
    const float* lost = decode_better(in, ctx, better, ws);
    for (uint32_t b = 0; b < better; ++b) add_weighted(lost + b * d, 1, d, weights + index(in, b), stride, count, acc);
  }

  void to_error_frame(const BlockContext& ctx, float* rows, uint32_t count) const override {
    inner_->to_error_frame(ctx, rows, count);
  }

  const float* error_queries(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const override {
    return inner_->error_queries(ctx, queries, count, ws);
  }

  void from_error_frame(const BlockContext& ctx, float* rows, uint32_t count, bool exact) const override {
    inner_->from_error_frame(ctx, rows, count, exact);
  }

  uint32_t directions(uint32_t position, float* rows, float& floor) const override {
    return inner_->directions(position, rows, floor);
  }

  size_t table_bytes() const override { return inner_->table_bytes(); }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    for (uint32_t i = 0; i < top(); ++i) {
      if (index(in, i) >= shape().tokens || (i > 0 && index(in, i) <= index(in, i - 1)))
        return error(StatusCode::data_loss, "better row ", i, " has the index ", index(in, i), ", which is out of order or range");
      if (std::to_integer<uint32_t>(step_byte(in, i)) >= kNoStep)
        return error(StatusCode::data_loss, "the stored step of better row ", i, " is not finite");
    }
    return inner_->validate(base(in));
  }

 private:
  uint32_t top() const { return spec().top; }
  template <class Byte>
  std::span<Byte> base(std::span<Byte> bytes) const {
    return bytes.first(inner_->bytes());
  }
  uint32_t index(std::span<const std::byte> in, uint32_t i) const { return std::to_integer<uint32_t>(in[inner_->bytes() + i]); }
  std::byte step_byte(std::span<const std::byte> in, uint32_t i) const { return in[inner_->bytes() + top() + i]; }

  // The rows of largest mass times squared error, in ascending order.
  void choose(const float* lost, const float* mass, uint32_t* chosen) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    double worth[256];
    uint32_t order[256];
    for (uint32_t t = 0; t < tokens; ++t) {
      double squares = 0.0;
      for (uint32_t c = 0; c < d; ++c) {
        const double x = lost[static_cast<size_t>(t) * d + c];
        squares += x * x;
      }
      worth[t] = mass ? squares * mass[t] : squares;
    }
    std::iota(order, order + tokens, 0u);
    std::partial_sort(order, order + top(), order + tokens,
                      [&](uint32_t a, uint32_t b) { return worth[a] != worth[b] ? worth[a] > worth[b] : a < b; });
    std::sort(order, order + top());
    std::copy_n(order, top(), chosen);
  }

  // Writes the codes of a row and returns its step.
  std::byte encode_row(const float* row, std::byte* codes) const {
    const uint32_t d = shape().head_dim;
    const std::byte stored = stored_step(fit_group(FitKind::midrise, row, d, kLevels).step);
    uint16_t levels[256];
    code_group(row, d, step_of(stored), -kMiddle * step_of(stored), kLevels, levels);
    pack(levels, d, codes);
    return stored;
  }

  // What the base lost of better row i, in its error frame.
  void decode_row(std::span<const std::byte> in, uint32_t i, float* out) const {
    const uint32_t d = shape().head_dim;
    uint8_t codes[256];
    unpack(in.data() + inner_->bytes() + 2 * top() + i * code_bytes(d), d, codes);
    const float step = step_of(step_byte(in, i)), low = -kMiddle * step;
    if (const Kernels* kernels = active_kernels())
      return kernels->affine_bytes(low, step, reinterpret_cast<const std::byte*>(codes), d, out);
    for (uint32_t c = 0; c < d; ++c) out[c] = low + step * static_cast<float>(codes[c]);
  }

  // `asked`: error_queries().
  void add_to_scores(std::span<const std::byte> in, const float* asked, uint32_t better, uint32_t count, float* out,
                     size_t stride) const {
    const uint32_t d = shape().head_dim;
    float row[256];
    for (uint32_t b = 0; b < better; ++b) {
      decode_row(in, b, row);
      const uint32_t t = index(in, b);
      for (uint32_t i = 0; i < count; ++i) out[i * stride + t] += product(asked + static_cast<size_t>(i) * d, row, d);
    }
  }

  // Better rows among the first `rows`.
  uint32_t better_below(std::span<const std::byte> in, uint32_t rows) const {
    uint32_t better = 0;
    while (better < top() && index(in, better) < rows) ++better;
    return better;
  }

  // The same of the first `count` better rows, in frame(). The base is done with the workspace.
  const float* decode_better(std::span<const std::byte> in, const BlockContext& ctx, uint32_t count, Workspace& ws) const {
    const uint32_t d = shape().head_dim;
    float* rows = at_least(ws.a, static_cast<size_t>(count) * d);
    for (uint32_t i = 0; i < count; ++i) decode_row(in, i, rows + static_cast<size_t>(i) * d);
    inner_->from_error_frame(ctx, rows, count, /*exact=*/false);
    return rows;
  }

  std::unique_ptr<Codec> inner_;
};

}  // namespace

size_t overlay_bytes(uint32_t top, uint32_t head_dim) { return top * (2 + code_bytes(head_dim)); }

Result<std::unique_ptr<Codec>> overlay_codec(std::unique_ptr<Codec> inner, uint8_t top) {
  if (top > inner->shape().tokens) {
    return error(StatusCode::invalid_argument, "+top", top + 0, " in blocks of ", inner->shape().tokens, " tokens");
  }
  CodecSpec spec = inner->spec();
  spec.top = top;
  return std::unique_ptr<Codec>(std::make_unique<OverlaidCodec>(std::move(inner), spec));
}

}  // namespace tierkv::quant
