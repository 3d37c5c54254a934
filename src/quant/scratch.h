// scratch.h — memory for encoding and decoding a block: one a thread, grown to what its codecs need and kept.
//
// A codec wrapped in another is called while the outer one still uses its part, so every user has a buffer of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/per_thread.h"
#include "quant/grid.h"

namespace tierkv::quant {

struct BlockScratch {
  std::vector<float> rotated, centered, decoded;  // rows
  std::vector<float> lost;                        // of rows, by being coded
  std::vector<float> transposed;                  // a block with 16 neighbours side by side
  std::vector<float> grids;                       // scales, then offsets
  std::vector<float> tile;                        // rows of one tile
  std::vector<float> basis;                       // of keys that are encoded in one
  std::vector<float> directions;                  // that queries look in
  std::vector<float> metric;                      // of errors
  std::vector<GroupFit> fits;
  std::vector<std::byte> meta;
  std::vector<uint16_t> codes;
  std::vector<uint8_t> bytes;
};

// Throws std::bad_alloc when a thread's first has no memory.
inline BlockScratch& block_scratch() { return per_thread<BlockScratch>(); }

template <class T>
T* at_least(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

// The same for whole vectors: one that lies across two lines of the cache takes twice as long to load.
template <class T>
T* at_least_aligned(std::vector<T>& v, size_t n) {
  constexpr size_t kLine = 64 / sizeof(T);
  T* at = at_least(v, n + kLine);
  return at + (kLine - reinterpret_cast<uintptr_t>(at) / sizeof(T) % kLine) % kLine;
}

}  // namespace tierkv::quant
