// clock.h — seconds on a clock that never goes back, for differences.
#pragma once

#include <chrono>

namespace tierkv::engine {

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace tierkv::engine
