// fragments.h — klt's tables in the order in which tensor cores take operands, made on the host.
//
// The fast path multiplies a tile of 16 components x 16 channels at a time (mma m16n8k16, the table is the A operand): lane (g, t)
// of a warp holds rows g and g+8, columns 2t, 2t+1 and 2t+8, 2t+9. A step of the scores is 16 components that every lane takes out
// of its words with one mask: lane t of a quad takes bytes 0, 2 and 1, 3 of one field of one word (packed_word()), so step `s` and
// column j of the score product mean component component_of(s, j). First come words of 2 bits by fours, a word a lane and a field a
// step, so that each is loaded once; then those of 8 bits, of 4, and what is left of 2, whose fields lie side by side in one step.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/launch/desc.h"

namespace tierkv::cuda {

// Where lane t of a quad finds its four codes of a step: the word's row in a tile and the field in its bytes.
struct StepWord {
  uint32_t word = 0;
  uint32_t field = 0;  // bits field·width .. of every byte
  uint32_t width = 0;  // 0: nothing there, the mask is 0
  uint32_t first = 0;  // component in byte 0 of the field; bytes k are first + k
};
StepWord step_word(const quant::SideLayout& key, uint32_t step, uint32_t t);

// Component of row `row` (0..15) of a step's operand; UINT32_MAX: none. Row order is the k order of the score product: lane t's
// half 2t, 2t+1 are bytes 0 and 2, and 2t+8, 2t+9 are bytes 1 and 3.
uint32_t component_of(const quant::SideLayout& key, uint32_t step, uint32_t row);

// The rows in operand order, each times 2^(6 - p) where its codes lie at bits p.. of a byte; empty where a half cannot hold that.
//
// [kMostKltSteps + 1 tiles][steps of 16 channels][32 lanes][4 words of two halves]. The last tile in use holds in rows 0 and 1 the
// mean less the middles of all components, as a high and a low half, and in rows 2 and 3 the mean alone. Unused tiles are zeros.
std::vector<uint32_t> klt_fragments(const quant::SideLayout& key);

// [kMostKltSteps][4]: byte offset of the word's row in a tile, and the mask of its codes in two halves.
struct StepEntry {
  uint32_t offset = 0, mask = 0;
};
std::vector<StepEntry> klt_step_table(const quant::SideLayout& key);

// [kMostKltSteps][4], for products of bytes (klt_whole.cuh): codes are word >> shift & mask, the code or four times the code, and
// `up` is what the rows above have to be multiplied by then.
struct ByteEntry {
  uint32_t offset = 0, mask = 0, shift = 0;
  float up = 1.0f;
};
std::vector<ByteEntry> klt_byte_table(const quant::SideLayout& key);
// The largest norm of a row, multiplied so: no product with a query of norm 1 is larger.
float klt_largest_row(const quant::SideLayout& key);

// All of it as a device has it, one behind the other: the operands, both tables, the norm in a line of its own; empty where there
// are no operands.
std::vector<uint32_t> klt_device_tables(const quant::SideLayout& key);

}  // namespace tierkv::cuda
