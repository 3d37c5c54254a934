#include "quant/coding_error.h"

#include "base/status_macros.h"

namespace tierkv::quant {
namespace {

// What comes back of the rows.
Result<std::vector<float>> coded(const Codec& codec, const float* rows, const BlockContext& ctx) {
  std::vector<std::byte> bytes(codec.bytes());
  TIERKV_RETURN_IF_ERROR(codec.encode(rows, ctx, bytes));
  std::vector<float> back(static_cast<size_t>(codec.shape().tokens) * codec.shape().head_dim);
  codec.decode(bytes, ctx, 0, codec.shape().tokens, back.data());
  return back;
}

}  // namespace

Result<CodingError> coding_error(const CodecEntry& entry, const float* keys, const float* values, const BlockContext& ctx,
                                 const float* power) {
  const size_t tokens = entry.tokens, d = entry.key->shape().head_dim;
  TIERKV_ASSIGN_OR_RETURN(const std::vector<float> k, coded(*entry.key, keys, ctx));
  TIERKV_ASSIGN_OR_RETURN(const std::vector<float> v, coded(*entry.value, values, ctx));
  CodingError out;
  double lost = 0.0, spread = 0.0;
  for (size_t c = 0; c < d; ++c) {
    double key_error = 0.0, sum = 0.0, squares = 0.0;
    for (size_t at = c; at < tokens * d; at += d) {
      const double of_key = k[at] - keys[at], of_value = v[at] - values[at];
      key_error += of_key * of_key;
      lost += of_value * of_value;
      sum += values[at];
      squares += static_cast<double>(values[at]) * values[at];
    }
    out.scores += key_error / static_cast<double>(tokens) * power[c];
    spread += squares - sum * sum / static_cast<double>(tokens);
  }
  out.values = spread > 0.0 ? lost / spread : 0.0;
  return out;
}

}  // namespace tierkv::quant
