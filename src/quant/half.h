// half.h — fp16 and bf16: plain rows of 16-bit floats.
//
// Layout:   row-major, 2 bytes a value, rows at 2·head_dim bytes. No header, so a codec of any block length reads a buffer of any
//           number of rows: decode(), scores() and accumulate() never look at shape().tokens.
// Error:    |x - x'| <= 2^-11·|x| (fp16, plus 2^-25 below its normal range) or 2^-8·|x| (bf16).
// Refuses:  non-finite values, and fp16 values that round past 65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_fp16(const CodecSpec& spec, Side side, const BlockShape& shape);
Result<std::unique_ptr<Codec>> make_bf16(const CodecSpec& spec, Side side, const BlockShape& shape);

}  // namespace tierkv::quant
