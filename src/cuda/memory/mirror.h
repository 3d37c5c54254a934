// mirror.h — copies of sealed blocks on the device, each made once, found again by the checksum of its bytes (places.h).
#pragma once

#include <vector>

#include "attn/attention.h"
#include "cuda/memory/bounce.h"
#include "cuda/memory/changes.h"
#include "cuda/memory/machine.h"
#include "cuda/memory/places.h"

namespace tierkv::cuda {

class Mirror {
 public:
  // `whole`: copies have all bytes of their block, so that it can be made of them again.
  Mirror(Machine& machine, Bounce& bounce, Changes& changes, uint64_t byte_limit, bool whole = false);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // The block of a view, copied if it is not there. `codec`: its pair's layouts. resource_exhausted: everything there is belongs to
  // this call or is held. data_loss: it is away, and not here. REQUIRES: view.sealed.
  Result<Places::Entry*> place(const attn::BlockView& view, const CodecDesc& codec);

  // The bytes of a side of a view's block where they are there and in the codec's own form; null: they are not, or may be on their
  // way. They stay while nobody asks for anything else.
  const uint8_t* bytes_there(const attn::BlockView& view, quant::Side side) noexcept;

  // A block's own bytes to host memory: asked for, not waited for. REQUIRES: `whole`; the spans are as long as the sides.
  Status fetch(const Places::Entry& entry, std::span<std::byte> keys, std::span<std::byte> values);

  Places& places() { return places_; }
  const Places& places() const { return places_; }
  uint64_t uploads() const { return uploads_; }

 private:
  Machine& machine_;
  Bounce& bounce_;
  Changes& changes_;
  const bool whole_;
  std::vector<uint8_t*> slabs_;
  Places places_;
  std::vector<std::byte> key_form_, value_form_;  // of the block at hand
  uint64_t uploads_ = 0;
};

}  // namespace tierkv::cuda
