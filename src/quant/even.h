// even.h — keys without calibration whose channels differ: channels are evened out before they are rotated.
//
// A rotation spreads the error evenly over all channels. Where a few channels are much larger than the others (models that
// normalise their keys with learnt weights), small channels then drown in the error of the large ones. Dividing every channel by
// the root of its spread first is the division of least squared error for one grid, and no channel drowns.
//
// Keys:     minus their block's channel mean, over 2^(n/2) with n near the binary logarithm of the channel's spread in the block;
//           Hadamard frame; then the grid of rot's keys (rot.h): one fitted step a token, clipped, unbiased.
// Guide:    where another codec of the head knows where queries look (BlockContext::guide: klt's tables), codes are chosen so that
//           errors stay out of there (error_feedback.h). The block is the same to read; without a guide codes are the nearest.
// Layout:   [codes][f32 top, 8-bit log scale per token][per channel 16 bits: an fp16 mean whose three lowest bits are 0, and in
//           their place n - base][i16 base]. What rounding takes from a mean is left in the codes. Channels that spread less than
//           a 128th of the widest are divided as if they spread that much.
// Values:   rot's from 4 bits on, mid's below.
// Scores:   the query is multiplied by the channels' factors and rotated once per block.
// Size:     rot's and two bytes a block, values below 4 bits apart.
// Frame:    keys take the plain query.
// REQUIRES: tokens % 16 == 0. Refused: non-finite values, channel means past 65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_even(const CodecSpec& spec, Side side, const BlockShape& shape);

}  // namespace tierkv::quant
