// coding_error.h — what a pair of codecs would do to attention, measured on rows of one KV head.
//
// Scores:  an error e of a key moves the score of a query q by scale·q·e. Codecs that rotate leave errors that are independent from
//          channel to channel, so the variance of that is the sum over channels of E[e²] times the power of the queries there.
// Values:  the squared error of values as a part of their squared distance from their mean.
#pragma once

#include "quant/codec_set.h"

namespace tierkv::quant {

struct CodingError {
  double scores = 0.0;  // variance of the error of a score; a score is what goes into the exponential function
  double values = 0.0;
};

// keys, values: entry.tokens rows each, finite. `power`: of each channel, the mean of (scale·q)² over queries.
// The status of encode() where the codec refuses the rows. Throws bad_alloc.
Result<CodingError> coding_error(const CodecEntry& entry, const float* keys, const float* values, const BlockContext& ctx,
                                 const float* power);

}  // namespace tierkv::quant
