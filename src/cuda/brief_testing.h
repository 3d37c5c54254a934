// brief_testing.h — how many of their cases the tests on a device take, by the environment variable TIERKV_CUDA_BRIEF: all of them
// (not set), about a tenth (1: compute-sanitizer's memcheck), or as few as still launch every kernel (2: its racecheck, under which
// a launch takes ten to a hundred times as long).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace tierkv::cuda::testing {

// 0, 1 or 2.
inline int brief() {
  const char* const value = std::getenv("TIERKV_CUDA_BRIEF");
  return value == nullptr ? 0 : std::clamp(std::atoi(value), 1, 2);
}

// How many, by how brief it is to be.
inline uint32_t count(uint32_t all, uint32_t tenth, uint32_t least) {
  const uint32_t counts[] = {all, tenth, least};
  return counts[brief()];
}

// All of them; the first `least` where few are wanted.
inline std::vector<const char*> some(std::initializer_list<const char*> all, size_t least) {
  return {all.begin(), brief() == 2 ? all.begin() + least : all.end()};
}

// Every nth where few are wanted, beginning at `first`; which of them does not matter.
template <class T>
std::vector<T> every(std::vector<T> all, size_t nth, size_t first = 0) {
  if (brief() != 2) return all;
  std::vector<T> few;
  for (size_t i = first % nth; i < all.size(); i += nth) few.push_back(std::move(all[i]));
  return few;
}

}  // namespace tierkv::cuda::testing
