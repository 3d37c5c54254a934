// squat.h — SQuat (arXiv 2503.24358): kivi's blocks, with the errors of keys kept out of the directions queries look in.
//
// Format:   kivi's own (kivi.h), keys and values; only what keys are rounded from differs. Values are kivi's.
// Encoding: channels are quantized in order, kSquatStep at a time; after each step the error made so far is answered for by the
//           channels that are left, so as to minimise e'Pe, P = I + D'D with D the directions of calib/squat.h. The paper writes
//           the answer as B·A^-1·delta with blocks of P^-1. P is the identity and a few directions, so the same answer is
//           (Woodbury)
//             shift of channel c = -D_c'·(I + D_R D_R')^-1·g,   g = D_done·e_done, R the channels that are left,
//           and each token carries only the r numbers of g: r products a value instead of head_dim.
// Error:    that of kivi around the shifted rows. In the subspace smaller than kivi's, outside larger.
// Threads:  immutable.
// REQUIRES: as kivi. Calibrated: without tables there is no codec.
#pragma once

#include "quant/codec.h"

namespace tierkv::calib {
struct HeadTables;
}

namespace tierkv::quant {

// The paper has 64 of 128 channels. With halves nothing is gained here (errors as queries see them: 1.00 of kivi's, against 0.69
// with single channels): what channels of one half could answer for is in that same half.
inline constexpr uint32_t kSquatStep = 1;

// failed_precondition: a calibration without SQuat tables.
Result<std::unique_ptr<Codec>> make_squat(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables& tables);

}  // namespace tierkv::quant
