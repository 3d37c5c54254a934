// tail.h — the hot tail of one KV head: the newest rows as 16-bit floats in one buffer that grows geometrically in place.
//
// Linear (full attention): rows lie oldest first, contiguous, so that a view is zero-copy; rows leave at the front as blocks
// graduate, and the gap is closed by one move when the end is reached (amortised, at most one row moved per row appended). Ring
// (sliding windows that fit the hot tier): the row of position p lies in slot p % capacity and new rows overwrite what left the
// window. Attention does not care about slot order, so rows are never moved back into order; a view is at most two runs.
//
// Sharing:  the buffer is reference counted; a fork shares it until one side writes (reserve() copies then).
// Growth:   doubling from 16 rows to 4096, then by a quarter; a linear tail that knows its largest size stops exactly there, and
//           grows in fifths of it where memory is not limited: sequences may be short.
// Threads:  none; the sequence's lock protects it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/arena_vector.h"
#include "tiers/version.h"

namespace tierkv::tiers {

struct alignas(64) TailBuffer {
  std::atomic<uint32_t> refs{1};
  uint32_t capacity = 0;  // rows
  uint32_t head_dim = 0;

  uint16_t* keys() { return reinterpret_cast<uint16_t*>(this + 1); }
  uint16_t* values() { return keys() + static_cast<size_t>(capacity) * head_dim; }
  const uint16_t* keys() const { return reinterpret_cast<const uint16_t*>(this + 1); }
  const uint16_t* values() const { return keys() + static_cast<size_t>(capacity) * head_dim; }
  static size_t total_bytes(uint32_t capacity, uint32_t head_dim) {
    return sizeof(TailBuffer) + static_cast<size_t>(capacity) * head_dim * 2 * sizeof(uint16_t);
  }
};
static_assert(sizeof(TailBuffer) == 64);

class Tail {
 public:
  // A run of rows that lie one after the other, the first at `position`.
  struct Run {
    const uint16_t* keys = nullptr;
    const uint16_t* values = nullptr;
    uint32_t rows = 0;
    uint32_t first_position = 0;
    const uint32_t* positions = nullptr;  // when they are not consecutive
  };

  void configure(uint32_t head_dim, uint32_t signals, bool ring) {
    head_dim_ = head_dim;
    signals_ = signals;
    ring_ = ring;
  }

  uint32_t rows() const { return end_ - begin_; }
  bool ring() const { return ring_; }
  uint32_t capacity() const { return buffer_ ? buffer_->capacity : 0; }
  uint32_t reallocations() const { return reallocations_; }
  uint32_t position(uint32_t row) const { return sparse() ? positions_[row] : first_position_ + row; }
  uint32_t first_position() const { return rows() ? position(0) : first_position_; }
  const uint16_t* key_row(uint32_t row) const { return buffer_->keys() + static_cast<size_t>(slot(row)) * head_dim_; }
  const uint16_t* value_row(uint32_t row) const { return buffer_->values() + static_cast<size_t>(slot(row)) * head_dim_; }
  uint16_t* key_row(uint32_t row) {
    version_.may_change();
    return buffer_->keys() + static_cast<size_t>(slot(row)) * head_dim_;
  }
  uint16_t* value_row(uint32_t row) {
    version_.may_change();
    return buffer_->values() + static_cast<size_t>(slot(row)) * head_dim_;
  }
  // Where the contents of a row go that was pushed before they were there. They are what the row was said to be from the beginning,
  // so the version stays.
  uint16_t* coming_key(uint32_t row) { return buffer_->keys() + static_cast<size_t>(slot(row)) * head_dim_; }
  uint16_t* coming_value(uint32_t row) { return buffer_->values() + static_cast<size_t>(slot(row)) * head_dim_; }
  // For as long as it is the same, the row of a position is the same, wherever it lies: rows came behind the others and left at the
  // front, and nothing else happened.
  uint64_t version() const { return version_.number(); }
  // [signals] of a row; signals > 0.
  float* stats_row(uint32_t row) { return stats_.data() + static_cast<size_t>(row) * signals_; }
  const float* stats_row(uint32_t row) const { return stats_.data() + static_cast<size_t>(row) * signals_; }
  // At most two runs (the second empty unless a ring wraps).
  void runs(Run out[2]) const;

