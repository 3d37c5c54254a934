#include "quant/turbo.h"

#include "base/status_macros.h"
#include "quant/affine.h"
#include "quant/rotated.h"

namespace tierkv::quant {

namespace {

// Fixed points of Lloyd's iteration for N(0, 1), to nine digits (turbo_test.cc checks that they are).
constexpr float kLevels2[] = {-1.510417608f, -0.452780035f, 0.452780035f, 1.510417608f};
constexpr float kLevels3[] = {-2.151945705f, -1.343909279f, -0.756005281f, -0.245094179f,
                              0.245094179f,  0.756005281f,  1.343909279f,  2.151945705f};
constexpr float kLevels4[] = {-2.732589571f, -2.069017227f, -1.618046386f, -1.256231197f, -0.942340456f, -0.656759119f,
                              -0.388048299f, -0.128395030f, 0.128395030f,  0.388048299f,  0.656759119f,  0.942340456f,
                              1.256231197f,  1.618046386f,  2.069017227f,  2.732589571f};

}  // namespace

const float* lloyd_max_levels(uint32_t bits) { return bits == 2 ? kLevels2 : bits == 3 ? kLevels3 : kLevels4; }

Result<std::unique_ptr<Codec>> make_turbo(const CodecSpec& spec, Side side, const BlockShape& shape) {
  Recipe recipe;
  recipe.bits = spec.bits;
  recipe.group = shape.head_dim;
  recipe.rotated = true;
  recipe.fit = FitKind::rms;
  recipe.meta = MetaKind::f16_scale;
  recipe.rounding = Rounding::nearest;
  recipe.table = lloyd_max_levels(spec.bits);
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, make_affine(spec, side, shape, recipe));
  return rotate_codec(std::move(codec));
}

}  // namespace tierkv::quant
