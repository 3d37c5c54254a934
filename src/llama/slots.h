// slots.h — the caller's sequence numbers, and which of the cache's sequences stands behind each.
//
// Invariant: a slot's sequence has all layers equally long between two calls of decode(). One that was parked in the middle of a
//            decode, or that takes memory to be shortened when there is none, cannot be shortened then; it is as soon as it is
//            used again.
// Errors:    what is too short of memory for a sentence throws std::bad_alloc and has changed nothing.
// Threads:   one at a time, as the host's.
#pragma once

#include <cstdint>
#include <vector>

#include "tierkv/cache.h"

namespace tierkv::llama {

class Slots {
 public:
  Slots(AdaptiveKVCache& cache, uint32_t count) : cache_(cache), slots_(count) {}
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  // One more; its number.
  int32_t add();

  // The sequence behind a number, made when it is first asked for.
  Result<SeqId> sequence(int32_t seq);
  // The same for one that is there: not_found, and none is made.
  Result<SeqId> find(int32_t seq) const;
  // The number of a sequence; -1: it has none.
  int32_t number_of(SeqId id) const noexcept;
  // Shortens one that a failed decode could not shorten. A parked one stays as it is.
  Status settle(int32_t seq);
  // Where it goes on. failed_precondition: it is parked. not_found: somebody removed it; the next one is new.
  Result<uint32_t> length(int32_t seq);
  Status bind(int32_t seq, SeqId id);
  Status fork(int32_t from, int32_t to);
  Status truncate(int32_t seq, uint32_t length);
  Status remove(int32_t seq);
  Status park(int32_t seq, const DeepOptions& options, DeepReport* report);
  Status wake(int32_t seq);

  // After a failed decode: as long as it was. One that cannot go back (a window too short) is removed whole, because a sequence
  // whose layers differ in length would answer wrongly ever after.
  void roll_back(int32_t seq, uint32_t length) noexcept;

 private:
  static constexpr uint32_t kWhole = 0xFFFFFFFFu;
  struct Slot {
    SeqId id = 0;
    bool live = false;
    uint32_t cut_to = kWhole;  // what a decode that failed left to be done
  };

  Status check(int32_t seq) const;
  Status make_whole(Slot& slot, int32_t seq);

  AdaptiveKVCache& cache_;
  std::vector<Slot> slots_;
};

}  // namespace tierkv::llama
