// memory_faults.h — each request for memory that a call makes is refused in turn: the call must say so, leave the cache as it was
// to the bit, and succeed when it is made again.
//
// Every try runs on a thread of its own: what a thread allocates once, at its first call, is refused too.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/failing_memory.h"
#include "inspect.h"

namespace tierkv::testing {

struct Call {
  std::string name;
  std::function<StatusCode()> run;
  // Null where there is no cache yet, or none any more.
  const AdaptiveKVCache* cache = nullptr;
};

struct Faults {
  bool digest = true;   // a failed call changes nothing; false where its header says what it may change
  bool sparse = false;  // calls that take long: all of the first requests, then fewer and fewer
  bool may_need_none = false;
  bool books = true;  // false: tables of a calibration are beside the arena
};

inline long next_request(long nth, const Faults& faults) { return faults.sparse && nth > 16 ? nth + nth / 6 : nth + 1; }

// `make` brings everything to the moment before the call. How often a request was refused.
inline long refuse_each(const std::function<Call()>& make, Faults faults = {}) {
  long refusals = 0;
  for (const auto mode : {FailingMemory::Mode::once, FailingMemory::Mode::from_then_on}) {
    Call call = make();
    for (long nth = 1;; nth = next_request(nth, faults)) {
      const uint64_t before = call.cache ? digest_of(*call.cache) : 0;
      StatusCode code = StatusCode::internal;
      bool refused = false;
      std::thread([&] {
        FailingMemory::arm(nth, mode);
        code = call.run();
        refused = FailingMemory::disarm();
      }).join();
      refusals += refused;
      const std::string where = call.name + ", request " + std::to_string(nth) +
                                (mode == FailingMemory::Mode::once ? " refused" : " and all after it refused");
      if (!refused) {
        EXPECT_EQ(code, StatusCode::ok) << where;
        break;
      }
      if (code == StatusCode::ok) {  // it did without; from the start again
        if (call.cache && faults.books) {
          EXPECT_EQ(books_problem(*call.cache), "") << where;
        }
        call = make();
        continue;
      }
      EXPECT_EQ(code, StatusCode::resource_exhausted) << where;
      if (call.cache) {
        if (faults.digest) {
          EXPECT_EQ(digest_of(*call.cache), before) << where << ": the cache has changed";
        }
        if (faults.books) {
          EXPECT_EQ(books_problem(*call.cache), "") << where;
        }
      }
      if (::testing::Test::HasFailure()) return refusals;
    }
  }
  return refusals;
}

}  // namespace tierkv::testing
