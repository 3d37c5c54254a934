#include "quant/int8.h"

#include "base/status_macros.h"
#include "quant/affine.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_int8(const CodecSpec& spec, Side side, const BlockShape& shape) {
  Recipe recipe;
  recipe.bits = 8;
  TIERKV_ASSIGN_OR_RETURN(recipe.group, resolve_group(spec, shape.head_dim, 128));
  recipe.fit = FitKind::absmax;
  recipe.meta = MetaKind::f16_scale;
  recipe.zero = 128.0f;
  return make_affine(spec, side, shape, recipe);
}

}  // namespace tierkv::quant
