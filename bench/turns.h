// turns.h — timing several pieces of work against each other: one sample each in turn, so that whatever else the machine does hits
// all.
//
// It does not hit all alike: threads that spin at a barrier lose far more to a neighbour on their core than threads that share out
// small pieces. The kernel says how long our threads were ready and had no core; a sample that waited more than 2 % is not used
// while there are three better ones, and Timing::waited says what was used.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "tierkv/status.h"

namespace tierkv::bench {

struct Contestant {
  std::string name;  // in messages
  std::function<Status()> work;
  // The error of what the first call of work() did, looked at before any number counts, and the largest that is allowed.
  std::function<Result<double>()> error_of;
  double tolerance = 0;
  // Filled by take_turns():
  double error = 0;
  Timing timing = {};
};

// Calls each once and checks it, then takes samples in rounds, another contestant first each time. A sample is one call to wake
// threads up and enough calls to be measured. Work of more than a few seconds is not repeated: its first call is its sample.
Status take_turns(const Settings& settings, std::vector<Contestant>& contestants);

// Returns when no thread of this process runs any more: workers that spin after a peer's call would take our cores.
void settle();

}  // namespace tierkv::bench
