#include "tiers/tail.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace tierkv::tiers {
namespace {

void release_buffer(Arena& arena, TailBuffer* buffer) {
  if (!buffer || buffer->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const size_t bytes = TailBuffer::total_bytes(buffer->capacity, buffer->head_dim);
  arena.release(buffer, bytes, MemoryTag::hot);
}

uint32_t rounded_up(uint32_t rows, uint32_t step) { return (rows + step - 1) / step * step; }

// A tail that is bounded grows in a few even steps: doubling would leave short sequences with half of it empty. REQUIRES: needed <=
// most.
uint32_t stepped_capacity(uint32_t needed, uint32_t most) {
  const uint32_t step = std::max(16u, most / 5 / 8 * 8);
  return most - needed < step ? most : rounded_up(needed, step);
}

uint32_t grown_capacity(uint32_t now, uint32_t needed, uint32_t most) {
  constexpr uint32_t kFirst = 16, kDoubleUntil = 4096;
  uint64_t capacity = now ? now : kFirst;
  while (capacity < needed) capacity = capacity < kDoubleUntil ? capacity * 2 : capacity + capacity / 4;
  if (most && needed <= most) capacity = std::min<uint64_t>(capacity, most);
  return static_cast<uint32_t>(std::min<uint64_t>(capacity, 0xFFFFFFF0u));
}

}  // namespace

void Tail::runs(Run out[2]) const {
  out[0] = out[1] = Run{};
  const uint32_t n = rows();
  if (n == 0) return;
  const uint32_t first_slot = slot(0);
  const uint32_t first_run = ring_ ? std::min(n, buffer_->capacity - first_slot) : n;
  const auto run = [&](uint32_t at_slot, uint32_t row, uint32_t count) {
    const size_t offset = static_cast<size_t>(at_slot) * head_dim_;
    return Run{buffer_->keys() + offset, buffer_->values() + offset, count, position(row),
               sparse() ? positions_.data() + row : nullptr};
  };
  out[0] = run(first_slot, 0, first_run);
  if (first_run < n) out[1] = run(0, first_run, n - first_run);
}

bool Tail::continue_at(Arena& arena, uint32_t position) {
  if (rows() == 0 || sparse() || first_position_ + rows() == position) return true;
  if (!positions_.reserve(arena, rows() + 1)) return false;
  for (uint32_t i = 0, n = rows(); i < n; ++i) positions_.push_reserved(first_position_ + i);
  return true;
}

bool Tail::reserve(Arena& arena, uint32_t extra, uint32_t most, Arena::Use use) {
  const uint32_t needed = rows() + extra;
  if (sparse() && !positions_.reserve(arena, needed, use)) return false;
  if (signals_ && !stats_.reserve(arena, static_cast<size_t>(needed) * signals_, use)) return false;
  const bool shared = buffer_ && buffer_->refs.load(std::memory_order_acquire) != 1;
  const uint32_t capacity = this->capacity();
  if (buffer_ && !shared) {
    if (ring_ ? needed <= capacity : end_ + extra <= capacity) return true;
    // Closing the gap at the front costs rows() moves and buys begin_ appends: worth it from half on.
    if (!ring_ && needed <= capacity && (begin_ >= rows() / 2 || (most && capacity >= most))) {
      close_gap(arena, needed, use);
      return true;
    }
  }
  const bool steps = !ring_ && needed <= most && arena.limit() == 0;
  const uint32_t grown = steps ? stepped_capacity(needed, most) : grown_capacity(capacity, needed, most);
  const uint32_t wanted = needed <= capacity && shared ? capacity : grown;
  if (!rebuild(arena, std::max(wanted, needed), use)) return false;
  ++reallocations_;
  return true;
}

// After the first graduation half of the buffer is empty, in a sequence so short that this counts: it takes a smaller one, once.
// From then on buffers stay as they are. Where memory is limited pieces of other sizes are worth avoiding.
void Tail::close_gap(Arena& arena, uint32_t needed, Arena::Use use) {
  const uint32_t enough = rounded_up(needed, 8);
  const bool smaller = !settled_ && arena.limit() == 0 && enough + enough / 4 < buffer_->capacity;
  settled_ = true;
  if (smaller && rebuild(arena, enough, use)) ++reallocations_;
  else move_to_front();
}

bool Tail::rebuild(Arena& arena, uint32_t capacity, Arena::Use use) {
  void* memory = arena.allocate(TailBuffer::total_bytes(capacity, head_dim_), MemoryTag::hot, use);
  if (!memory) return false;
  TailBuffer* fresh = new (memory) TailBuffer;
  fresh->capacity = capacity;
  fresh->head_dim = head_dim_;
  if (rows()) copy_rows(*fresh, capacity);
  release_buffer(arena, buffer_);
  buffer_ = fresh;
  end_ = rows();
  begin_ = 0;
  return true;
}

void Tail::copy_rows(TailBuffer& to, uint32_t to_capacity) const {
  const size_t row_bytes = head_dim_ * sizeof(uint16_t);
  if (!ring_) {
    std::memcpy(to.keys(), key_row(0), rows() * row_bytes);
    std::memcpy(to.values(), value_row(0), rows() * row_bytes);
    return;
  }
  for (uint32_t i = 0; i < rows(); ++i) {
    const size_t offset = static_cast<size_t>((first_position_ + i) % to_capacity) * head_dim_;
    std::memcpy(to.keys() + offset, key_row(i), row_bytes);
    std::memcpy(to.values() + offset, value_row(i), row_bytes);
  }
}

void Tail::move_to_front() {
  const size_t row_bytes = head_dim_ * sizeof(uint16_t);
  const Tail& now = *this;  // to look at: rows that lie elsewhere are the same rows
  std::memmove(buffer_->keys(), now.key_row(0), rows() * row_bytes);
  std::memmove(buffer_->values(), now.value_row(0), rows() * row_bytes);
  end_ = rows();
  begin_ = 0;
}

void Tail::push(uint32_t position, uint16_t*& key, uint16_t*& value) {
  if (rows() == 0 && !sparse()) first_position_ = position;
  const uint32_t row = rows();
  ++end_;
  const size_t offset = static_cast<size_t>(slot(row)) * head_dim_;
  key = buffer_->keys() + offset;
  value = buffer_->values() + offset;
  if (sparse()) positions_.push_reserved(position);
  for (uint32_t signal = 0; signal < signals_; ++signal) stats_.push_reserved(0.0f);
}

void Tail::drop_front(uint32_t count) {
  if (sparse()) positions_.erase(0, count);
  if (signals_) stats_.erase(0, static_cast<size_t>(count) * signals_);
  if (ring_) {
    end_ -= count;
  } else {
    begin_ += count;
  }
  first_position_ += count;
  if (rows() == 0) begin_ = end_ = 0;
}

void Tail::truncate(uint32_t length) {
  version_.may_change();
  uint32_t keep = rows();
  while (keep > 0 && position(keep - 1) >= length) --keep;
  end_ = begin_ + keep;
  if (sparse()) positions_.resize_down(keep);
  if (signals_) stats_.resize_down(static_cast<size_t>(keep) * signals_);
  if (keep == 0) {
    begin_ = end_ = 0;
    first_position_ = length;
  }
}

bool Tail::can_push_front(uint32_t count) const {
  return buffer_ && !sparse() && buffer_->refs.load(std::memory_order_acquire) == 1 && rows() + count <= buffer_->capacity &&
         stats_.capacity() >= static_cast<size_t>(rows() + count) * signals_;
}

void Tail::push_front(uint32_t count, const uint16_t* keys, const uint16_t* values, const float* stats) {
  version_.may_change();
  const size_t row_values = head_dim_;
  const uint32_t old = rows();
  move_to_front();
  std::memmove(buffer_->keys() + count * row_values, buffer_->keys(), old * row_values * sizeof(uint16_t));
  std::memmove(buffer_->values() + count * row_values, buffer_->values(), old * row_values * sizeof(uint16_t));
  std::memcpy(buffer_->keys(), keys, count * row_values * sizeof(uint16_t));
  std::memcpy(buffer_->values(), values, count * row_values * sizeof(uint16_t));
  if (signals_) {
    for (size_t i = 0; i < static_cast<size_t>(count) * signals_; ++i) stats_.push_reserved(0.0f);
    std::memmove(stats_.data() + static_cast<size_t>(count) * signals_, stats_.data(),
                 static_cast<size_t>(old) * signals_ * sizeof(float));
    std::memcpy(stats_.data(), stats, static_cast<size_t>(count) * signals_ * sizeof(float));
  }
  end_ += count;
  first_position_ -= count;
}

bool Tail::reserve_positions(Arena& arena) { return positions_.reserve(arena, rows() + 1, Arena::Use::relief); }

void Tail::keep(std::span<const uint8_t> keep) {
  version_.may_change();
  const uint32_t n = rows();
  if (n == 0) return;
  const bool to_the_end = !sparse() && keep[n - 1];
  if (!sparse()) {
    for (uint32_t i = 0; i < n; ++i) positions_.push_reserved(first_position_ + i);
  }
  const size_t row_bytes = head_dim_ * sizeof(uint16_t);
  uint32_t to = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!keep[i]) continue;
    if (to != i) {
      std::memcpy(buffer_->keys() + static_cast<size_t>(begin_ + to) * head_dim_, key_row(i), row_bytes);
      std::memcpy(buffer_->values() + static_cast<size_t>(begin_ + to) * head_dim_, value_row(i), row_bytes);
      positions_[to] = positions_[i];
      if (signals_) std::memcpy(stats_row(to), stats_row(i), signals_ * sizeof(float));
    }
    ++to;
  }
  end_ = begin_ + to;
  positions_.resize_down(to);
  if (signals_) stats_.resize_down(static_cast<size_t>(to) * signals_);
  // Only the front went: positions need no list. Rows that are consecutive but end before the sequence does (a truncation into a
  // gap) keep theirs, because the next row does not continue them.
  if (to && to_the_end && positions_[to - 1] - positions_[0] == to - 1) {
    first_position_ = positions_[0];
    positions_.resize_down(0);
  }
}

