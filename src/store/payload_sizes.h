// payload_sizes.h — how long the two sides of a block's bytes are, and what a checksum over them is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/arena.h"

namespace tierkv::quant {
struct CodecEntry;  // opaque here
}

namespace tierkv::store {

// [key bytes, padded to 64][value bytes]
struct PayloadSizes {
  size_t keys = 0, values = 0;
  size_t value_offset() const { return Arena::rounded(keys); }
  size_t total() const { return value_offset() + values; }
};
using SizesOf = PayloadSizes (*)(const quant::CodecEntry& codec);

// The padding does not count.
uint64_t payload_checksum(std::span<const std::byte> keys, std::span<const std::byte> values);
// REQUIRES: sizes.total() bytes.
uint64_t payload_checksum(const PayloadSizes& sizes, std::span<const std::byte> payload);

}  // namespace tierkv::store
