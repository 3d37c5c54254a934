#include "cuda/slots.h"

#include <atomic>

namespace tierkv::cuda {

Result<std::shared_ptr<Slot>> Slots::find() {
  // Others give theirs back at any time; the first few are those that are most likely done.
  constexpr size_t kLook = 4;
  const size_t look = all_.size() < kMost ? std::min(kLook, all_.size()) : all_.size();
  for (const bool wait : {false, true}) {
    for (size_t i = 0; i < look; ++i) {
      std::shared_ptr<Slot> slot = all_[i];
      if (slot.use_count() != 2) continue;  // this and the list's
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!slot->reached()) {
        if (!wait) continue;
        TIERKV_RETURN_IF_ERROR(slot->mark->wait());
      }
      all_.erase(all_.begin() + static_cast<ptrdiff_t>(i));
      return slot;
    }
    if (all_.size() < kMost) break;
  }
  auto slot = std::make_shared<Slot>(machine_);
  TIERKV_ASSIGN_OR_RETURN(slot->mark, machine_->make_mark());
  return slot;
}

Result<std::shared_ptr<Slot>> Slots::take(size_t bytes) {
  TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, find());
  slot->put = false;
  TIERKV_RETURN_IF_ERROR(slot->memory.reserve(std::max<size_t>(bytes, 4096)));
  open_.push_back(slot);
  if (slot->memory.size() <= kLargest) all_.push_back(slot);
  return slot;
}

Status Slots::end_call() {
  Status status;
  for (const std::shared_ptr<Slot>& slot : open_) {
    if (Status put = machine_->put(*slot->mark); !put.ok()) status = std::move(put);
    else slot->put = true;
  }
  open_.clear();
  return status;
}

}  // namespace tierkv::cuda
