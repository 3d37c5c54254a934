#include "quant/even.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/checks.h"
#include "quant/error_feedback.h"
#include "quant/frame.h"
#include "quant/isa.h"
#include "quant/layout.h"
#include "quant/rot.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"

namespace tierkv::quant {
namespace {

constexpr int kReach = 7;       // octaves of spread that three bits hold
constexpr int kMostBase = 200;  // no float spreads as far, and factors and their inverses are floats

// What an error weighs in any direction, as a share of the mean over all: a guide cannot know every query to come. Chosen among
// 0.02, 0.1 and 0.2 on SmolLM2 (docs/build/measurements.md, "The warm tier"): level.
constexpr float kEverywhere = 0.1f;

// What a block knows of its channels.
struct Channels {
  float mean[256];
  float factor[256];  // keys were divided by it
};

// 2^(n/2).
float half_power(int n) { return std::ldexp(n & 1 ? 1.41421356f : 1.0f, n >> 1); }

class EvenCodec final : public Codec {
 public:
  EvenCodec(const CodecSpec& spec, const BlockShape& shape, std::unique_ptr<Codec> grid)
      : Codec(spec, Side::key, shape, Frame::plain), grid_(std::move(grid)) {
    tolerance_ = 2e-3;  // the kernels round the query after it met the factors
    bytes_ = grid_->bytes() + shape.head_dim * sizeof(uint16_t) + sizeof(int16_t);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    uint16_t words[256];
    int16_t base = 0;
    TIERKV_RETURN_IF_ERROR(describe(rows, words, base));
    Channels channels;
    read(words, base, channels);
    float inverse[256];
    for (uint32_t c = 0; c < d; ++c) inverse[c] = 1.0f / channels.factor[c];
    float* rest = at_least(block_scratch().centered, static_cast<size_t>(tokens) * d);
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* row = rows + static_cast<size_t>(t) * d;
      for (uint32_t c = 0; c < d; ++c) rest[static_cast<size_t>(t) * d + c] = (row[c] - channels.mean[c]) * inverse[c];
    }
    BlockContext inside = ctx;
    inside.guide = nullptr;
    std::optional<ErrorFeedback> feedback;
    if (ctx.guide) feedback = guided_by(*ctx.guide, ctx.first_position, channels);
    inside.feedback = feedback ? &*feedback : nullptr;
    TIERKV_RETURN_IF_ERROR(grid_->encode(rest, inside, out.first(grid_->bytes())));
    std::memcpy(out.data() + grid_->bytes(), words, d * sizeof(uint16_t));
    std::memcpy(out.data() + grid_->bytes() + d * sizeof(uint16_t), &base, sizeof base);
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    const uint32_t d = shape().head_dim;
    grid_->decode(in.first(grid_->bytes()), ctx, first, count, out);
    Channels channels;
    load(in, channels);
    for (uint32_t t = 0; t < count; ++t) {
      float* row = out + static_cast<size_t>(t) * d;
      for (uint32_t c = 0; c < d; ++c) row[c] = row[c] * channels.factor[c] + channels.mean[c];
    }
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    Channels channels;
    load(in, channels);
    float* evened = at_least(block_scratch().centered, static_cast<size_t>(count) * d);  // rows of encode() are done with by now
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t c = 0; c < d; ++c)
        evened[static_cast<size_t>(i) * d + c] = queries[static_cast<size_t>(i) * d + c] * channels.factor[c];
    }
    to_frame(Frame::hadamard, evened, count, d);
    const uint64_t id = ws.queries_id;
    ws.queries_id = 0;  // these queries are this block's own
    grid_->scores(in.first(grid_->bytes()), ctx, evened, count, rows, out, stride, ws);
    ws.queries_id = id;
    for (uint32_t i = 0; i < count; ++i) {
      const float shift = product(queries + static_cast<size_t>(i) * d, channels.mean, d);
      for (uint32_t t = 0; t < rows; ++t) out[i * stride + t] += shift;
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    float* decoded = at_least(ws.a, static_cast<size_t>(rows) * d);
    decode(in, ctx, 0, rows, decoded);
    add_weighted(decoded, rows, d, weights, stride, count, acc);
  }

  bool layout(SideLayout& out) const override {
    if (!grid_->layout(out)) return false;
    out.even = 1;
    out.mean_at = static_cast<uint32_t>(grid_->bytes());
    out.bytes = static_cast<uint32_t>(bytes());
    return true;
  }

