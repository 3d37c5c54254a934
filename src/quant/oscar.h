// oscar.h — OSCAR (arXiv 2605.17757), a peer to measure: keys and values in rotations that calibration found (calib/oscar.h), then
// min/max codes with a scale and a minimum a token.
//
// Layout:   affine.h's, of rotated rows: a token's scale and minimum as fp16, for every 128 channels or the head.
// Clipping: a token's rotated values are cut to 0.96 (keys) or 0.92 (values) of its minimum and maximum first.
// Frame:    plain. The query is turned once a block, and so are the sums of values: head_dim² products a row of queries.
// Error:    that of the codes and of the clipping, in the rotated frame; half floats in the matrix add 1e-3 of a row.
// Differs:  the paper keeps 64 first and 256 recent tokens as 16-bit rows; here tiers do that, as they are configured.
#pragma once

#include "quant/codec.h"

namespace tierkv::calib {
struct HeadTables;
}

namespace tierkv::quant {

// failed_precondition: a calibration without these rotations.
Result<std::unique_ptr<Codec>> make_oscar(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables& tables);

}  // namespace tierkv::quant
