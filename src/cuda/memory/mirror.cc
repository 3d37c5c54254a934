#include "cuda/memory/mirror.h"

#include "cuda/launch/better.h"
#include "cuda/plan/device_form.h"

namespace tierkv::cuda {

Mirror::Mirror(Machine& machine, Bounce& bounce, Changes& changes, uint64_t byte_limit, bool whole)
    : machine_(machine),
      bounce_(bounce),
      changes_(changes),
      whole_(whole),
      places_(byte_limit, [this](size_t bytes) -> Result<uint8_t*> {
        slabs_.reserve(slabs_.size() + 1);
        TIERKV_ASSIGN_OR_RETURN(uint8_t* const slab, machine_.allocate(bytes));
        slabs_.push_back(slab);
        return slab;
      }) {}

Mirror::~Mirror() {
  for (uint8_t* const slab : slabs_) machine_.release(slab);
}

namespace {

// A side as it is there: the device's form, which has the base's bytes and not what better rows were coded as, and that behind it.
struct SideThere {
  size_t base = 0, rest = 0, bytes = 0;
};

SideThere side_there(const quant::SideLayout& side, uint32_t better, size_t bytes, bool whole) {
  if (better == 0) return {bytes, bytes, bytes};
  const size_t form = device_bytes(side, better);
  return {side.bytes, form, form + (whole ? bytes - side.bytes : 0)};
}

}  // namespace

Result<Places::Entry*> Mirror::place(const attn::BlockView& view, const CodecDesc& codec) {
  if (Places::Entry* const there = places_.find(view.sealed, view.keys.size(), view.values.size())) return there;
  if (view.away()) return error(StatusCode::data_loss, "a block's bytes are on a device alone, and not on this one");
  const SideThere key = side_there(codec.key, codec.key_better, view.keys.size(), whole_);
  const SideThere value = side_there(codec.value, codec.value_better, view.values.size(), whole_);
  const std::span<const std::byte> keys = device_form(*view.key_codec, codec.key, view.keys, key_form_);
  const std::span<const std::byte> values = device_form(*view.value_codec, codec.value, view.values, value_form_);
  TIERKV_ASSIGN_OR_RETURN(Places::Entry* const entry,
                          places_.add(view.sealed, view.keys.size(), view.values.size(), key.bytes, value.bytes));
  entry->own_keys = {key.base, key.rest}, entry->own_values = {value.base, value.rest};
  const auto send = [&](uint8_t* to, std::span<const std::byte> form, const SideThere& side, std::span<const std::byte> own) {
    Status sent = bounce_.send(to, form.data(), form.size());
    if (!sent.ok() || side.bytes == side.rest) return sent;
    return bounce_.send(to + side.rest, own.data() + side.base, own.size() - side.base);
  };
  Status sent = send(entry->keys, keys, key, view.keys);
  if (sent.ok()) sent = send(entry->values, values, value, view.values);
  if (!sent.ok()) {
    places_.forget(entry);
    return sent;
  }
  entry->sent = changes_.next();
  ++uploads_;
  return entry;
}

Status Mirror::fetch(const Places::Entry& entry, std::span<std::byte> keys, std::span<std::byte> values) {
  const auto side = [&](const uint8_t* at, const Places::Entry::Own& own, std::span<std::byte> out) -> Status {
    TIERKV_RETURN_IF_ERROR(machine_.fetch(out.data(), at, own.base));
    if (out.size() == own.base) return {};
    return machine_.fetch(out.data() + own.base, at + own.rest, out.size() - own.base);
  };
  TIERKV_RETURN_IF_ERROR(side(entry.keys, entry.own_keys, keys));
  return side(entry.values, entry.own_values, values);
}

const uint8_t* Mirror::bytes_there(const attn::BlockView& view, quant::Side side) noexcept {
  if (view.sealed == 0 || view.key_codec->spec().top != 0 || view.value_codec->spec().top != 0) return nullptr;
  const Places::Entry* const entry = places_.look(view.sealed, view.keys.size(), view.values.size());
  if (!entry || !changes_.done(entry->sent)) return nullptr;
  return side == quant::Side::key ? entry->keys : entry->values;
}

}  // namespace tierkv::cuda
