#include "quant/ruvector.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/affine.h"

namespace tierkv::quant {

namespace {

Status check_tensor(std::span<const float> tensor, uint32_t parts, uint32_t bits) {
  if (bits < 2 || bits > 8) return error(StatusCode::invalid_argument, bits, " bits are not supported; allowed: 2..8");
  if (parts == 0 || tensor.empty() || tensor.size() % parts != 0) {
    return error(StatusCode::invalid_argument, tensor.size(), " values do not divide into ", parts, " heads");
  }
  for (size_t i = 0; i < tensor.size(); ++i) {
    if (!std::isfinite(tensor[i]))
      return error(StatusCode::invalid_argument, "value ", i, " is ", tensor[i], "; every value must be finite");
  }
  return Status();
}

uint8_t code_of(float v, float scale, float zero, uint32_t levels) {
  return static_cast<uint8_t>(std::clamp(round_half_even(v / scale + zero), 0.0f, static_cast<float>(levels - 1)));
}

Recipe per_token(const CodecSpec& spec, const BlockShape& shape, FitKind fit, MetaKind meta) {
  Recipe recipe;
  recipe.bits = spec.bits;
  recipe.group = shape.head_dim;
  recipe.fit = fit;
  recipe.meta = meta;
  recipe.zero = static_cast<float>(1u << (spec.bits - 1));
  return recipe;
}

}  // namespace

Result<std::unique_ptr<Codec>> make_asym(const CodecSpec& spec, Side side, const BlockShape& shape) {
  return make_affine(spec, side, shape, per_token(spec, shape, FitKind::asymmetric, MetaKind::f32_pair));
}

Result<std::unique_ptr<Codec>> make_sym(const CodecSpec& spec, Side side, const BlockShape& shape) {
  return make_affine(spec, side, shape, per_token(spec, shape, FitKind::symmetric, MetaKind::f32_scale));
}

float round_to_nearest_even(float x) { return round_half_even(x); }

Result<QuantizedTensor> quantize_asymmetric(std::span<const float> tensor, uint32_t num_heads, uint32_t bits) {
  TIERKV_RETURN_IF_ERROR(check_tensor(tensor, num_heads, bits));
  const uint32_t levels = 1u << bits, head_dim = static_cast<uint32_t>(tensor.size() / num_heads);
  QuantizedTensor out;
  out.bits = static_cast<uint8_t>(bits);
  for (uint32_t h = 0; h < num_heads; ++h) {
    const std::span<const float> head = tensor.subspan(static_cast<size_t>(h) * head_dim, head_dim);
    const GroupFit fit = fit_group(FitKind::asymmetric, head.data(), head_dim, levels);
    out.scales.push_back(fit.scale);
    out.zero_points.push_back(fit.zero);
    for (float v : head) out.data.push_back(code_of(v, fit.scale, fit.zero, levels));
  }
  return out;
}

Result<SymmetricTensor> quantize_symmetric(std::span<const float> tensor, uint32_t bits) {
  TIERKV_RETURN_IF_ERROR(check_tensor(tensor, 1, bits));
  const uint32_t levels = 1u << bits;
  SymmetricTensor out;
  out.bits = static_cast<uint8_t>(bits);
  out.scale = fit_group(FitKind::symmetric, tensor.data(), static_cast<uint32_t>(tensor.size()), levels).scale;
  for (float v : tensor) out.data.push_back(code_of(v, out.scale, static_cast<float>(levels / 2), levels));
  return out;
}

std::vector<float> dequantize(const QuantizedTensor& tensor) {
  std::vector<float> out;
  const size_t head_dim = tensor.scales.empty() ? 1 : tensor.data.size() / tensor.scales.size();
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    out.push_back(tensor.scales[i / head_dim] * (static_cast<float>(tensor.data[i]) - tensor.zero_points[i / head_dim]));
  }
  return out;
}

std::vector<float> dequantize(const SymmetricTensor& tensor) {
  std::vector<float> out;
  const float offset = static_cast<float>(1u << (tensor.bits - 1));
  for (uint8_t code : tensor.data) out.push_back((static_cast<float>(code) - offset) * tensor.scale);
  return out;
}

}  // namespace tierkv::quant
