// parallel.h — loops of the solvers, on as many threads as there are processors, as the caller allows, or as the system gives.
//
// Errors: what a body throws, std::bad_alloc say, is thrown to the caller when the bodies under way are done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

#include "base/thread_pool.h"

namespace tierkv::solve {

// body(i) for every i < count, in any order. Which thread does what must not matter to the result. `most` threads, the caller
// counted; 0: one for each processor.
template <class Body>
void for_each_index(uint32_t count, const Body& body, uint32_t most = 0) {
  ThreadPool pool(std::min(count, most != 0 ? most : std::max(1u, std::thread::hardware_concurrency())));
  pool.run(count, body);
}

}  // namespace tierkv::solve
