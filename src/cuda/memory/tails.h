// tails.h — the hot rows of sequences on the device. A row is sent once, when it is new: the rows of a position stay the same for
// as long as a tail's version does (attn/backend.h: Settled).
//
// A strip is of one sequence and layer: [KV head][keys, values][room rows][head_dim], the row of position p in slot p - base. When
// its end is reached, or a version is another, all rows are sent again, from its begin on. Rows that are in the device's memory
// already are moved there (extend()), and where the end is reached then those before them move to the begin. A strip serves works
// whose heads have the same rows, one position after the other, which is what they have without eviction; others are sent with
// every call.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "attn/backend.h"
#include "cuda/memory/changes.h"
#include "cuda/memory/slots.h"

namespace tierkv::cuda {

class Tails {
 public:
  Tails(Machine& machine, Slots& slots, Changes& changes) : machine_(machine), slots_(slots), changes_(changes) {}
  ~Tails();
  Tails(const Tails&) = delete;
  Tails& operator=(const Tails&) = delete;

  struct Strip {
    std::vector<uint64_t> versions;  // of each head
    uint8_t* memory = nullptr;
    size_t row_bytes = 0;
    uint32_t room = 0;           // rows
    uint32_t base = 0, end = 0;  // positions: of the first slot, and behind the last row that was sent
    uint64_t used = 0;
    uint64_t change = 0;  // changes.h: the last by which rows came from the processor, or moved within it

    size_t side_bytes() const { return size_t{room} * row_bytes; }
    size_t bytes() const { return 2 * versions.size() * side_bytes(); }
    const uint8_t* keys(size_t head, uint32_t position) const {
      return memory + 2 * head * side_bytes() + size_t{position - base} * row_bytes;
    }
    const uint8_t* values(size_t head, uint32_t position) const { return keys(head, position) + side_bytes(); }
  };

  // `staged`: bytes that the calls of place() to come need altogether.
  Status begin_call(size_t staged);
  size_t staged_bytes(const attn::AttendWork& work) const;
  // The strip that has the rows of all views of the work behind its settled ones; null: this work cannot have one. Its new rows are
  // on their way then.
  Result<const Strip*> place(const attn::AttendWork& work);

  // Before place(), for who wants extend() by so many rows to find room afterwards: whatever is in the way of it goes.
  void clear_for(const attn::AttendWork& work, uint32_t more);

  // Whether all rows of the work's tail are there: place() will read none of them.
  bool has(const attn::AttendWork& work) const;
  // Room for new rows behind those that are there, which a caller fills: where. Null: it has not all rows before them, or no room.
  // Rows that are there may be on their way to the strip's begin then. The caller says whether he filled it.
  Result<Strip*> extend(const attn::TakeWork& work);
  static void filled(Strip& strip, uint32_t end) { strip.end = end; }
  static void spoiled(Strip& strip) { strip.versions[0] = 0; }
  // Rows of a block that are there and will stay as they are while nobody asks for anything else; null: some are not, or may be on
  // their way. REQUIRES: those that came from the device's own memory have arrived in the processor's.
  const uint8_t* rows_there(const attn::TailRows& rows, uint32_t first, uint32_t count, size_t row_bytes) noexcept;
  void forget(const void* owner) noexcept {
    if (const auto found = strips_.find(owner); found != strips_.end()) spoiled(*found->second);
  }

  uint64_t bytes() const { return bytes_; }
  uint64_t rows_sent() const { return rows_sent_; }  // of a head and a side, so far

 private:
  // Rows of a work's heads: position `first` to `end` - 1. False: they do not fit a strip.
  static bool rows_of(const attn::AttendWork& work, uint32_t& first, uint32_t& end, size_t& row_bytes);
  // The strip has these rows as far as it goes, and room for all of them.
  static bool fits(const attn::AttendWork& work, const Strip& strip, uint32_t first, uint32_t end, size_t row_bytes);
  Status send_rows(const attn::AttendWork& work, Strip& strip, uint32_t from, uint32_t end);
  static uint32_t room_for(uint32_t rows);
  Status slide(Strip& strip, uint32_t first);
  void drop_idle();
  void release(Strip& strip);

  static constexpr uint64_t kIdleCalls = 8192;

  Machine& machine_;
  Slots& slots_;
  Changes& changes_;
  std::shared_ptr<Slot> staging_;  // of the call under way; null: it sends nothing
  size_t staged_ = 0;
  std::unordered_map<const void*, std::unique_ptr<Strip>> strips_;  // by owner of the first head's views
  uint64_t call_ = 0, bytes_ = 0, rows_sent_ = 0;
};

}  // namespace tierkv::cuda
