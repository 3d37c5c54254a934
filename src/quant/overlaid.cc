#include "quant/overlaid.h"

#include <algorithm>
#include <array>
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
constexpr uint32_t kNoStep = 0xF8u;  // the first byte whose half float is not finite
size_t code_bytes(uint32_t channels) { return static_cast<size_t>(channels) * kBits / 8; }

// Every step there is: attention looks up a handful for every block.
const std::array<float, 256>& all_steps() {
  static const std::array<float, 256> steps = [] {
    std::array<float, 256> out{};
    for (uint32_t i = 0; i < kNoStep; ++i) out[i] = f16_to_f32(static_cast<uint16_t>(i << 7));
    return out;
  }();
  return steps;
}

float step_of(std::byte stored) { return all_steps()[std::to_integer<size_t>(stored)]; }

// To nearest; what is too large becomes the largest there is, since a coarse correction is better than none.
std::byte stored_step(float step) {
  const uint32_t half = f32_to_f16(std::min(step, kMaxF16));
  return static_cast<std::byte>(std::min((half + 64u) >> 7, kNoStep - 1u));
}

// Eight codes in three bytes, the first in the lowest bits.
void pack(const uint16_t* codes, uint32_t n, std::byte* out) {
  for (uint32_t c = 0; c < n; c += 8, out += kBits) {
    uint32_t packed = 0;
    for (uint32_t k = 0; k < 8; ++k) packed |= static_cast<uint32_t>(codes[c + k]) << (kBits * k);
    for (uint32_t k = 0; k < kBits; ++k) out[k] = static_cast<std::byte>(packed >> (8 * k));
  }
}

float code_at(const std::byte* codes, uint32_t c) {
  const std::byte* at = codes + c / 8 * kBits;
  uint32_t packed = 0;
  for (uint32_t k = 0; k < kBits; ++k) packed |= std::to_integer<uint32_t>(at[k]) << (8 * k);
  return static_cast<float>(packed >> (kBits * (c % 8)) & (kLevels - 1u));
}