  // The next row will be `position`. After eviction and truncation that may leave a gap behind the last row, which only a list of
  // positions can say. False: no memory for it.
  [[nodiscard]] bool continue_at(Arena& arena, uint32_t position);
  // Room for `extra` more rows, in a buffer nobody else sees. `most` bounds a linear tail's expected size (0: unknown). On failure
  // nothing the caller can see has changed.
  [[nodiscard]] bool reserve(Arena& arena, uint32_t extra, uint32_t most, Arena::Use use = Arena::Use::normal);
  // The next row; REQUIRES a successful continue_at() and reserve().
  void push(uint32_t position, uint16_t*& key, uint16_t*& value);

  void drop_front(uint32_t count);
  // Forgets rows at positions >= length; the next row will be `length`.
  void truncate(uint32_t length);
  // Puts `count` rows that came before the first back in front of it. REQUIRES: linear, and can_push_front(count).
  bool can_push_front(uint32_t count) const;
  void push_front(uint32_t count, const uint16_t* keys, const uint16_t* values, const float* stats);
  // Keeps the rows with keep[i] != 0. REQUIRES: linear, and reserve_positions() and reserve(0) succeeded.
  [[nodiscard]] bool reserve_positions(Arena& arena);
  void keep(std::span<const uint8_t> keep);
  void shrink(Arena& arena, uint32_t wanted);

  // For snapshots: makes an empty tail hold `rows` rows, contents undefined and statistics zero, at `positions` (null: consecutive
  // from first_position). A ring gets back its old capacity, which decides where its runs split and so the order attention adds in;
  // a linear tail gets just enough.
  // REQUIRES: configured, never used; ring_capacity >= rows for a ring. False: no memory; reset() frees what there is.
  [[nodiscard]] bool restore(Arena& arena, uint32_t rows, uint32_t first_position, const uint32_t* positions,
                             uint32_t ring_capacity);

  [[nodiscard]] bool clone_from(Arena& arena, const Tail& other);
  void swap(Tail& other);
  void reset(Arena& arena);

  // Bytes of the buffer, and of the rows in it.
  size_t buffer_bytes() const { return buffer_ ? Arena::rounded(TailBuffer::total_bytes(buffer_->capacity, head_dim_)) : 0; }
  size_t payload_bytes() const { return static_cast<size_t>(rows()) * head_dim_ * 2 * sizeof(uint16_t); }
  const void* buffer_identity() const { return buffer_; }
  // Of the buffer, this tail's own included. REQUIRES: there is a buffer.
  uint32_t buffer_references() const { return buffer_->refs.load(std::memory_order_relaxed); }
  size_t bookkeeping_bytes() const { return positions_.storage_bytes() + stats_.storage_bytes(); }

 private:
  bool sparse() const { return !positions_.empty(); }
  uint32_t slot(uint32_t row) const { return ring_ ? (first_position_ + row) % buffer_->capacity : begin_ + row; }
  [[nodiscard]] bool rebuild(Arena& arena, uint32_t capacity, Arena::Use use = Arena::Use::normal);
  void copy_rows(TailBuffer& to, uint32_t to_capacity) const;
  void move_to_front();
  void close_gap(Arena& arena, uint32_t needed, Arena::Use use);

  TailBuffer* buffer_ = nullptr;
  uint32_t head_dim_ = 0;
  uint32_t signals_ = 0;
  uint32_t begin_ = 0;  // linear: slot of the first row; ring: always 0, rows() counts
  uint32_t end_ = 0;
  uint32_t first_position_ = 0;
  uint32_t reallocations_ = 0;
  Version version_;
  bool ring_ = false;
  bool settled_ = false;             // it has taken the smaller buffer of a short sequence, or need not
  ArenaVector<uint32_t> positions_;  // parallel to the rows once one of them was evicted
  ArenaVector<float> stats_;         // [rows][signals]
};

}  // namespace tierkv::tiers
