// collect.h — a text through a model, and what the collector saw of it.
//
// Windows are sequences of their own over an all-FP16 cache. The residual stream before a layer is the node that libllama calls
// l_out of the layer before it (the embedding for the first); a model whose graph has no such node does without. Threads: one call
// at a time on a model.
#pragma once

#include <cstdint>
#include <vector>

#include "calib/statistics.h"
#include "llama/collector.h"
#include "tierkv/calibrate.h"

namespace tierkv::llama {

using TokenList = std::vector<int32_t>;

// The windows that calibration reads: equally long, from the texts in turn, evenly spread over each. Errors as calibrate() has
// them.
Result<std::vector<TokenList>> calibration_windows(const std::vector<TokenList>& texts, uint32_t context,
                                                   const CalibrateOptions& options);

struct Collected {
  calib::Statistics statistics;
  uint64_t pairs = 0;
  double watching_seconds = 0.0;
  uint32_t without_residual = 0, without_projection = 0;  // layers
};
Result<Collected> collect(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrateOptions& options);

}  // namespace tierkv::llama
