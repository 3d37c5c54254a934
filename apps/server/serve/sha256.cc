#include "serve/sha256.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tierkv::serve {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
std::array<uint32_t, 64> make_constants() {
  std::array<uint32_t, 64> constants{};
  size_t count = 0;
  for (uint32_t n = 2; count < constants.size(); ++n) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    // floor(cbrt(n) * 2^32) exactly: a first guess from floating point, mended in integers of 128 bits.
    const auto cube_at_most = [n](uint64_t x) {
      const unsigned __int128 limit = static_cast<unsigned __int128>(n) << 96;
      const unsigned __int128 square = static_cast<unsigned __int128>(x) * x;
      return square <= limit / x;
    };
    auto root = static_cast<uint64_t>(std::cbrt(static_cast<double>(n)) * 4294967296.0);
    while (!cube_at_most(root)) --root;
    while (cube_at_most(root + 1)) ++root;
    constants[count++] = static_cast<uint32_t>(root);
  }
  return constants;
}

const std::array<uint32_t, 64> kConstants = make_constants();

}  // namespace

void Sha256::block(const uint8_t* at) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{at[4 * i]} << 24 | uint32_t{at[4 * i + 1]} << 16 | uint32_t{at[4 * i + 2]} << 8 | at[4 * i + 3];
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> step = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += step[i];
}

void Sha256::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t at = length_ % 64, count = std::min(bytes.size(), 64 - at);
    std::memcpy(pending_.data() + at, bytes.data(), count);
    length_ += count;
    bytes = bytes.subspan(count);
    if (length_ % 64 == 0) block(pending_.data());
  }
}

Sha256::Digest Sha256::finish() {
  const uint64_t bits = length_ * 8;
  const std::byte one{0x80}, zero{0};
  add({&one, 1});
  while (length_ % 64 != 56) add({&zero, 1});
  for (int i = 7; i >= 0; --i) {
    const std::byte byte{static_cast<unsigned char>(bits >> (8 * i))};
    add({&byte, 1});
  }
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace tierkv::serve
