#include "store/block_store.h"

#include <bit>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "store/packed_group.h"

namespace tierkv::store {

uint64_t payload_checksum(std::span<const std::byte> keys, std::span<const std::byte> values) {
  const uint64_t parts[2] = {checksum(keys), checksum(values)};
  return checksum(std::as_bytes(std::span(parts)));
}

uint64_t payload_checksum(const PayloadSizes& sizes, std::span<const std::byte> payload) {
  return payload_checksum(payload.first(sizes.keys), payload.subspan(sizes.value_offset(), sizes.values));
}

// --- payloads

Payload::~Payload() {
  if (at_) arena_->release(at_, held(), tag_);
}

void Payload::swap(Payload& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(at_, other.at_);
  std::swap(sizes_, other.sizes_);
  std::swap(room_, other.room_);
  std::swap(tag_, other.tag_);
}

uint64_t Payload::compute_checksum() const { return payload_checksum(sizes_, {at_, sizes_.total()}); }

Payload BlockStore::allocate(const quant::CodecEntry& codec, Tier tier, Arena::Use use) {
  Payload out;
  out.sizes_ = sizes_(codec);
  out.room_ = room(out.sizes_, tier);
  out.tag_ = static_cast<MemoryTag>(tier);
  out.arena_ = &arena_;
  out.at_ = static_cast<std::byte*>(arena_.allocate(out.held(), out.tag_, use));
  if (out.at_) std::memset(out.at_, 0, out.held());
  return out;
}

// --- headers

BlockHeader* BlockStore::take_header(Arena::Use use) {
  std::unique_lock lock(mutex_);
  if (!open_) {
    // The arena's lock is not taken under this one: both are leaves.
    lock.unlock();
    void* memory = arena_.allocate(kSlabBytes, MemoryTag::bookkeeping, use);
    if (!memory) return nullptr;
    lock.lock();
    link(new (memory) Slab);
    free_slots_ += kSlots;
  }
  Slab* slab = open_;
  const uint32_t slot = static_cast<uint32_t>(std::countr_one(slab->used));
  slab->used |= 1u << slot;
  --free_slots_;
  if (slab->used == (1u << kSlots) - 1) unlink(slab);
  auto* header = new (reinterpret_cast<std::byte*>(slab) + kSlabHead + slot * sizeof(BlockHeader)) BlockHeader;
  header->slot = static_cast<uint8_t>(slot);
  return header;
}

void BlockStore::give_header(BlockHeader* header) noexcept {
  const uint32_t slot = header->slot;
  auto* slab = reinterpret_cast<Slab*>(reinterpret_cast<std::byte*>(header) - slot * sizeof(BlockHeader) - kSlabHead);
  header->~BlockHeader();
  {
    std::lock_guard lock(mutex_);
    if (slab->used == (1u << kSlots) - 1) link(slab);
    slab->used &= ~(1u << slot);
    ++free_slots_;
    if (slab->used != 0) return;
    unlink(slab);
    free_slots_ -= kSlots;
  }
  arena_.release(slab, kSlabBytes, MemoryTag::bookkeeping);
}

void BlockStore::link(Slab* slab) {
  slab->previous = nullptr;
  slab->next = open_;
  if (open_) open_->previous = slab;
  open_ = slab;
}

void BlockStore::unlink(Slab* slab) {
  (slab->previous ? slab->previous->next : open_) = slab->next;
  if (slab->next) slab->next->previous = slab->previous;
}

size_t BlockStore::header_bytes_for(size_t count) const {
  std::lock_guard lock(mutex_);
  return count > free_slots_ ? (count - free_slots_ + kSlots - 1) / kSlots * kSlabBytes : 0;
}

// --- blocks

BlockHandle BlockStore::seal(Payload payload, uint64_t checksum, const quant::CodecEntry& codec, Tier tier,
                             const quant::CodecEntry* source, Arena::Use use) {
  BlockHeader* header = take_header(use);
  if (!header) return {};
  header->tier = tier;
  header->source = source;
  become_resident(header, std::move(payload), codec, checksum);
  return BlockHandle(header);
}

void BlockStore::release(BlockHandle block) noexcept {
  BlockHeader* header = block.header_;
  // acq_rel: the last owner must see every read of the others finished before the bytes are reused.
  if (header->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  drop_place(header);
  if (header->copy) cold_->release(header->copy);
  give_header(header);
}

bool BlockStore::intact(BlockHandle block) const {
  const BlockBytes b = bytes(block);
  return payload_checksum(b.keys, b.values) == block.checksum();
}

// --- states

Payload BlockStore::take_payload(BlockHeader* header) noexcept {
  Payload out;
  out.arena_ = &arena_;
  out.sizes_ = sizes_(*header->codec);
  out.room_ = room(out.sizes_, header->tier);
  out.tag_ = static_cast<MemoryTag>(header->tier);
  out.at_ = static_cast<std::byte*>(std::exchange(header->place, nullptr));
  return out;
}

void BlockStore::drop_place(BlockHeader* header) noexcept {
  switch (header->state) {
    case BlockState::resident: (void)take_payload(header); break;
    case BlockState::packed: static_cast<PackedGroup*>(header->place)->leave(); break;
    case BlockState::spilled: cold_->release(static_cast<ColdCopy*>(header->place)); break;
    case BlockState::away:
      if (header->place) far_->let_go(header->place);
      break;
  }
}

void BlockStore::become_packed(BlockHeader* header, PackedGroup* group) noexcept {
  header->state = BlockState::packed;
  header->place = group;
  group->join();
}

void BlockStore::become_resident(BlockHeader* header, Payload payload, const quant::CodecEntry& codec, uint64_t sum) noexcept {
  header->state = BlockState::resident;
  header->codec = &codec;
  header->checksum = sum;
  header->place = std::exchange(payload.at_, nullptr);
}

// Another header stands for the same rows.
void BlockStore::share_copy(const BlockHeader* from, BlockHeader* to) noexcept {
  to->copy = from->copy;
  if (to->copy) cold_->retain(to->copy);
}

Result<BlockHandle> BlockStore::restore(BlockHandle block) {
  ColdCopy& copy = *block.header_->copy;
  const auto no_room = [&] {
    return error(StatusCode::resource_exhausted, "no room for ", copy.sizes.total(), " bytes of a cold copy");
  };
  Payload payload = allocate(*copy.codec, block.tier(), Arena::Use::normal);
  if (!payload) return no_room();
  TIERKV_RETURN_IF_ERROR(cold_->read(copy, {payload.at_, copy.sizes.total()}));
  const BlockHandle made = seal(std::move(payload), copy.checksum, *copy.codec, block.tier(), block.source(), Arena::Use::normal);
  if (!made) return no_room();
  return made;
}

Status BlockStore::spill(BlockHandle block, std::span<const std::byte> summary) {
  BlockHeader* header = block.header_;
  const PayloadSizes sizes = sizes_(*header->codec);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(header->place), sizes.total());
  TIERKV_ASSIGN_OR_RETURN(ColdCopy* const record, cold_->write_now(*header->codec, sizes, header->checksum, bytes, summary));
  (void)take_payload(header);
  header->state = BlockState::spilled;
  header->place = record;
  return {};
}

bool BlockStore::send_away(BlockHandle block) noexcept {
  BlockHeader* header = block.header_;
  if (!far_ || (summary_ != 0 && header->tier == Tier::archive)) return false;
  const PayloadSizes sizes = sizes_(*header->codec);
  void* const held = far_->hold({header->checksum, sizes.keys, sizes.values});
  if (!held) return false;
  (void)take_payload(header);
  header->state = BlockState::away;
  header->place = held;
  return true;
}

// Only bytes that match are anybody's.
Status BlockStore::read_away(const BlockHeader* header, std::span<std::byte> out) const {
  if (!header->place) return error(StatusCode::data_loss, "the block's bytes were on a device alone, and went with it");
  const PayloadSizes sizes = sizes_(*header->codec);
  TIERKV_RETURN_IF_ERROR(far_->read(header->place, out.first(sizes.keys), out.subspan(sizes.value_offset(), sizes.values)));
  if (payload_checksum(sizes, out) == header->checksum) return {};
  return error(StatusCode::data_loss, "bytes from the device do not match their checksum");
}

Status BlockStore::bring_back(BlockHandle block) {
  BlockHeader* header = block.header_;
  Payload payload = allocate(*header->codec, header->tier, Arena::Use::normal);
  if (!payload) {
    return error(StatusCode::resource_exhausted, "no room for ", sizes_(*header->codec).total(),
                 " bytes of a block that comes back from the device");
  }
  TIERKV_RETURN_IF_ERROR(read_away(header, {payload.at_, payload.sizes_.total()}));
  drop_place(header);
  become_resident(header, std::move(payload), *header->codec, header->checksum);
  return {};
}

void BlockStore::give_up(BlockHandle block) noexcept {
  drop_place(block.header_);
  block.header_->place = nullptr;
}

Status BlockStore::load(BlockHandle block, std::vector<std::byte>& out) const {
  if (block.away()) {
    out.assign(sizes_(*block.codec()).total(), std::byte{0});
    return read_away(block.header_, out);
  }
  ColdCopy& record = *spilled(block);
  out.resize(record.sizes.total());
  return cold_->read(record, out);
}

BlockStore::Price BlockStore::price(std::span<BlockHandle* const> blocks) const {
  Price out;
  size_t shared = 0;
  for (const BlockHandle* block : blocks) {
    if (block->references() == 1) out.frees += held_bytes(*block->codec(), block->tier());
    else ++shared;
  }
  out.headers = header_bytes_for(shared);
  return out;
}

bool BlockStore::pack(std::span<BlockHandle* const> blocks, std::unique_ptr<PackedGroup> group, std::span<const std::byte> bytes) {
  std::vector<BlockHeader*> fresh(blocks.size(), nullptr);  // of blocks that others hold as well
  std::vector<BlockHeader*> owners;                         // of the donors
  std::vector<Payload> donors;
  owners.reserve(blocks.size());
  donors.reserve(blocks.size());
  group->reserve(blocks.size());  // nothing throws from here on
  bool room = true;
  for (size_t i = 0; room && i < blocks.size(); ++i) {
    if (blocks[i]->references() == 1) continue;
    fresh[i] = take_header(Arena::Use::normal);
    room = fresh[i] != nullptr;
  }
  // The payloads leave their headers for a moment. Nobody reads them: this is the only reference, under its sequence's lock.
  for (size_t i = 0; room && i < blocks.size(); ++i) {
    if (fresh[i]) continue;
    owners.push_back(blocks[i]->header_);
    if (blocks[i]->resident()) donors.push_back(take_payload(owners.back()));
    else donors.emplace_back();  // a device has it: nothing to take over
  }
  if (!room || !group->put(arena_, bytes, donors)) {
    for (size_t i = 0; i < donors.size(); ++i) {
      if (owners[i]->state == BlockState::resident) owners[i]->place = std::exchange(donors[i].at_, nullptr);
    }
    for (BlockHeader* header : fresh) {
      if (header) give_header(header);
    }
    return false;
  }
  PackedGroup* const members = group.release();  // they own it from here on
  for (BlockHeader* header : owners) {
    if (header->state == BlockState::away) drop_place(header);
    become_packed(header, members);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!fresh[i]) continue;
    fresh[i]->tier = blocks[i]->tier();
    fresh[i]->codec = blocks[i]->codec();
    fresh[i]->source = blocks[i]->source();
    fresh[i]->checksum = blocks[i]->checksum();
    share_copy(blocks[i]->header_, fresh[i]);
    become_packed(fresh[i], members);
    release(*blocks[i]);
    *blocks[i] = BlockHandle(fresh[i]);
  }
  return true;
}

}  // namespace tierkv::store
