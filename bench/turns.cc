#include "bench/turns.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/status_macros.h"

namespace tierkv::bench {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_ns(Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); }

double process_ns() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

constexpr double kNotRepeated = 4e9;  // a first call longer than this is the only one
constexpr double kNoWakeUp = 5e7;     // and against this the cost of waking threads is nothing

Result<double> time_calls(const Contestant& contestant, int calls) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) TIERKV_RETURN_IF_ERROR(contestant.work());
  return elapsed_ns(start) / calls;
}

}  // namespace

void settle() {
  for (int i = 0; i < 200; ++i) {
    const double cpu = process_ns();
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (process_ns() - cpu < 0.2 * elapsed_ns(start)) return;
  }
}

Status take_turns(const Settings& settings, std::vector<Contestant>& contestants) {
  const size_t rounds = settings.quick ? 1 : 15, least = settings.quick ? 1 : 3;
  const double sample_ns = settings.quick ? 1e5 : 1e7, total_ns = settings.quick ? 0 : 8e9;

  std::vector<double> first(contestants.size());
  std::vector<std::vector<double>> times(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    settle();
    TIERKV_ASSIGN_OR_RETURN(first[i], time_calls(contestants[i], 1));
    if (contestants[i].check) TIERKV_RETURN_IF_ERROR(contestants[i].check());
  }
  const auto begin = Clock::now();
  for (size_t round = 0; round < rounds && (round < least || elapsed_ns(begin) < total_ns); ++round) {
    for (size_t k = 0; k < contestants.size(); ++k) {
      const size_t i = (k + round) % contestants.size();
      if (first[i] > kNotRepeated) continue;
      settle();
      if (first[i] < kNoWakeUp) TIERKV_RETURN_IF_ERROR(contestants[i].work());
      const int calls = static_cast<int>(std::clamp(std::ceil(sample_ns / first[i]), 1.0, 1e4));
      TIERKV_ASSIGN_OR_RETURN(const double ns, time_calls(contestants[i], calls));
      times[i].push_back(ns);
    }
  }
  for (size_t i = 0; i < contestants.size(); ++i) {
    if (times[i].empty()) times[i].push_back(first[i]);
    std::sort(times[i].begin(), times[i].end());
    contestants[i].timing = {times[i][times[i].size() / 2], times[i].front(), static_cast<int>(times[i].size())};
  }
  return {};
}

}  // namespace tierkv::bench
