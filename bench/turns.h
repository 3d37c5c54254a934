// turns.h — timing several pieces of work against each other: one sample each in turn, so that whatever else the machine does hits all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "tierkv/status.h"

namespace tierkv::bench {

struct Contestant {
  std::function<Status()> work;
  std::function<Status()> check;  // of what the first call of work() did, before any number counts
  Timing timing;                  // filled by take_turns()
};

// Calls each once and checks it, then takes samples in rounds, another contestant first each time. A sample is one call to wake threads up
// and enough calls to be measured. Work of more than a few seconds is not repeated: its first call is its sample.
Status take_turns(const Settings& settings, std::vector<Contestant>& contestants);

// Returns when no thread of this process runs any more: workers that spin after a peer's call would take our cores.
void settle();

}  // namespace tierkv::bench
