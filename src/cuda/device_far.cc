// device_far.cc — the part of DeviceAttention that has bytes of blocks which are nowhere else (base/far_bytes.h): they are held in
// the mirror, and fetched when the processor has to read them.
//
// Whoever lets go of one may hold any lock, and a call may be under way: entries that nobody needs are put on a list, which the
// next call looks at.
#include "attn/cpu_backend.h"
#include "base/arena.h"
#include "base/guarded.h"
#include "cuda/device_attention.h"
#include "cuda/mass/mass_beside.h"

namespace tierkv::cuda {

using attn::AttendWork;
using attn::BlockView;

void* DeviceAttention::hold(const Name& name) const noexcept {
  std::lock_guard lock(mutex_);
  look_at_gone();
  Places::Entry* const entry = mirror_.places().look(name.checksum, name.keys, name.values);
  if (entry) mirror_.places().keep(entry), ++counts_.kept_alone;
  kept_bytes_.store(mirror_.places().kept_bytes(), std::memory_order_relaxed);
  return entry;
}

void DeviceAttention::let_go(void* held) const noexcept {
  auto* const entry = static_cast<Places::Entry*>(held);
  std::lock_guard lock(gone_mutex_);
  if (entry->gone++ == 0) entry->next_gone = std::exchange(gone_, entry);
}

// REQUIRES: mutex_ is held.
void DeviceAttention::look_at_gone() const noexcept {
  std::lock_guard lock(gone_mutex_);
  while (Places::Entry* const entry = gone_) {
    gone_ = std::exchange(entry->next_gone, nullptr);
    for (uint32_t times = std::exchange(entry->gone, 0u); times != 0; --times) mirror_.places().give_up(entry);
  }
  kept_bytes_.store(mirror_.places().kept_bytes(), std::memory_order_relaxed);
}

Status DeviceAttention::read(const void* held, std::span<std::byte> keys, std::span<std::byte> values) const {
  const auto lock = alone();
  return guarded("bring a block from the device", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow({}));
    const Status asked = mirror_.fetch(*static_cast<const Places::Entry*>(held), keys, values);
    ++counts_.fetched;
    const Status waited = machine_->wait();  // whatever happened: it writes into memory that the caller frees
    (void)machine_->leave();
    return asked.ok() ? waited : asked;
  });
}

// Nobody waits for a call that is under way only to know a figure.
uint64_t DeviceAttention::held_bytes() const noexcept {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) look_at_gone();
  return kept_bytes_.load(std::memory_order_relaxed);
}

uint64_t DeviceAttention::refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }

// --- what the processor reads

Status DeviceAttention::bring_near(AttendWork& work, Near& near) const {
  const auto padded = [](const BlockView& view) { return Arena::rounded(view.keys.size()) + Arena::rounded(view.values.size()); };
  size_t bytes = 0;
  for (const auto& head : work.heads) {
    for (const BlockView& view : head) bytes += view.away() ? padded(view) : 0;
  }
  if (bytes == 0) return {};
  near.bytes.resize(bytes + Arena::kAlign);
  const auto address = reinterpret_cast<uintptr_t>(near.bytes.data());
  std::byte* at = near.bytes.data() + (Arena::kAlign - address % Arena::kAlign) % Arena::kAlign;
  Status asked;
  near.views.reserve(work.heads.size());
  for (auto& head : work.heads) {
    std::vector<BlockView>& views = near.views.emplace_back(head.begin(), head.end());
    for (BlockView& view : views) {
      if (!view.away() || !asked.ok()) continue;
      const Places::Entry* const entry = mirror_.places().look(view.sealed, view.keys.size(), view.values.size());
      if (!entry) {
        asked = error(StatusCode::data_loss, "a block's bytes are on a device alone, and not on this one");
        continue;
      }
      const std::span<std::byte> keys(at, view.keys.size()), values(at + Arena::rounded(keys.size()), view.values.size());
      asked = mirror_.fetch(*entry, keys, values);
      ++counts_.fetched;
      at += padded(view);
      view.keys = keys, view.values = values;
    }
    head = views;
  }
  const Status waited = machine_->wait();
  return asked.ok() ? waited : asked;
}

void DeviceAttention::attend_near(AttendWork& work, const Executor& run) const {
  const std::vector<std::span<const BlockView>> heads = work.heads;
  Near near;
  Status status = guarded("bring blocks from the device", [&] { return bring_near(work, near); });
  if (status.ok()) attn::cpu_backend().attend({&work, 1}, run);
  else work.status = std::move(status);
  work.heads = heads;
}

Status DeviceAttention::add_mass_near(const AttendWork& work, const float* lse, const Executor& run) const {
  bool away = false;
  for (size_t h = 0; h < work.heads.size(); ++h) {
    for (const BlockView& view : work.heads[h].subspan(work.mass[h].from)) away |= view.away();
  }
  if (!away) return add_mass_beside(work, lse, run);
  AttendWork alone = attn::mass_alone(work, work.mass, lse);
  attend_near(alone, run);
  return alone.status;
}

}  // namespace tierkv::cuda
