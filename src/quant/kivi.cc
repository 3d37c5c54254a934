#include "quant/kivi.h"

#include "base/status_macros.h"
#include "quant/affine.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_kivi(const CodecSpec& spec, Side side, const BlockShape& shape) {
  Recipe recipe;
  recipe.bits = spec.bits;
  recipe.axis = side == Side::key ? Axis::channel : Axis::token;
  TIERKV_ASSIGN_OR_RETURN(
      recipe.group, side == Side::key ? resolve_group(spec, shape.tokens, shape.tokens) : resolve_group(spec, shape.head_dim, 128));
  recipe.fit = (spec.flags & CodecSpec::clip) != 0 ? FitKind::range_clip : FitKind::range;
  if ((spec.flags & CodecSpec::scale8) != 0) recipe.meta = MetaKind::log8_pair;
  if ((spec.flags & CodecSpec::scale4) != 0) recipe.meta = MetaKind::log4_pair;
  return make_affine(spec, side, shape, recipe);
}

}  // namespace tierkv::quant