  bool coding(SideCoding& out) const override { return grid_->coding(out) && layout(out.layout); }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    uint16_t words[256];
    int16_t base = 0;
    unpack(in, words, base);
    if (base < -kMostBase || base > kMostBase)
      return error(StatusCode::data_loss, "the stored spread of the channels, 2^", base, ", is no float's");
    for (uint32_t c = 0; c < shape().head_dim; ++c) {
      if ((words[c] & 0x7C00u) == 0x7C00u) return error(StatusCode::data_loss, "the stored mean of channel ", c, " is not finite");
    }
    return grid_->validate(in.first(grid_->bytes()));
  }

 private:
  // What errors weigh in the grid's frame, by the guide: a key was divided by the factors, so a query is multiplied. Nothing: it
  // knows nothing.
  std::optional<ErrorFeedback> guided_by(const Codec& guide, uint32_t position, const Channels& channels) const {
    const uint32_t d = shape().head_dim;
    BlockScratch& scratch = block_scratch();
    float* rows = at_least(scratch.directions, static_cast<size_t>(kMostDirections) * d);
    float floor = 0.0f;
    const uint32_t count = guide.directions(position, rows, floor);
    if (count == 0) return std::nullopt;
    for (uint32_t k = 0; k < count; ++k) {
      for (uint32_t c = 0; c < d; ++c) rows[static_cast<size_t>(k) * d + c] *= channels.factor[c];
    }
    to_frame(Frame::hadamard, rows, count, d);
    // What weighs alike in all directions weighs by the factors once keys are divided by them: a diagonal, turned from both sides.
    float* metric = at_least(scratch.metric, static_cast<size_t>(d) * d);
    std::fill(metric, metric + static_cast<size_t>(d) * d, 0.0f);
    for (uint32_t c = 0; c < d; ++c) metric[static_cast<size_t>(c) * d + c] = floor * channels.factor[c] * channels.factor[c];
    to_frame(Frame::hadamard, metric, d, d);
    for (uint32_t a = 0; a < d; ++a) {
      for (uint32_t b = 0; b < a; ++b) std::swap(metric[static_cast<size_t>(a) * d + b], metric[static_cast<size_t>(b) * d + a]);
    }
    to_frame(Frame::hadamard, metric, d, d);
    for (uint32_t k = 0; k < count; ++k) {
      const float* row = rows + static_cast<size_t>(k) * d;
      for (uint32_t a = 0; a < d; ++a) {
        for (uint32_t b = 0; b <= a; ++b) metric[static_cast<size_t>(a) * d + b] += row[a] * row[b];
      }
    }
    float trace = 0.0f;
    for (uint32_t c = 0; c < d; ++c) trace += metric[static_cast<size_t>(c) * d + c];
    if (!(trace > 0.0f) || !std::isfinite(trace)) return std::nullopt;
    for (uint32_t c = 0; c < d; ++c) metric[static_cast<size_t>(c) * d + c] += kEverywhere * trace / static_cast<float>(d);
    return ErrorFeedback(metric, d);
  }

  // The mean and the spread of every channel as they are stored. Sums run in double, in the order of the tokens.
  Status describe(const float* rows, uint16_t* words, int16_t& base) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    double sums[256] = {}, squares[256] = {}, mean[256];
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t c = 0; c < d; ++c) sums[c] += rows[static_cast<size_t>(t) * d + c];
    }
    for (uint32_t c = 0; c < d; ++c) {
      const double exact = sums[c] / tokens;
      words[c] = std::fabs(exact) < 65504.0 ? coarse_half(static_cast<float>(exact)) : uint16_t{0x7C00};
      if ((words[c] & 0x7C00u) == 0x7C00u) {
        return error(StatusCode::invalid_argument, "the mean of channel ", c, " is ", exact, ", past the largest fp16");
      }
      mean[c] = f16_to_f32(words[c]);
    }
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t c = 0; c < d; ++c) {
        const double x = rows[static_cast<size_t>(t) * d + c] - mean[c];
        squares[c] += x * x;
      }
    }
    int spread[256], most = -kMostBase;
    for (uint32_t c = 0; c < d; ++c) {
      // round(log2 of the standard deviation), from the exponent of the variance alone: the same on every machine.
      spread[c] = squares[c] > 0.0 ? (std::ilogb(squares[c] / tokens) + 1) >> 1 : -kMostBase;
      most = std::max(most, spread[c]);
    }
    base = static_cast<int16_t>(std::max(most - kReach, -kMostBase));
    for (uint32_t c = 0; c < d; ++c) words[c] = static_cast<uint16_t>(words[c] | std::max(spread[c] - base, 0));
    return Status();
  }

  // fp16 with the three lowest bits 0, to nearest.
  static uint16_t coarse_half(float x) {
    const uint16_t half = f32_to_f16(x);
    return static_cast<uint16_t>((half + 4u) & 0xFFF8u);
  }

  void read(const uint16_t* words, int base, Channels& channels) const {
    for (uint32_t c = 0; c < shape().head_dim; ++c) {
      channels.mean[c] = f16_to_f32(static_cast<uint16_t>(words[c] & 0xFFF8u));
      channels.factor[c] = half_power(base + (words[c] & 7));
    }
  }

  void unpack(std::span<const std::byte> in, uint16_t* words, int16_t& base) const {
    const size_t size = shape().head_dim * sizeof(uint16_t);
    std::memcpy(words, in.data() + grid_->bytes(), size);
    std::memcpy(&base, in.data() + grid_->bytes() + size, sizeof base);
  }

  void load(std::span<const std::byte> in, Channels& channels) const {
    uint16_t words[256];
    int16_t base = 0;
    unpack(in, words, base);
    float factors[kReach + 1];
    for (int n = 0; n <= kReach; ++n) factors[n] = half_power(base + n);
    const uint32_t d = shape().head_dim;
    uint16_t halves[256];
    for (uint32_t c = 0; c < d; ++c) {
      halves[c] = words[c] & 0xFFF8u;
      channels.factor[c] = factors[words[c] & 7];
    }
    if (const Kernels* kernels = active_kernels()) return kernels->widen(halves, /*bf16=*/false, d, channels.mean);
    for (uint32_t c = 0; c < d; ++c) channels.mean[c] = f16_to_f32(halves[c]);
  }

  std::unique_ptr<Codec> grid_;  // mid: rotated rows, one fitted step a token
};

}  // namespace

Result<std::unique_ptr<Codec>> make_even(const CodecSpec& spec, Side side, const BlockShape& shape) {
  if (side == Side::value) return spec.bits < 4 ? make_mid(spec, side, shape) : make_rot(spec, side, shape);
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> grid, make_mid(spec, side, shape));
  return std::unique_ptr<Codec>(new EvenCodec(spec, shape, std::move(grid)));
}

}  // namespace tierkv::quant
