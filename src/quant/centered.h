// centered.h — keys without their block's channel means.
//
// Layout:   [inner codec's bytes][fp16 mean per channel, in the frame of the inner codec]
// Exact:    what is subtracted is the mean as stored, and scores() adds q·mean back to every score of the block: centring itself
//           adds no error, it only leaves the inner codec smaller numbers.
// Refuses:  a channel mean past fp16's 65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

// REQUIRES: inner != nullptr, inner->side() == Side::key.
std::unique_ptr<Codec> center_codec(std::unique_ptr<Codec> inner);

}  // namespace tierkv::quant
