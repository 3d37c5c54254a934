#include "learn/check.h"

#include <algorithm>

#include "base/status_macros.h"
#include "quant/registry.h"

namespace tierkv::learn {
namespace {

constexpr const char* kCalibrated = "klt1.875";

// Mean over rows of e'·M·e, e what coding does to a row. `metric`: [dim][dim], or one number for every channel.
Result<double> error_of(const quant::Codec& codec, const std::vector<float>& rows, const std::vector<double>& metric) {
  const uint32_t dim = codec.shape().head_dim, tokens = codec.shape().tokens;
  const size_t count = rows.size() / dim;
  std::vector<float> in(static_cast<size_t>(tokens) * dim), out(in.size());
  std::vector<std::byte> bytes(codec.bytes());
  std::vector<double> e(dim);
  double sum = 0.0;
  for (size_t from = 0; from < count; from += tokens) {
    // The last block is filled up with rows that were there before.
    for (size_t t = 0; t < tokens; ++t) std::copy_n(rows.data() + (from + t) % count * dim, dim, in.data() + t * dim);
    // Keys lie in the frame of their blocks: as if each block began at position 0.
    TIERKV_RETURN_IF_ERROR(codec.encode(in.data(), {}, bytes));
    const auto used = static_cast<uint32_t>(std::min<size_t>(tokens, count - from));
    codec.decode(bytes, {}, 0, used, out.data());
    for (size_t t = 0; t < used; ++t) {
      for (uint32_t c = 0; c < dim; ++c) e[c] = static_cast<double>(out[t * dim + c]) - in[t * dim + c];
      for (uint32_t r = 0; r < dim; ++r) {
        if (metric.size() == 1) {
          sum += metric[0] * e[r] * e[r];
          continue;
        }
        double along = 0.0;
        for (uint32_t c = 0; c < dim; ++c) along += metric[static_cast<size_t>(r) * dim + c] * e[c];
        sum += e[r] * along;
      }
    }
  }
  return sum / static_cast<double>(count);
}

}  // namespace

Result<HeadErrors> held_out_errors(const std::shared_ptr<const calib::Calibration>& calibration, uint32_t layer, uint32_t head,
                                   const HeldOutHead& rows) {
  const quant::BlockShape shape{(calibration->block + 15) / 16 * 16, calibration->model.head_dim};
  const calib::HeadTables tables{calibration, layer, head};
  HeadErrors errors;
  for (double* sum : {&errors.calibrated, &errors.uncalibrated}) {
    TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair pair,
                            quant::parse_codec_pair(sum == &errors.calibrated ? kCalibrated : quant::resolve_auto("auto", false)));
    TIERKV_ASSIGN_OR_RETURN(const auto key, quant::make_codec(pair.key, quant::Side::key, shape, &tables));
    TIERKV_ASSIGN_OR_RETURN(const auto value, quant::make_codec(pair.value, quant::Side::value, shape, &tables));
    TIERKV_ASSIGN_OR_RETURN(const double of_keys, error_of(*key, rows.keys, rows.metric));
    TIERKV_ASSIGN_OR_RETURN(const double of_values, error_of(*value, rows.values, {rows.value_metric}));
    *sum = of_keys + of_values;
  }
  return errors;
}

}  // namespace tierkv::learn
