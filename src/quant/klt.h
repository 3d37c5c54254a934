// klt.h — keys in a calibrated basis (calib/klt.h): no metadata per token, bits only where the model looks.
//
// Layout:   tiles of 16 tokens; in a tile one row of 16 words of 32 bits, one a token, for every word of the head: first those of
//           8-bit components (4 a word), then of 4 bits (8), then of 2 (16). Component 4·f + k of a word lies in byte k, bits w·f
//           .. w·f+w-1 (lanes.h).
// Meaning:  key = R(s0)·(mean + sum over components of (code - middle)·row), rows with their steps folded in, as fp16.
// Scores:   the query is turned by -s0 and multiplied with the rows once per block; then codes meet bytes, two planes of them, in
//           the same integer products as every other codec's.
// Frame:    Frame::block. s0 is BlockContext::first_position. Rows need not be consecutive, but the basis only fits keys near s0.
// Errors:   count as the metric of the tables says (calib/klt.h). The error frame is that of the components that have bits and of
//           the widest that have none: four fifths of the squared error and more lie there.
// Refuses:  rows that span more than twice the block's tokens (what eviction leaves): another codec has to take those.
#pragma once

#include "quant/codec.h"

namespace tierkv::calib {
struct HeadTables;
}

namespace tierkv::quant {

// `klt`: bits are shared between keys and values (calib::KltTables::allocate), values are `mid` of 2, 3 or 4 bits, head by head.
// `kltk`: keys alone; another codec takes the values. REQUIRES: shape.tokens % 16 == 0.
Result<std::unique_ptr<Codec>> make_klt(const CodecSpec& spec, Side side, const BlockShape& shape, const calib::HeadTables& tables);
Result<std::unique_ptr<Codec>> make_kltk(const CodecSpec& spec, Side side, const BlockShape& shape,
                                         const calib::HeadTables& tables);

}  // namespace tierkv::quant
