// checked_file.cc — SHA-256 (FIPS 180-4) over a file, and the line that remembers it.
#include "engine/checked_file.h"

#include <sys/stat.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "engine/error.h"
#include "tierkv/file.h"

namespace tierkv::engine {
namespace {

// The standard's constants are the first 32 bits of the fractions of the roots of the first primes: square roots for the start,
// cube roots for the rounds. In whole numbers, because a double has too few digits for the multiplication that would show them.
constexpr uint32_t root_fraction(uint32_t prime, int power) {
  using Wide = unsigned __int128;
  uint64_t root = 0;  // of prime * 2^(32 * power), rounded down: the whole part and 32 digits of the fraction
  for (int bit = 35; bit >= 0; --bit) {
    const Wide tried = root | uint64_t{1} << bit;
    const Wide raised = power == 2 ? tried * tried : tried * tried * tried;
    if (raised <= Wide{prime} << (32 * power)) root = static_cast<uint64_t>(tried);
  }
  return static_cast<uint32_t>(root);
}

template <size_t N>
constexpr std::array<uint32_t, N> root_fractions(int power) {
  std::array<uint32_t, N> out{};
  uint32_t candidate = 2;
  for (size_t found = 0; found < N; ++candidate) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (prime) out[found++] = root_fraction(candidate, power);
  }
  return out;
}

constexpr auto kStart = root_fractions<8>(2);
constexpr auto kRounds = root_fractions<64>(3);
static_assert(kStart[0] == 0x6a09e667u && kRounds[0] == 0x428a2f98u && kRounds[63] == 0xc67178f2u);

class Sha256 {
 public:
  void add(const unsigned char* data, size_t size) {
    total_ += size;
    while (size > 0) {
      const size_t taken = std::min(size, sizeof(block_) - used_);
      std::memcpy(block_ + used_, data, taken);
      used_ += taken;
      data += taken;
      size -= taken;
      if (used_ == sizeof(block_)) mix();
    }
  }

  std::string finish() {
    const uint64_t bits = total_ * 8;
    const unsigned char one = 0x80, zero = 0;
    add(&one, 1);
    while (used_ != sizeof(block_) - 8) add(&zero, 1);
    unsigned char length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
    add(length, 8);
    std::string out;
    for (const uint32_t word : state_) {
      char digits[9];
      std::snprintf(digits, sizeof digits, "%08x", word);
      out += digits;
    }
    return out;
  }

 private:
  void mix() {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] =
          uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 | uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t low = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t high = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t of_e = (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g));
      const uint32_t of_a = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      const uint32_t sum = h + of_e + kRounds[i] + w[i];
      h = g, g = f, f = e, e = d + sum, d = c, c = b, b = a, a = sum + of_a;
    }
    const uint32_t added[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
    used_ = 0;
  }

  std::array<uint32_t, 8> state_ = kStart;
  unsigned char block_[64];
  size_t used_ = 0;
  uint64_t total_ = 0;
};

// What FILE.checked holds when the file as it is now was found good; empty when there is no file.
std::string line_of(const std::string& path, const std::string& digest) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  const int64_t changed = int64_t{info.st_ctim.tv_sec} * 1000000000 + info.st_ctim.tv_nsec;
  return digest + " " + std::to_string(info.st_size) + " " + std::to_string(changed) + "\n";
}

}  // namespace

std::string sha256_of(const std::string& path, const Cancellation* cancel) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read " + path + ": " + std::strerror(errno));
  Sha256 sum;
  std::vector<unsigned char> block(1 << 20);
  size_t count;
  while ((count = std::fread(block.data(), 1, block.size(), file.get())) > 0) {
    sum.add(block.data(), count);
    if (requested(cancel)) throw Cancelled();
  }
  if (std::ferror(file.get())) bad_input("cannot read " + path + ": " + std::strerror(errno));
  return sum.finish();
}

bool is_unchanged(const std::string& path, const std::string& expected, const Cancellation* cancel) {
  const std::string mark = path + ".checked";
  const std::string line = line_of(path, expected);
  {
    std::ifstream remembered(mark);
    std::string found;
    if (std::getline(remembered, found) && found + "\n" == line) return true;
  }
  if (sha256_of(path, cancel) != expected) return false;
  // The file as it was before it was read: one that changed meanwhile is looked at again the next time.
  (void)replace_file(mark, [&](const ByteSink& sink) { return sink(std::as_bytes(std::span(line.data(), line.size()))); }).ok();
  return true;
}

}  // namespace tierkv::engine
