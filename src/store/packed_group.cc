#include "store/packed_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checksum.h"

namespace tierkv::store {

void PackedGroup::leave() noexcept {
  if (members_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

bool PackedGroup::put(Arena& arena, std::span<const std::byte> bytes, std::span<Payload> donors) {
  arena_ = &arena;
  reserve(1);
  if (void* at = arena.allocate(bytes.size(), MemoryTag::parked)) {
    pieces_.push_back({static_cast<std::byte*>(at), bytes.size()});
  } else {
    size_t room = 0, pieces = 0;
    for (const Payload& donor : donors) {
      if (room >= bytes.size()) break;
      if (donor) room += donor.held(), ++pieces;
    }
    if (room < bytes.size()) return false;
    reserve(pieces);
    for (Payload& donor : donors) {
      if (pieces_.size() == pieces) break;
      if (!donor) continue;
      const size_t size = donor.held();
      arena.retag(size, donor.tag_, MemoryTag::parked);
      pieces_.push_back({std::exchange(donor.at_, nullptr), size});
    }
  }
  size_ = bytes.size();
  checksum_ = checksum(bytes);
  for (const Piece& piece : pieces_) {
    const size_t n = std::min(piece.bytes, bytes.size());
    std::memcpy(piece.at, bytes.data(), n);
    bytes = bytes.subspan(n);
  }
  return true;
}

std::vector<std::byte> PackedGroup::read() const {
  std::vector<std::byte> out(size_);
  size_t done = 0;
  for (const Piece& piece : pieces_) {
    const size_t n = std::min(piece.bytes, size_ - done);
    std::memcpy(out.data() + done, piece.at, n);
    done += n;
  }
  return out;
}

bool PackedGroup::intact() const { return checksum(read()) == checksum_; }

void PackedGroup::release() noexcept {
  for (const Piece& piece : pieces_) arena_->release(piece.at, piece.bytes, MemoryTag::parked);
  pieces_.clear();
  size_ = 0;
}

size_t PackedGroup::held() const {
  size_t total = 0;
  for (const Piece& piece : pieces_) total += Arena::rounded(piece.bytes);
  return total;
}

// --- the way back

Unpacking::Unpacking(BlockStore& store, std::vector<BlockHandle*> blocks)
    : store_(store), group_(*static_cast<PackedGroup*>(blocks[0]->header_->place)), bytes_(group_.read()) {
  slots_.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) slots_[i].block = blocks[i];
  donors_.reserve(blocks.size());
  group_.reserve(blocks.size());
}

Unpacking::~Unpacking() {
  if (surrendered_) {
    for (Slot& slot : slots_) {
      if (slot.payload) donors_.push_back(std::move(slot.payload));
    }
    // surrender() saw to it that they suffice.
    (void)group_.put(store_.arena_, bytes_, donors_);
  }
  for (Slot& slot : slots_) {
    if (slot.fresh) store_.give_header(slot.fresh);
  }
}

// The group's memory goes back to the arena, if it is this sequence's alone. REQUIRES: mutex_ held.
bool Unpacking::surrender() {
  if (surrendered_ || made_ < bytes_.size()) return false;
  if (group_.members_.load(std::memory_order_acquire) != slots_.size()) return false;
  for (const Slot& slot : slots_) {
    if (slot.block->references() != 1) return false;
  }
  group_.release();
  surrendered_ = true;
  return true;
}

bool Unpacking::allocate(size_t index, const quant::CodecEntry& codec) {
  Slot& slot = slots_[index];
  const Tier tier = slot.block->tier();
  Payload fresh = store_.allocate(codec, tier, Arena::Use::normal);
  std::lock_guard lock(mutex_);
  if (!fresh && surrender()) fresh = store_.allocate(codec, tier, Arena::Use::normal);
  if (!fresh && surrendered_) fresh = store_.allocate(codec, tier, Arena::Use::normal);  // another thread has just done it
  if (!fresh) return false;
  const uint64_t made = made_ + fresh.held() - (slot.payload ? slot.payload.held() : 0);
  if (surrendered_ && made < bytes_.size()) return false;  // it could not be taken back
  made_ = made;
  slot.payload = std::move(fresh);
  slot.codec = &codec;
  return true;
}

bool Unpacking::sealed(size_t index) {
  Slot& slot = slots_[index];
  slot.checksum = slot.payload.compute_checksum();
  if (slot.block->references() == 1) return true;
  slot.fresh = store_.take_header(Arena::Use::normal);
  return slot.fresh != nullptr;
}

void Unpacking::commit() noexcept {
  surrendered_ = false;
  for (Slot& slot : slots_) {
    const BlockHandle old = *slot.block;
    if (slot.fresh) {
      // The fork keeps the packed one.
      BlockHeader* fresh = std::exchange(slot.fresh, nullptr);
      fresh->tier = old.tier();
      store_.share_copy(old.header_, fresh);
      store_.become_resident(fresh, std::move(slot.payload), *slot.codec, slot.checksum);
      *slot.block = BlockHandle(fresh);
      store_.release(old);
    } else {
      store_.drop_place(old.header_);
      old.header_->source = nullptr;  // the rows come from the archive now
      store_.become_resident(old.header_, std::move(slot.payload), *slot.codec, slot.checksum);
    }
  }
}

}  // namespace tierkv::store
