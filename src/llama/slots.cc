#include "llama/slots.h"

#include "base/status_macros.h"

namespace tierkv::llama {

Slots::~Slots() {
  for (const Slot& slot : slots_) {
    if (slot.live) (void)cache_.remove(slot.id).ok();
  }
}

int32_t Slots::add() {
  slots_.emplace_back();
  return static_cast<int32_t>(slots_.size()) - 1;
}

Status Slots::check(int32_t seq) const {
  if (seq >= 0 && static_cast<size_t>(seq) < slots_.size()) return {};
  return error(StatusCode::invalid_argument, "there is no sequence ", seq, ": the context has sequences 0 to ", slots_.size() - 1);
}

Result<SeqId> Slots::sequence(int32_t seq) {
  TIERKV_RETURN_IF_ERROR(check(seq));
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (!slot.live) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId id, cache_.add_sequence());
    slot = {id, true, kWhole};
  }
  return slot.id;
}

Result<SeqId> Slots::find(int32_t seq) const {
  TIERKV_RETURN_IF_ERROR(check(seq));
  const Slot& slot = slots_[static_cast<size_t>(seq)];
  if (!slot.live) return error(StatusCode::not_found, "sequence ", seq, " is empty");
  return slot.id;
}

int32_t Slots::number_of(SeqId id) const noexcept {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].live && slots_[i].id == id) return static_cast<int32_t>(i);
  }
  return -1;
}

Status Slots::settle(int32_t seq) {
  TIERKV_RETURN_IF_ERROR(check(seq));
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (!slot.live || slot.cut_to == kWhole) return {};
  if (const auto parked = cache_.is_parked(slot.id); parked.ok() && *parked) return {};
  return make_whole(slot, seq);
}

// Awake, and with all layers equally long.
Status Slots::make_whole(Slot& slot, int32_t seq) {
  const auto parked = cache_.is_parked(slot.id);
  if (!parked.ok()) {
    slot = {};
    return error(StatusCode::not_found, "sequence ", seq, " was removed from the cache: ", parked.status().message());
  }
  if (*parked) {
    return error(StatusCode::failed_precondition, "sequence ", seq, " is parked: AdaptiveKVCache::wake(", slot.id, ") comes first");
  }
  if (slot.cut_to == kWhole) return {};
  TIERKV_RETURN_IF_ERROR(cache_.truncate(slot.id, slot.cut_to));
  slot.cut_to = kWhole;
  return {};
}

Result<uint32_t> Slots::length(int32_t seq) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId id, sequence(seq));
  TIERKV_RETURN_IF_ERROR(make_whole(slots_[static_cast<size_t>(seq)], seq));
  return cache_.length(id);
}

Status Slots::bind(int32_t seq, SeqId id) {
  TIERKV_RETURN_IF_ERROR(check(seq));
  if (auto length = cache_.length(id); !length.ok()) return length.status();
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (slot.live && slot.id == id) return {};
  if (slot.live) {
    const Status removed = cache_.remove(slot.id);
    if (!removed.ok() && removed.code() != StatusCode::not_found) return removed;
  }
  slot = {id, true, kWhole};
  return {};
}

Status Slots::fork(int32_t from, int32_t to) {
  TIERKV_RETURN_IF_ERROR(check(from));
  TIERKV_RETURN_IF_ERROR(check(to));
  if (from == to) return {};
  TIERKV_ASSIGN_OR_RETURN(const SeqId source, sequence(from));
  if (slots_[static_cast<size_t>(from)].cut_to != kWhole) {
    TIERKV_RETURN_IF_ERROR(make_whole(slots_[static_cast<size_t>(from)], from));
  }
  TIERKV_ASSIGN_OR_RETURN(const SeqId copy, cache_.fork(source));
  Status bound = bind(to, copy);
  if (!bound.ok()) (void)cache_.remove(copy).ok();
  return bound;
}

Status Slots::truncate(int32_t seq, uint32_t length) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId id, sequence(seq));
  if (slots_[static_cast<size_t>(seq)].cut_to != kWhole) {
    TIERKV_RETURN_IF_ERROR(make_whole(slots_[static_cast<size_t>(seq)], seq));
  }
  return cache_.truncate(id, length);
}

Status Slots::remove(int32_t seq) {
  TIERKV_RETURN_IF_ERROR(check(seq));
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (!slot.live) return {};
  const SeqId id = slot.id;
  slot = {};
  return cache_.remove(id);
}

Status Slots::park(int32_t seq, const DeepOptions& options, DeepReport* report) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId id, find(seq));
  return cache_.park(id, options, report);
}

Status Slots::wake(int32_t seq) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId id, find(seq));
  TIERKV_RETURN_IF_ERROR(cache_.wake(id));
  return settle(seq);
}

void Slots::roll_back(int32_t seq, uint32_t length) noexcept {
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (!slot.live) return;
  if (const auto parked = cache_.is_parked(slot.id); parked.ok() && *parked) {
    if (slot.cut_to == kWhole) slot.cut_to = length;
    return;
  }
  if (length > 0) {
    const Status cut = cache_.truncate(slot.id, length);
    if (cut.ok()) return;
    if (cut.code() == StatusCode::resource_exhausted) {
      if (slot.cut_to == kWhole) slot.cut_to = length;
      return;
    }
  }
  (void)cache_.remove(slot.id).ok();
  slot = {};
}

}  // namespace tierkv::llama
