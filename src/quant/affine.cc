#include "quant/affine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "quant/block_grid.h"
#include "quant/checks.h"
#include "quant/isa.h"
#include "quant/layout.h"
#include "quant/vec.h"

namespace tierkv::quant {

namespace {

float* grow(std::vector<float>& v, size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

// acc[i][l] = sum over p < depth of factors[i*stride + p] * tile[p*16 + l], N queries at once so that a row is loaded once.
template <uint32_t N>
void dot_tile(const float* tile, uint32_t depth, const float* factors, size_t stride, float (*acc)[kTileLanes]) {
  Float4 sum[N][4] = {};
  for (uint32_t p = 0; p < depth; ++p) {
    const float* row = tile + static_cast<size_t>(p) * kTileLanes;
    for (uint32_t v = 0; v < 4; ++v) {
      const Float4 x = load4<Float4>(row + 4 * v);
      for (uint32_t i = 0; i < N; ++i) sum[i][v] += splat4(factors[i * stride + p]) * x;
    }
  }
  std::memcpy(acc, sum, sizeof sum);
}

double weighted_sum(const float* a, const float* b, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

class AffineCodec final : public Codec {
 public:
  AffineCodec(const CodecSpec& spec, Side side, const BlockShape& shape, const Recipe& recipe)
      : Codec(spec, side, shape, Frame::plain),
        recipe_(recipe),
        lanes_(side == Side::key ? shape.tokens : shape.head_dim, side == Side::key ? shape.head_dim : shape.tokens, recipe.bits) {
    const uint32_t along = recipe.axis == Axis::channel ? shape.tokens : shape.head_dim;
    const uint32_t across = recipe.axis == Axis::channel ? shape.head_dim : shape.tokens;
    groups_ = (along + recipe.group - 1) / recipe.group;
    meta_.kind = recipe.meta;
    meta_.rounding = recipe.rounding;
    meta_.entries = groups_ * across;
    meta_.levels = 1u << recipe.bits;
    meta_.zero = recipe.zero;
    bytes_ = lanes_.bytes() + meta_bytes(meta_);
    if (recipe.bits <= kMaxCodeBits && (recipe.table == nullptr || recipe.bits <= 4)) describe_for_kernels(across);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    return encode_block(parts(), rows, out, ctx.feedback);
  }

  void decode(std::span<const std::byte> in, const BlockContext&, uint32_t first, uint32_t count, float* out) const override {
    decode_block(parts(), in, first, count, out);
  }

  void scores(std::span<const std::byte> in, const BlockContext&, const float* queries, uint32_t count, uint32_t rows, float* out,
              size_t stride, Workspace& ws) const override {
    if (const Kernels* kernels = usable_kernels()) {
      const auto [scales, offsets] = load_meta(in, ws);
      const KernelScratch scratch = kernel_scratch(count, ws);
      const PackedSide& side = ws.coarse ? coarse_ : packed_;
      if (recipe_.axis == Axis::channel) {
        return kernels->scores_by_channel(side, in.data(), scales, offsets, queries, count, rows, out, stride, scratch);
      }
      round_queries(*kernels, queries, count, side.factor_planes, ws);
      kernels->scores_by_token(side, in.data(), scales, offsets, ws.rounded.factors.data(), ws.rounded.terms.data(), count, rows,
                               out, stride, scratch);
    } else if (recipe_.axis == Axis::channel) {
      scores_by_channel(in, queries, count, rows, out, stride, ws);
    } else {
      scores_by_token(in, queries, count, rows, out, stride, ws);
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext&, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    if (rows == 0) return;
    const auto [scales, offsets] = load_meta(in, ws);
    if (const Kernels* kernels = usable_kernels()) {
      return kernels->accumulate(ws.coarse ? coarse_ : packed_, in.data(), scales, offsets, weights, stride, count, rows, d, acc,
                                 kernel_scratch(count, ws));
    }
    float* tile = grow(ws.a, lanes_.tile_floats());
    float* folded = grow(ws.c, static_cast<size_t>(count) * (rows + 1));
    float* bias = folded + static_cast<size_t>(count) * rows;
    uint32_t group = ~0u;
    for (uint32_t first = 0; first < d; first += kTileLanes) {
      if (first / recipe_.group != group) {
        group = first / recipe_.group;
        const float* s = scales + static_cast<size_t>(group) * tokens;
        const float* o = offsets + static_cast<size_t>(group) * tokens;
        for (uint32_t i = 0; i < count; ++i) {
          const float* w = weights + i * stride;
          for (uint32_t t = 0; t < rows; ++t) folded[static_cast<size_t>(i) * rows + t] = w[t] * s[t];
          bias[i] = static_cast<float>(weighted_sum(w, o, rows));
        }
      }
      unpack(in, first / kTileLanes, rows, tile);
      for_each_query(tile, rows, folded, rows, count, [&](uint32_t i, const float* sum) {
        float* a = acc + static_cast<size_t>(i) * d + first;
        for (uint32_t l = 0; l < kTileLanes; ++l) a[l] += bias[i] + sum[l];
      });
    }
  }

  bool layout(SideLayout& out) const override {
    if (recipe_.table != nullptr && meta_.levels > kMostLevels) return false;
    out = SideLayout();
    out.kind = LayoutKind::packed;
    out.by_channel = recipe_.axis == Axis::channel;
    out.meta = recipe_.meta;
    out.bits = static_cast<uint8_t>(recipe_.bits);
    out.tokens = shape().tokens, out.head_dim = shape().head_dim;
    out.bytes = static_cast<uint32_t>(bytes());
    out.group = recipe_.group, out.groups = groups_;
    lanes_.layout(out.planes);
    out.meta_at = static_cast<uint32_t>(lanes_.bytes());
    out.zero = recipe_.zero;
    out.has_levels = recipe_.table != nullptr;
    for (uint32_t i = 0; recipe_.table != nullptr && i < meta_.levels; ++i) out.levels[i] = recipe_.table[i];
    return true;
  }

  bool coding(SideCoding& out) const override {
    out = SideCoding();
    const bool fits = recipe_.fit == FitKind::range || recipe_.fit == FitKind::midrise || recipe_.fit == FitKind::absmax;
    if (!fits || recipe_.table != nullptr || !layout(out.layout)) return false;
    out.values = side() == Side::value;
    out.fit = recipe_.fit;
    out.rounding = recipe_.rounding;
    out.keep_fit_codes = recipe_.keep_fit_codes;
    out.centre = midrise_centre(meta_.levels);
    return true;
  }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    return validate_meta(meta_, in.data() + lanes_.bytes());
  }

 private:
  struct Grids {
    const float* scales;
    const float* offsets;
  };

  BlockParts parts() const { return {recipe_, side(), shape(), lanes_, meta_, packed_, usable_kernels()}; }

  const Kernels* usable_kernels() const { return packed_.bits != 0 ? active_kernels() : nullptr; }

  void describe_for_kernels(uint32_t across) {
    packed_ = lanes_.packed_side();
    packed_.group = recipe_.group;
    packed_.across = across;
    packed_.factor_planes = 2;
    tolerance_ = 4e-4;
    coarse_ = packed_;
    if (recipe_.bits <= 2 && recipe_.rotated) coarse_.factor_planes = 1;
    if (recipe_.table == nullptr) return;
    // Codebooks become 16-bit levels around 32768.
    const float outermost = std::max(-recipe_.table[0], recipe_.table[meta_.levels - 1]);
    for (uint32_t i = 0; i < meta_.levels; ++i) {
      const auto level = static_cast<uint32_t>(32768 + std::lround(recipe_.table[i] / outermost * 32639.0f));
      levels_[i] = static_cast<uint8_t>(level >> 8);
      levels_[16 + i] = static_cast<uint8_t>(level & 255u);
    }
    for (PackedSide* side : {&packed_, &coarse_}) {
      side->levels = levels_;
      side->unit = outermost / 32639.0f;
      side->zero = side->middle = 32768.0f;
    }
  }

  KernelScratch kernel_scratch(uint32_t count, Workspace& ws) const {
    const size_t bytes = kernel_bytes(packed_.depth, count);
    if (ws.bytes.size() < bytes) ws.bytes.resize(bytes);
    return {ws.bytes.data(), grow(ws.c, kernel_floats(packed_.depth, count, groups_)), ws.ahead};
  }

  void round_queries(const Kernels& kernels, const float* queries, uint32_t count, uint32_t planes, Workspace& ws) const {
    auto& r = ws.rounded;
    const uint32_t d = shape().head_dim, group = recipe_.group;
    if (ws.queries_id != 0 && r.id == ws.queries_id && r.of == queries && r.count == count && r.dim == d && r.group == group &&
        r.planes == planes) {
      return;
    }
    r.id = ws.queries_id, r.of = queries, r.count = count, r.dim = d, r.group = group, r.planes = planes;
    r.factors.resize(static_cast<size_t>(count) * planes * d);
    r.terms.resize(static_cast<size_t>(count) * groups_);
    kernels.round_queries(queries, count, d, group, planes, r.factors.data(), r.terms.data());
  }

  uint32_t group_length(uint32_t g, uint32_t along) const { return std::min(recipe_.group, along - g * recipe_.group); }

  Grids load_meta(std::span<const std::byte> in, Workspace& ws) const {
    float* scales = grow(ws.b, 2 * static_cast<size_t>(meta_.entries));
    decode_meta(meta_, in.data() + lanes_.bytes(), scales, scales + meta_.entries);
    return {scales, scales + meta_.entries};
  }

  // One tile of 16 lanes as levels: codes, or what the codebook says they mean.
  void unpack(std::span<const std::byte> in, uint32_t tile, uint32_t depth, float* out) const {
    lanes_.unpack_tile(in.data(), tile, depth, out);
    if (recipe_.table == nullptr) return;
    const size_t n = static_cast<size_t>(depth) * kTileLanes;
    for (size_t i = 0; i < n; ++i) out[i] = recipe_.table[static_cast<int32_t>(out[i])];
  }

  template <class Fn>
  static void for_each_query(const float* tile, uint32_t depth, const float* factors, size_t stride, uint32_t count, Fn&& fn) {
    float acc[2][kTileLanes];
    uint32_t i = 0;
    for (; i + 2 <= count; i += 2) {
      dot_tile<2>(tile, depth, factors + i * stride, stride, acc);
      fn(i, acc[0]);
      fn(i + 1, acc[1]);
    }
    if (i < count) {
      dot_tile<1>(tile, depth, factors + i * stride, stride, acc);
      fn(i, acc[0]);
    }
  }

  void scores_by_channel(std::span<const std::byte> in, const float* queries, uint32_t count, uint32_t rows, float* out,
                         size_t stride, Workspace& ws) const {
    const uint32_t d = shape().head_dim;
    const auto [scales, offsets] = load_meta(in, ws);
    float* tile = grow(ws.a, lanes_.tile_floats());
    float* folded = grow(ws.c, static_cast<size_t>(count) * (d + 1));
    float* bias = folded + static_cast<size_t>(count) * d;
    uint32_t group = ~0u;
    for (uint32_t first = 0; first < rows; first += kTileLanes) {
      if (first / recipe_.group != group) {
        group = first / recipe_.group;
        const float* s = scales + static_cast<size_t>(group) * d;
        for (uint32_t i = 0; i < count; ++i) {
          const float* q = queries + static_cast<size_t>(i) * d;
          for (uint32_t c = 0; c < d; ++c) folded[static_cast<size_t>(i) * d + c] = q[c] * s[c];
          bias[i] = static_cast<float>(weighted_sum(q, offsets + static_cast<size_t>(group) * d, d));
        }
      }
      unpack(in, first / kTileLanes, d, tile);
      const uint32_t live = std::min(kTileLanes, rows - first);
      for_each_query(tile, d, folded, d, count, [&](uint32_t i, const float* sum) {
        float* o = out + i * stride + first;
        for (uint32_t l = 0; l < live; ++l) o[l] = bias[i] + sum[l];
      });
    }
  }

  void scores_by_token(std::span<const std::byte> in, const float* queries, uint32_t count, uint32_t rows, float* out,
                       size_t stride, Workspace& ws) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    const auto [scales, offsets] = load_meta(in, ws);
    float* tile = grow(ws.a, lanes_.tile_floats());
    float* totals = grow(ws.c, static_cast<size_t>(count) * groups_);  // of the query over each channel group
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t g = 0; g < groups_; ++g) {
        double sum = 0.0;
        for (uint32_t c = g * recipe_.group; c < g * recipe_.group + group_length(g, d); ++c)
          sum += queries[static_cast<size_t>(i) * d + c];
        totals[i * groups_ + g] = static_cast<float>(sum);
      }
    }
    for (uint32_t first = 0; first < rows; first += kTileLanes) {
      unpack(in, first / kTileLanes, d, tile);
      const uint32_t live = std::min(kTileLanes, rows - first);
      for (uint32_t g = 0; g < groups_; ++g) {
        const uint32_t from = g * recipe_.group;
        const float* s = scales + static_cast<size_t>(g) * tokens + first;
        const float* z = offsets + static_cast<size_t>(g) * tokens + first;
        for_each_query(tile + static_cast<size_t>(from) * kTileLanes, group_length(g, d), queries + from, d, count,
                       [&](uint32_t i, const float* sum) {
                         float* o = out + i * stride + first;
                         const float total = totals[i * groups_ + g];
                         for (uint32_t l = 0; l < live; ++l) o[l] = (g == 0 ? 0.0f : o[l]) + s[l] * sum[l] + z[l] * total;
                       });
      }
    }
  }