void Tail::shrink(Arena& arena, uint32_t wanted) {
  wanted = std::max(wanted, rows());
  if (!buffer_ || buffer_->refs.load(std::memory_order_acquire) != 1 || buffer_->capacity <= 2 * wanted) return;
  (void)rebuild(arena, wanted);  // failing to shrink loses nothing
}

bool Tail::restore(Arena& arena, uint32_t rows, uint32_t first_position, const uint32_t* positions, uint32_t ring_capacity) {
  version_.may_change();
  if (positions && !positions_.reserve(arena, rows)) return false;
  if (signals_ && rows && !stats_.reserve(arena, static_cast<size_t>(rows) * signals_)) return false;
  const uint32_t capacity = ring_ ? ring_capacity : rows;
  if (capacity && !rebuild(arena, capacity)) return false;
  end_ = rows;
  first_position_ = first_position;
  for (uint32_t i = 0; positions && i < rows; ++i) positions_.push_reserved(positions[i]);
  for (size_t i = 0; i < static_cast<size_t>(rows) * signals_; ++i) stats_.push_reserved(0.0f);
  return true;
}

bool Tail::clone_from(Arena& arena, const Tail& other) {
  version_.may_change();
  if (!positions_.clone_from(arena, other.positions_) || !stats_.clone_from(arena, other.stats_)) return false;
  buffer_ = other.buffer_;
  if (buffer_) buffer_->refs.fetch_add(1, std::memory_order_relaxed);
  head_dim_ = other.head_dim_;
  signals_ = other.signals_;
  begin_ = other.begin_;
  end_ = other.end_;
  first_position_ = other.first_position_;
  reallocations_ = other.reallocations_;
  ring_ = other.ring_;
  settled_ = other.settled_;
  return true;
}

void Tail::swap(Tail& other) {
  version_.may_change();
  other.version_.may_change();
  std::swap(buffer_, other.buffer_);
  std::swap(head_dim_, other.head_dim_);
  std::swap(signals_, other.signals_);
  std::swap(begin_, other.begin_);
  std::swap(end_, other.end_);
  std::swap(first_position_, other.first_position_);
  std::swap(reallocations_, other.reallocations_);
  std::swap(ring_, other.ring_);
  std::swap(settled_, other.settled_);
  positions_.swap(other.positions_);
  stats_.swap(other.stats_);
}

void Tail::reset(Arena& arena) {
  version_.may_change();
  release_buffer(arena, buffer_);
  buffer_ = nullptr;
  begin_ = end_ = 0;
  positions_.reset(arena);
  stats_.reset(arena);
}

}  // namespace tierkv::tiers
