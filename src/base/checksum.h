// checksum.h — XXH3-64 over bytes: what every block and every snapshot carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tierkv {

uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace tierkv
