// sha256.h — SHA-256, for names that nobody can make two different texts share: the prefix store is everybody's who may ask.
//
// OpenSSL computes it, which cpp-httplib brings along; it is in sha256.cc alone.
// Threads: one thread's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tierkv::serve {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  // Throws std::bad_alloc.
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Of all that was added; nothing may be added afterwards.
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tierkv::serve
