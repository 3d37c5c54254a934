// encode_failing_testing.h — encoding on a machine whose sends fail, one after the other.
#pragma once

#include "cuda/encode/encode_batch.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda::testing {

// make(): works, and check() of what has become of them. They are coded once with a send that fails, the so manieth, and once more.
template <class Make>
void for_failing_sends(const Make& make) {
  for (uint64_t failing = 1; failing < 12; ++failing) {
    TwinMachine machine({7, true}, 0, true);
    auto all = make();
    EncodeBatch batch(machine);
    machine.sends_that_fail = failing;
    for (int round = 0; round < 2; ++round) {
      batch.encode(all.works, attn::in_turn());
      all.check();
    }
  }
}

}  // namespace tierkv::cuda::testing
