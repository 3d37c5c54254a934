#include "quant/oscar.h"

#include <algorithm>

#include "base/f16.h"
#include "base/per_thread.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "quant/affine.h"
#include "quant/checks.h"
#include "quant/isa.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"

namespace tierkv::quant {
namespace {

constexpr float kKeyClip = 0.96f, kValueClip = 0.92f;
constexpr uint32_t kGroup = 128;

struct OscarScratch {
  std::vector<float> matrix, rows, sums;
};

class OscarCodec final : public Codec {
 public:
  OscarCodec(std::unique_ptr<Codec> inner, uint32_t group, std::span<const uint16_t> rotation)
      : Codec(inner->spec(), inner->side(), inner->shape(), Frame::plain),
        inner_(std::move(inner)),
        group_(group),
        rotation_(rotation.begin(), rotation.end()) {
    tolerance_ = inner_->tolerance();
    bytes_ = inner_->bytes();
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    float* rotated = at_least(block_scratch().rotated, static_cast<size_t>(tokens) * d);
    turn(rows, tokens, rotated);
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t from = 0; from < d; from += group_)
        clip(rotated + static_cast<size_t>(t) * d + from, std::min(group_, d - from));
    }
    return inner_->encode(rotated, ctx, out);
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    const uint32_t d = shape().head_dim;
    inner_->decode(in, ctx, first, count, out);
    const float* m = matrix();
    float row[256];
    for (uint32_t t = 0; t < count; ++t) {
      float* at = out + static_cast<size_t>(t) * d;
      std::copy_n(at, d, row);
      for (uint32_t c = 0; c < d; ++c) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < d; ++j) sum += row[j] * m[static_cast<size_t>(c) * d + j];
        at[c] = sum;
      }
    }
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    float* turned = at_least(per_thread<OscarScratch>().rows, static_cast<size_t>(count) * shape().head_dim);
    turn(queries, count, turned);
    // These are other numbers for every head: nothing that was rounded before serves them.
    const uint64_t id = ws.queries_id;
    ws.queries_id = 0;
    inner_->scores(in, ctx, turned, count, rows, out, stride, ws);
    ws.queries_id = id;
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    OscarScratch& scratch = per_thread<OscarScratch>();
    float* sums = at_least(scratch.sums, static_cast<size_t>(count) * d);
    std::fill_n(sums, static_cast<size_t>(count) * d, 0.0f);
    inner_->accumulate(in, ctx, weights, stride, count, rows, sums, ws);
    const float* m = matrix();
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t c = 0; c < d; ++c)
        acc[static_cast<size_t>(i) * d + c] += product(sums + static_cast<size_t>(i) * d, m + static_cast<size_t>(c) * d, d);
    }
  }

  size_t table_bytes() const override { return rotation_.size() * sizeof(uint16_t); }

  Status validate(std::span<const std::byte> in) const override { return inner_->validate(in); }

 private:
  // As floats, in this thread's scratch.
  const float* matrix() const {
    float* wide = at_least(per_thread<OscarScratch>().matrix, rotation_.size());
    const auto n = static_cast<uint32_t>(rotation_.size());
    if (const Kernels* kernels = active_kernels()) kernels->widen(rotation_.data(), false, n, wide);
    else std::transform(rotation_.begin(), rotation_.end(), wide, f16_to_f32);
    return wide;
  }

  // rows · matrix; the same bits with kernels and without.
  void turn(const float* rows, uint32_t count, float* out) const {
    const uint32_t d = shape().head_dim;
    const float* m = matrix();
    const float start[256] = {};
    if (const Kernels* kernels = active_kernels()) return kernels->project_rows(rows, count, d, m, d, start, out);
    for (uint32_t r = 0; r < count; ++r) {
      float* to = out + static_cast<size_t>(r) * d;
      std::fill_n(to, d, 0.0f);
      for (uint32_t c = 0; c < d; ++c) {
        const float x = rows[static_cast<size_t>(r) * d + c];
        for (uint32_t j = 0; j < d; ++j) to[j] += x * m[static_cast<size_t>(c) * d + j];
      }
    }
  }

  void clip(float* x, uint32_t n) const {
    const float share = side() == Side::key ? kKeyClip : kValueClip;
    const auto [least, most] = std::minmax_element(x, x + n);
    if (*least == *most) return;  // exact as it is
    const float high = *most > 0.0f ? *most * share : *most;
    const float low = std::min(*least < 0.0f ? *least * share : *least, high);
    for (uint32_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], low, high);
  }

  std::unique_ptr<Codec> inner_;
  const uint32_t group_;
  const std::vector<uint16_t> rotation_;
};

}  // namespace

Result<std::unique_ptr<Codec>> make_oscar(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables& tables) {
  if (!tables.calibration) {
    return error(StatusCode::failed_precondition, "oscar needs a calibration with its rotations; `tierkv calibrate` makes one");
  }
  TIERKV_ASSIGN_OR_RETURN(const auto held, tables.calibration->oscar_tables());
  const calib::OscarTables& known = *held;
  if (known.head_dim != shape.head_dim || tables.layer >= known.layers || tables.head >= known.kv_heads) {
    return error(StatusCode::invalid_argument, "the calibration has ", known.layers, " layers of ", known.kv_heads, " KV heads of ",
                 known.head_dim, "; layer ", tables.layer, ", head ", tables.head, " of ", shape.head_dim, " is not among them");
  }
  Recipe recipe;
  recipe.bits = spec.bits;
  recipe.rotated = true;
  TIERKV_ASSIGN_OR_RETURN(recipe.group, resolve_group(spec, shape.head_dim, kGroup));
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> inner, make_affine(spec, side, shape, recipe));
  return std::unique_ptr<Codec>(
      std::make_unique<OscarCodec>(std::move(inner), recipe.group, known.of(tables.layer, tables.head, side == Side::value)));
}

}  // namespace tierkv::quant
