// overlaid.h — any codec, and the rows of a block that matter most kept better: what the codec lost of them is coded as well.
//
// A few tokens get most of the attention, and a few are coded badly. Where both meet, the base codec's error of the row is stored
// beside it; attention adds it to the row's score, or with the row's weight to the sum. So the base stays whole, every token counts
// once, and a better row costs only the bits that it lacks.
//
// Which:    the `top` rows of largest mass times squared error (BlockContext::mass; without one the error alone). Keys and values
//           choose for themselves. A row of mass 0 comes last.
// Layout:   [base codec's bytes][u8 index of each better row, ascending][u8 step of each][codes of each, 3 bits a channel of the
//           error frame: eight in three bytes, the first in the lowest bits].
// Meaning:  row = base row + step·(code - 3.5), that product in the error frame of the base (Codec::encode_with_errors()): the
// Hadamard
//           frame, and for klt the Hadamard frame of the components that carry its errors, where they count as the model feels
//           them. Squared errors are taken there too. A step is a half float without its sign and its seven lowest bits, to
//           nearest.
// Size:     3 bits a channel of the error frame and two bytes a better row: 4 rows of 128 at 64 channels are 0.102 bits a value.
// Error:    a better row's is about a twenty-fifth of the base's squared error, for klt's keys up to a quarter, because a fifth
//           may lie in components that are left out; the other rows are the base's to the bit.
// Frame:    the base's.
// Refused:  what the base refuses. validate() also refuses indices that do not ascend or leave the block, and steps past fp16.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

inline constexpr uint32_t kMostTop = 32;

// What `top` better rows add to a block, by the channels of its error frame.
size_t overlay_bytes(uint32_t top, uint32_t channels);

// invalid_argument: fewer than `top` rows in a block. REQUIRES: inner != nullptr, 1 <= top <= kMostTop.
Result<std::unique_ptr<Codec>> overlay_codec(std::unique_ptr<Codec> inner, uint8_t top);

// For a reader that does not run the codec's own code (layout.h; layout() describes the base's bytes, which come first): which rows
// of a block are better, and what is added to each, in frame(), of a block whose first position is 0. indices[top],
// rows[top][head_dim]. REQUIRES: `codec` is one that overlay_codec() made, `in` a valid block of it.
void better_rows(const Codec& codec, std::span<const std::byte> in, uint32_t* indices, float* rows);

}  // namespace tierkv::quant