  Recipe recipe_;
  Lanes lanes_;
  MetaFormat meta_;
  uint32_t groups_ = 0;
  PackedSide packed_;  // bits == 0: not for the kernels
  PackedSide coarse_;  // the same with factors in one plane where that is allowed, see Workspace::coarse
  uint8_t levels_[32] = {};
};

}  // namespace

Result<uint32_t> resolve_group(const CodecSpec& spec, uint32_t length, uint32_t fallback) {
  if (spec.group == 0) return std::min(fallback, length);
  if (spec.group % 16 != 0) {
    return error(StatusCode::invalid_argument, "group ", spec.group, " is not supported; allowed: multiples of 16");
  }
  return std::min<uint32_t>(spec.group, length);
}

Result<std::unique_ptr<Codec>> make_affine(const CodecSpec& spec, Side side, const BlockShape& shape, const Recipe& recipe) {
  TIERKV_RETURN_IF_ERROR(check_packed_shape(shape));
  if (recipe.bits < 1 || recipe.bits > 16 || recipe.group == 0 || recipe.group % 16 != 0 ||
      (side == Side::value && recipe.axis == Axis::channel)) {
    return error(StatusCode::internal, "codec row ", spec.id, " has an impossible recipe");
  }
  return std::unique_ptr<Codec>(std::make_unique<AffineCodec>(spec, side, shape, recipe));
}

}  // namespace tierkv::quant
