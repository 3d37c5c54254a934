// pressure.h — calls that lack memory, tried again after the caller's handler made room (tierkv/cache.h: PressureHandler).
//
// No lock is held while the handler runs: `call` takes what locks it needs and lets go of them before it returns. It must change
// nothing when it fails, so that trying it whole again is clean.
#pragma once

#include <cstdint>

#include "cache/impl.h"
#include "cache/look_back.h"

namespace tierkv::cache {

inline constexpr uint32_t kMostAttempts = 16;  // of the handler in one call: one that frees nothing must not loop for ever

inline StatusCode code_of(const Status& status) { return status.code(); }
template <class T>
StatusCode code_of(const Result<T>& result) {
  return result.ok() ? StatusCode::ok : result.status().code();
}

inline const Status& status_of(const Status& status) { return status; }
template <class T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}
// A call that lacks memory because the cold file did not take the blocks that would have made room: says that of both.
Status not_spilled(const Status& refused, const Status& file);

// `better`: what is only better gives way to it (look_back.h).
// call(needed) sets `needed` to the bytes it lacks, at least and as far as it knows; 0: it is not this cache's memory that it
// lacks.
template <class Call>
auto with_pressure(AdaptiveKVCache::Impl& impl, SeqId seq, Call&& call, bool better = false) {
  for (uint32_t attempt = 0;; ++attempt) {
    uint64_t needed = 0;
    auto result = call(needed);
    if (code_of(result) != StatusCode::resource_exhausted || needed == 0 || attempt == kMostAttempts) return result;
    if (impl.end_waiting()) continue;  // what waits for tables takes twice the room of an archive
    if (better && drop_promoted(impl, seq)) continue;
    Status file;
    if (impl.make_room_by_spilling(seq, needed, file)) continue;
    if (impl.make_others_room(seq, needed, attempt)) continue;
    if (!file.ok()) return decltype(result)(not_spilled(status_of(result), file));
    return result;
  }
}

}  // namespace tierkv::cache
