// far_bytes.h — bytes of sealed blocks where the processor cannot read them: in a device's memory.
//
// Whoever has them was given them for work of its own (attention) and may drop them when room is short. Who wants to have them
// nowhere else holds them, and fetches them when they are needed here. Names are checksum and sizes: a sealed block never changes.
//
// Threads:  any. let_go() needs no memory and waits for nobody: blocks go under any lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tierkv/status.h"

namespace tierkv {

class FarBytes {
 public:
  struct Name {
    uint64_t checksum = 0;
    size_t keys = 0, values = 0;  // bytes of the two sides
  };

  virtual ~FarBytes() = default;
  // They stay until they are let go, as often as they were held. Null: they are not there.
  virtual void* hold(const Name& name) const noexcept = 0;
  virtual void let_go(void* held) const noexcept = 0;
  // Into host memory, exactly as long as the name says; whoever reads compares the checksum. io_error: the device failed.
  [[nodiscard]] virtual Status read(const void* held, std::span<std::byte> keys, std::span<std::byte> values) const = 0;

  // What is held takes there.
  virtual uint64_t held_bytes() const noexcept = 0;
  // How often there was no room for more because of what is held or in use.
  virtual uint64_t refusals() const noexcept = 0;
};

}  // namespace tierkv
