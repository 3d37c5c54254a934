// parallel.h — loops of the solvers, on as many threads as there are processors, or as the system gives.
//
// Errors: what a body throws, std::bad_alloc say, is thrown to the caller when the bodies under way are done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

#include "base/thread_pool.h"

namespace tierkv::solve {

// body(i) for every i < count, in any order. Which thread does what must not matter to the result.
template <class Body>
void for_each_index(uint32_t count, const Body& body) {
  ThreadPool pool(std::min(count, std::max(1u, std::thread::hardware_concurrency())));
  pool.run(count, body);
}

}  // namespace tierkv::solve
