#include "quant/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/isa.h"
#include "quant/layout.h"
#include "quant/vec.h"

namespace tierkv::quant {

namespace {

struct Fp16 {
  static float load(uint16_t h) { return f16_to_f32(h); }
  static uint16_t store(float f) { return f32_to_f16(f); }
  static constexpr bool kBf16 = false;
  static constexpr float kTooLarge = 65520.0f;  // rounds to infinity, the largest fp16 is 65504
};

struct Bf16 {
  static float load(uint16_t h) { return bf16_to_f32(h); }
  static uint16_t store(float f) { return f32_to_bf16(f); }
  static constexpr bool kBf16 = true;
  static constexpr float kTooLarge = 2.0f * kMaxMagnitude;  // whatever check_finite() lets through fits
};

template <class Format>
class HalfCodec final : public Codec {
 public:
  HalfCodec(const CodecSpec& spec, Side side, const BlockShape& shape) : Codec(spec, side, shape, Frame::plain) {
    bytes_ = static_cast<size_t>(shape.tokens) * shape.head_dim * sizeof(uint16_t);
  }

  Status encode(const float* rows, const BlockContext&, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const size_t n = static_cast<size_t>(shape().tokens) * shape().head_dim;
    const Kernels* kernels = active_kernels();
    // Just below kTooLarge, so that one look serves.
    if (kernels && kernels->within(rows, n, std::nextafter(Format::kTooLarge, 0.0f))) {
      kernels->narrow(rows, Format::kBf16, static_cast<uint32_t>(n), reinterpret_cast<uint16_t*>(out.data()));
      return Status();
    }
    for (size_t i = 0; i < n; ++i) {
      if (std::fabs(rows[i]) >= Format::kTooLarge) {
        return error(StatusCode::invalid_argument, "row ", i / shape().head_dim, ", channel ", i % shape().head_dim, " is ",
                     rows[i], "; it must be below ", Format::kTooLarge, " in magnitude");
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const uint16_t h = Format::store(rows[i]);
      std::memcpy(out.data() + i * sizeof h, &h, sizeof h);
    }
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext&, uint32_t first, uint32_t count, float* out) const override {
    const uint32_t d = shape().head_dim;
    if (const Kernels* kernels = active_kernels()) {
      return kernels->widen(halves(in) + static_cast<size_t>(first) * d, Format::kBf16, count * d, out);
    }
    for (uint32_t t = 0; t < count; ++t) load_row(in, first + t, out + static_cast<size_t>(t) * d);
  }

  void scores(std::span<const std::byte> in, const BlockContext&, const float* queries, uint32_t count, uint32_t rows, float* out,
              size_t stride, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    ws.a.resize(std::max<size_t>(ws.a.size(), 16 * d));
    float* row = ws.a.data();
    if (const Kernels* kernels = active_kernels()) {
      return kernels->half_scores(halves(in), Format::kBf16, d, queries, count, rows, out, stride, row, ws.ahead);
    }
    for (uint32_t t = 0; t < rows; ++t) {
      load_row(in, t, row);
      for (uint32_t i = 0; i < count; ++i) {
        const float* q = queries + static_cast<size_t>(i) * d;
        Float4 sum[4] = {};
        for (uint32_t c = 0; c < d; c += 16) {
          for (uint32_t v = 0; v < 4; ++v) sum[v] += load4<Float4>(q + c + 4 * v) * load4<Float4>(row + c + 4 * v);
        }
        out[i * stride + t] = sum4((sum[0] + sum[2]) + (sum[1] + sum[3]));
      }
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext&, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    if (const Kernels* kernels = active_kernels()) {
      return kernels->half_accumulate(halves(in), Format::kBf16, d, weights, stride, count, rows, acc, ws.ahead);
    }
    ws.a.resize(std::max<size_t>(ws.a.size(), d));
    float* row = ws.a.data();
    for (uint32_t t = 0; t < rows; ++t) {
      load_row(in, t, row);
      for (uint32_t i = 0; i < count; ++i) {
        const float w = weights[i * stride + t];
        float* a = acc + static_cast<size_t>(i) * d;
        for (uint32_t c = 0; c < d; ++c) a[c] += w * row[c];
      }
    }
  }

  bool layout(SideLayout& out) const override {
    out = SideLayout();
    out.kind = LayoutKind::rows16;
    out.bf16 = Format::kBf16;
    out.tokens = shape().tokens, out.head_dim = shape().head_dim;
    out.bytes = static_cast<uint32_t>(bytes());
    return true;
  }

  bool coding(SideCoding& out) const override {
    out = SideCoding();
    out.values = side() == Side::value;
    return layout(out.layout);
  }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    for (size_t i = 0; i < in.size(); i += sizeof(uint16_t)) {
      uint16_t h;
      std::memcpy(&h, in.data() + i, sizeof h);
      if (!(std::fabs(Format::load(h)) <= kMaxStored)) {
        return error(StatusCode::data_loss, "value ", i / sizeof h, " of a 16-bit block is ", Format::load(h));
      }
    }
    return Status();
  }

 private:
  // The arena and the tail give rows aligned memory; the kernels read any.
  static const uint16_t* halves(std::span<const std::byte> in) { return reinterpret_cast<const uint16_t*>(in.data()); }

  void load_row(std::span<const std::byte> in, uint32_t t, float* out) const {
    const uint32_t d = shape().head_dim;
    const std::byte* at = in.data() + static_cast<size_t>(t) * d * sizeof(uint16_t);
    uint16_t halves[256];
    std::memcpy(halves, at, d * sizeof(uint16_t));
    for (uint32_t c = 0; c < d; ++c) out[c] = Format::load(halves[c]);
  }
};

template <class Format>
Result<std::unique_ptr<Codec>> make_half(const CodecSpec& spec, Side side, const BlockShape& shape) {
  TIERKV_RETURN_IF_ERROR(check_shape(shape));
  return std::unique_ptr<Codec>(std::make_unique<HalfCodec<Format>>(spec, side, shape));
}

}  // namespace

Result<std::unique_ptr<Codec>> make_fp16(const CodecSpec& spec, Side side, const BlockShape& shape) {
  return make_half<Fp16>(spec, side, shape);
}

Result<std::unique_ptr<Codec>> make_bf16(const CodecSpec& spec, Side side, const BlockShape& shape) {
  return make_half<Bf16>(spec, side, shape);
}

}  // namespace tierkv::quant
