// sha256.h — SHA-256 (FIPS 180-4), for names that nobody can make two different texts share: the prefix store is everybody's who
// may ask.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tierkv::serve {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void add(std::span<const std::byte> bytes);
  // Of all that was added; nothing may be added afterwards.
  Digest finish();

 private:
  void block(const uint8_t* at);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t length_ = 0;
};

}  // namespace tierkv::serve
