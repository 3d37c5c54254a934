#include "cuda/mirror.h"

#include "cuda/better.h"
#include "cuda/device_form.h"

namespace tierkv::cuda {

Mirror::Mirror(Machine& machine, Bounce& bounce, Changes& changes, uint64_t byte_limit)
    : machine_(machine), bounce_(bounce), changes_(changes), places_(byte_limit, [this](size_t bytes) -> Result<uint8_t*> {
        slabs_.reserve(slabs_.size() + 1);
        TIERKV_ASSIGN_OR_RETURN(uint8_t* const slab, machine_.allocate(bytes));
        slabs_.push_back(slab);
        return slab;
      }) {}

Mirror::~Mirror() {
  for (uint8_t* const slab : slabs_) machine_.release(slab);
}

Result<Places::Entry*> Mirror::place(const attn::BlockView& view, const CodecDesc& codec) {
  const size_t key_bytes = codec.key_better ? device_bytes(codec.key, codec.key_better) : view.keys.size();
  const size_t value_bytes = codec.value_better ? device_bytes(codec.value, codec.value_better) : view.values.size();
  if (Places::Entry* const there = places_.find(view.sealed, key_bytes, value_bytes)) return there;
  const std::span<const std::byte> keys = device_form(*view.key_codec, codec.key, view.keys, key_form_);
  const std::span<const std::byte> values = device_form(*view.value_codec, codec.value, view.values, value_form_);
  TIERKV_ASSIGN_OR_RETURN(Places::Entry* const entry, places_.add(view.sealed, keys.size(), values.size()));
  Status sent = bounce_.send(entry->keys, keys.data(), keys.size());
  if (sent.ok()) sent = bounce_.send(entry->values, values.data(), values.size());
  if (!sent.ok()) {
    places_.forget(entry);
    return sent;
  }
  entry->sent = changes_.next();
  ++uploads_;
  return entry;
}

const uint8_t* Mirror::bytes_there(const attn::BlockView& view, quant::Side side) noexcept {
  if (view.sealed == 0 || view.key_codec->spec().top != 0 || view.value_codec->spec().top != 0) return nullptr;
  const Places::Entry* const entry = places_.look(view.sealed, view.keys.size(), view.values.size());
  if (!entry || !changes_.done(entry->sent)) return nullptr;
  return side == quant::Side::key ? entry->keys : entry->values;
}

}  // namespace tierkv::cuda
