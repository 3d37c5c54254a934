// mirror.h — copies of sealed blocks on the device, each made once, found again by the checksum of its bytes (places.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/places.h"
#include "cuda/runtime.h"

namespace tierkv::cuda {

class Mirror {
 public:
  explicit Mirror(uint64_t byte_limit);

  struct Place {
    const uint8_t* keys;
    const uint8_t* values;
  };

  // A new call begins: what it asks for stays until the next one.
  void begin_call() { places_.begin_call(); }
  // A block that is there, by the bytes of its sides.
  std::optional<Place> find(uint64_t sealed, size_t key_bytes, size_t value_bytes);
  // One that is not. resource_exhausted: everything there is belongs to this call. The host's bytes, in memory that is not pinned,
  // are no longer needed when this returns.
  Result<Place> place(uint64_t sealed, std::span<const std::byte> keys, std::span<const std::byte> values, cudaStream_t stream);

  uint64_t bytes() const { return places_.bytes(); }
  uint64_t blocks() const { return places_.blocks(); }
  uint64_t uploads() const { return uploads_; }

 private:
  std::vector<std::unique_ptr<Buffer>> slabs_;
  Places places_;
  uint64_t uploads_ = 0;
};

}  // namespace tierkv::cuda