class OverlaidCodec final : public Codec {
 public:
  OverlaidCodec(std::unique_ptr<Codec> inner, const CodecSpec& spec)
      : Codec(spec, inner->side(), inner->shape(), inner->frame()),
        inner_(std::move(inner)),
        same_frame_(frame() == Frame::hadamard) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes() + overlay_bytes(spec.top, inner_->error_channels());
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    float* lost = at_least(block_scratch().lost, static_cast<size_t>(shape().tokens) * error_channels());
    return encode_with_errors(rows, ctx, out, lost);
  }

  Status encode_with_errors(const float* rows, const BlockContext& ctx, std::span<std::byte> out, float* errors) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(inner_->encode_with_errors(rows, ctx, base(out), errors));
    const uint32_t n = error_channels();
    uint32_t chosen[kMostTop];
    choose(errors, ctx.mass, chosen);
    std::byte* at = out.data() + inner_->bytes();
    float given[256];
    for (uint32_t i = 0; i < top(); ++i) {
      float* row = errors + static_cast<size_t>(chosen[i]) * n;
      at[i] = static_cast<std::byte>(chosen[i]);
      at[top() + i] = encode_row(row, at + 2 * top() + i * code_bytes(n));
      decode_row(out, i, given);
      for (uint32_t c = 0; c < n; ++c) row[c] -= given[c];
    }
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    inner_->decode(base(in), ctx, first, count, out);
    const uint32_t d = shape().head_dim;
    float even[256], row[256];
    for (uint32_t i = 0; i < top(); ++i) {
      const uint32_t t = index(in, i);
      if (t < first || t >= first + count) continue;
      decode_row(in, i, even);
      inner_->from_error_frame(ctx, even, 1, /*exact=*/true, row);
      from_frame(frame(), row, 1, d);
      float* to = out + static_cast<size_t>(t - first) * d;
      for (uint32_t c = 0; c < d; ++c) to[c] += row[c];
    }
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    const BetterRows better = first_better(in, better_below(in, rows));
    if (better.count != 0) multiply(better, ctx, queries, count, ws);
    inner_->scores(base(in), ctx, queries, count, rows, out, stride, ws);
    if (better.count != 0) add_to_scores(better, ws.products.data(), count, rows, out, stride);
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    inner_->accumulate(base(in), ctx, weights, stride, count, rows, acc, ws);
    const uint32_t d = shape().head_dim, better = better_below(in, rows);
    if (better == 0) return;
    const Kernels* kernels = active_kernels();
    if (!kernels || !same_frame_) {
      const float* lost = decode_better(in, ctx, better, ws);
      for (uint32_t b = 0; b < better; ++b) add_weighted(lost + b * d, 1, d, weights + index(in, b), stride, count, acc);
      return;
    }
    kernels->better_sums(first_better(in, better), weights, stride, count, acc);
  }

  uint32_t error_channels() const override { return inner_->error_channels(); }

  ErrorQueries error_queries(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const override {
    return inner_->error_queries(ctx, queries, count, ws);
  }

  void from_error_frame(const BlockContext& ctx, float* rows, uint32_t count, bool exact, float* out) const override {
    inner_->from_error_frame(ctx, rows, count, exact, out);
  }

  uint32_t directions(uint32_t position, float* rows, float& floor) const override {
    return inner_->directions(position, rows, floor);
  }

  bool guide_tables(GuideTables& out) const override { return inner_->guide_tables(out); }

  size_t table_bytes() const override { return inner_->table_bytes(); }

  bool layout(SideLayout& out) const override { return inner_->layout(out); }

  void better_rows(std::span<const std::byte> in, uint32_t* indices, float* rows) const {
    float even[256];
    for (uint32_t i = 0; i < top(); ++i) {
      indices[i] = index(in, i);
      decode_row(in, i, even);
      inner_->from_error_frame(BlockContext(), even, 1, /*exact=*/true, rows + static_cast<size_t>(i) * shape().head_dim);
    }
  }

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
  const std::byte* codes(std::span<const std::byte> in) const { return in.data() + inner_->bytes() + 2 * top(); }
  // The first `count` of them, for the kernels.
  BetterRows first_better(std::span<const std::byte> in, uint32_t count) const {
    const std::byte* indices = in.data() + inner_->bytes();
    return {indices, indices + top(), codes(in), count, error_channels()};
  }

  // The rows of largest mass times squared error, in ascending order.
  void choose(const float* lost, const float* mass, uint32_t* chosen) const {
    const uint32_t d = error_channels(), tokens = shape().tokens;
    double worth[256];
    uint32_t order[256];
    for (uint32_t t = 0; t < tokens; ++t) {
      double squares = 0.0;
      for (uint32_t c = 0; c < d; ++c) {
        const double x = lost[static_cast<size_t>(t) * d + c];
        squares += x * x;
      }
      worth[t] = mass ? squares * mass[t] : squares;
      if (!std::isfinite(worth[t])) worth[t] = -1.0;  // no code can help a row at the end of float
    }
    std::iota(order, order + tokens, 0u);
    std::partial_sort(order, order + top(), order + tokens,
                      [&](uint32_t a, uint32_t b) { return worth[a] != worth[b] ? worth[a] > worth[b] : a < b; });
    std::sort(order, order + top());
    std::copy_n(order, top(), chosen);
  }

  // Writes the codes of a row and returns its step.
  std::byte encode_row(const float* row, std::byte* codes) const {
    const uint32_t n = error_channels();
    const float step = fit_group(FitKind::midrise, row, n, kLevels).step;
    const std::byte stored = std::isfinite(step) ? stored_step(step) : std::byte{0};
    uint16_t levels[256];
    code_group(row, n, step_of(stored), -kMiddle * step_of(stored), kLevels, levels);
    pack(levels, n, codes);
    return stored;
  }

  // What the base lost of better row i, in its error frame.
  void decode_row(std::span<const std::byte> in, uint32_t i, float* out) const {
    const uint32_t n = error_channels();
    const std::byte* row = codes(in) + i * code_bytes(n);
    const float step = step_of(step_byte(in, i));
    for (uint32_t c = 0; c < n; ++c) out[c] = step * (code_at(row, c) - kMiddle);
  }

  // Queries times better rows, but for their steps, into ws.products: first of all, so that nothing waits for it in the end.
  void multiply(const BetterRows& better, const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const {
    const uint32_t n = better.dim;
    const size_t sums = static_cast<size_t>(count) * better.count;
    float* out = at_least(ws.products, sums + static_cast<size_t>(count) * n);  // nothing may fail from here to scores()
    const ErrorQueries asked = inner_->error_queries(ctx, queries, count, ws);
    if (const Kernels* kernels = active_kernels())
      return kernels->better_products(better, asked.rows, asked.factors, hadamard_run(n), count, out);
    float* turned = out + sums;
    std::copy_n(asked.rows, static_cast<size_t>(count) * n, turned);
    if (asked.factors) to_hadamard_by(asked.factors, turned, count, n, turned);
    float row[256];
    for (uint32_t b = 0; b < better.count; ++b) {
      for (uint32_t c = 0; c < n; ++c) row[c] = code_at(better.codes + b * code_bytes(n), c) - kMiddle;
      for (uint32_t i = 0; i < count; ++i)
        out[static_cast<size_t>(i) * better.count + b] = product(turned + static_cast<size_t>(i) * n, row, n);
    }
  }

  // Every row is below `rows`.
  static void add_to_scores(const BetterRows& better, const float* products, uint32_t count, uint32_t rows, float* out,
                            size_t stride) {
    if (const Kernels* kernels = active_kernels()) return kernels->add_products(better, products, count, rows, out, stride);
    for (uint32_t b = 0; b < better.count; ++b) {
      const auto t = std::to_integer<size_t>(better.indices[b]);
      for (uint32_t i = 0; i < count; ++i)
        out[i * stride + t] += step_of(better.steps[b]) * products[static_cast<size_t>(i) * better.count + b];
    }
  }

  // Better rows among the first `rows`. Whole blocks are not asked: their bytes may still be on their way from memory, and there is
  // work to do that needs none of them.
  uint32_t better_below(std::span<const std::byte> in, uint32_t rows) const {
    if (rows >= shape().tokens) return top();
    uint32_t better = 0;
    while (better < top() && index(in, better) < rows) ++better;
    return better;
  }

  // What the base lost of the first `count` better rows, in frame(). The base is done with the workspace.
  const float* decode_better(std::span<const std::byte> in, const BlockContext& ctx, uint32_t count, Workspace& ws) const {
    const uint32_t d = shape().head_dim, n = error_channels();
    float* even = at_least(ws.a, static_cast<size_t>(count) * n);
    float* rows = at_least(ws.b, static_cast<size_t>(count) * d);
    for (uint32_t i = 0; i < count; ++i) decode_row(in, i, even + static_cast<size_t>(i) * n);
    inner_->from_error_frame(ctx, even, count, /*exact=*/false, rows);
    return rows;
  }

  std::unique_ptr<Codec> inner_;
  // Rows of the error frame are rows of frame(): nothing turns them.
  const bool same_frame_;
};

}  // namespace

size_t overlay_bytes(uint32_t top, uint32_t channels) { return top * (2 + code_bytes(channels)); }

void better_rows(const Codec& codec, std::span<const std::byte> in, uint32_t* indices, float* rows) {
  static_cast<const OverlaidCodec&>(codec).better_rows(in, indices, rows);
}

Result<std::unique_ptr<Codec>> overlay_codec(std::unique_ptr<Codec> inner, uint8_t top) {
  if (top > inner->shape().tokens) {
    return error(StatusCode::invalid_argument, "+top", top + 0, " in blocks of ", inner->shape().tokens, " tokens");
  }
  CodecSpec spec = inner->spec();
  spec.top = top;
  return std::unique_ptr<Codec>(std::make_unique<OverlaidCodec>(std::move(inner), spec));
}

}  // namespace tierkv::quant
