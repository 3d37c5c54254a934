// kvquant.h — KVQuant (arXiv 2401.18079): keys before RoPE per channel, values per token, a codebook per layer, 1 % kept exact.
//
// Keys:     R(-s) k, s the row's position; each channel normalised to [-1, 1] by the range calibration found, coded by the layer's
//           codebook (calib/kvquant.h). Decoding turns rows forward again; scores() decodes sixteen rows at a time and turns those.
// Values:   minimum and maximum of each token, outliers left out, normalise; the codebook is the layer's.
// Outliers: fp16, 1 % of the values of a *block*, not of each row: at head_dim 64 a row's 1 % is no whole number, and rows differ
//           in how many they need. Keys: where the codes are off the most, in the metric of calibration. Values: where leaving them
//           out narrows their tokens' ranges the most.
// Layout:   [codes, lanes.h, lane = token, depth = channel][values: range of each token, meta.h, three levels]
//           [u16 index of each outlier, token·head_dim + channel, ascending][f16 value of each outlier]
//           At 128 x 64: bits + 0.32 for keys (ranges are the model's), bits + 0.82 for values, +0.60 with +s8, +0.48 with +s4.
// Error:    half the distance of two levels for what lies in its range; what lies outside and is not among the outliers becomes the
//           outermost level. Outliers are exact to fp16, keys as they are before RoPE.
// Threads:  immutable; holds on to its calibration.
// REQUIRES: tokens % 16 == 0, positions that are the same at encoding and ever after. Refused: non-finite rows, values past fp16.
#pragma once

#include "quant/codec.h"

namespace tierkv::calib {
struct HeadTables;
}

namespace tierkv::quant {

// failed_precondition: a calibration without KVQuant tables.
Result<std::unique_ptr<Codec>> make_kvquant(const CodecSpec& spec, Side side, const BlockShape& shape,
                                            const calib::HeadTables& tables);

}  // namespace tierkv::quant
