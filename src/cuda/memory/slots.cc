#include "cuda/memory/slots.h"

namespace tierkv::cuda {

Result<std::shared_ptr<Slot>> Slots::find() {
  // The first are those that are most likely done. What somebody holds, for as long as he likes, goes behind the others.
  constexpr size_t kLook = 4;
  for (size_t i = 0, look = std::min(kLook, all_.size()); i < look; ++i) {
    std::shared_ptr<Slot> slot = std::move(all_.front());
    all_.pop_front();
    if (!slot->held.load(std::memory_order_acquire)) {
      if (slot->reached()) return slot;
      if (all_.size() >= kMost) {
        TIERKV_RETURN_IF_ERROR(slot->mark->wait());
        return slot;
      }
      all_.push_front(std::move(slot));
      break;  // the others came later
    }
    all_.push_back(std::move(slot));
  }
  return std::make_shared<Slot>(machine_);
}

// One for all slots of a call, that no slot of another has any more.
Status Slots::find_mark() {
  constexpr size_t kLook = 4;
  for (size_t i = 0, look = std::min(kLook, marks_.size()); i < look; ++i) {
    marks_.push_back(std::move(marks_.front()));
    marks_.pop_front();
    if (marks_.back().use_count() > 1) continue;
    next_ = marks_.back();
    return {};
  }
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Mark> made, machine_->make_mark());
  next_ = marks_.emplace_back(std::move(made));
  return {};
}

Result<std::shared_ptr<Slot>> Slots::take(size_t bytes) {
  TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, find());
  slot->put = false, slot->mark = nullptr;
  if (!next_) TIERKV_RETURN_IF_ERROR(find_mark());
  TIERKV_RETURN_IF_ERROR(slot->memory.reserve(std::max<size_t>(bytes, 4096)));
  if (slot->memory.size() <= kLargest) all_.push_back(slot);
  slot->held.store(true, std::memory_order_relaxed);
  Slot* const lent = slot.get();
  open_.emplace_back(lent, [slot = std::move(slot)](Slot*) { slot->held.store(false, std::memory_order_release); });
  return open_.back();
}

Status Slots::end_call() {
  if (open_.empty()) return {};
  Status put = machine_->put(*next_);
  for (const std::shared_ptr<Slot>& slot : open_) slot->mark = next_, slot->put = put.ok();
  open_.clear();
  next_ = nullptr;
  return put;
}

}  // namespace tierkv::cuda
