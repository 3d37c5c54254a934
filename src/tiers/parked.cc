#include "tiers/parked.h"

#include <algorithm>
#include <cstring>

namespace tierkv::tiers {

bool PackedBytes::store(Arena& arena, std::span<const std::byte> bytes) {
  pieces_.reserve(1);
  void* at = arena.allocate(bytes.size(), MemoryTag::parked);
  if (!at) return false;
  arena_ = &arena;
  pieces_.push_back({static_cast<std::byte*>(at), bytes.size(), MemoryTag::parked});
  write(bytes);
  return true;
}

bool PackedBytes::take_over(Arena& arena, std::span<const std::byte> bytes, std::span<Block*> blocks) {
  size_t room = 0, pieces = 0;
  // 1 means that only the caller refers to it, and nobody can join without the lock of the caller's sequence.
  const auto own = [](const Block* block) { return block && block->refs.load(std::memory_order_acquire) == 1; };
  for (const Block* block : blocks) {
    if (room >= bytes.size()) break;
    if (own(block)) room += block->total_bytes(), ++pieces;
  }
  if (room < bytes.size()) return false;
  pieces_.reserve(pieces);
  arena_ = &arena;
  for (Block*& block : blocks) {
    if (pieces_.size() == pieces) break;
    if (!own(block)) continue;
    pieces_.push_back({block->key_data(), block->total_bytes(), static_cast<MemoryTag>(block->tier)});
    block->~Block();
    block = nullptr;
  }
  write(bytes);
  return true;
}

void PackedBytes::write(std::span<const std::byte> bytes) {
  size_ = bytes.size();
  for (const Piece& piece : pieces_) {
    const size_t n = std::min(piece.bytes, bytes.size());
    std::memcpy(piece.at, bytes.data(), n);
    bytes = bytes.subspan(n);
  }
}

void PackedBytes::keep(std::vector<std::byte> bytes) noexcept {
  release();
  kept_ = std::move(bytes);
  size_ = kept_.size();
}

std::vector<std::byte> PackedBytes::read() const {
  if (!kept_.empty()) return kept_;
  std::vector<std::byte> out(size_);
  size_t done = 0;
  for (const Piece& piece : pieces_) {
    const size_t n = std::min(piece.bytes, size_ - done);
    std::memcpy(out.data() + done, piece.at, n);
    done += n;
  }
  return out;
}

void PackedBytes::release() {
  for (const Piece& piece : pieces_) arena_->release(piece.at, piece.bytes, piece.tag);
  pieces_.clear();
  kept_ = {};
  size_ = 0;
}

size_t PackedBytes::held() const {
  size_t total = kept_.size();
  for (const Piece& piece : pieces_) total += Arena::rounded(piece.bytes);
  return total;
}

uint64_t Parked::rows(uint32_t kv_heads) const {
  return static_cast<uint64_t>(std::count(layers.begin(), layers.end(), true)) * kv_heads * (end - first);
}

}  // namespace tierkv::tiers
