#include "bench/turns.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>
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
constexpr double kQuiet = 0.02;       // a sample that waited no longer than this share of its time counts

// How long the threads there are have been ready to run without a core, in all. 0 where the kernel does not say.
double waited_ns() {
  double total = 0;
  std::error_code none;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::ifstream in(task.path() / "schedstat");
    double ran = 0, waited = 0;
    if (in >> ran >> waited) total += waited;
  }
  return total;
}

struct Sample {
  double ns, waited;
};

Result<Sample> time_calls(const Contestant& contestant, int calls) {
  const double before = waited_ns();
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) TIERKV_RETURN_IF_ERROR(contestant.work());
  const double ns = elapsed_ns(start);
  return Sample{ns / calls, std::max(0.0, waited_ns() - before) / ns};
}

Status check(Contestant& contestant) {
  if (!contestant.error_of) return {};
  TIERKV_ASSIGN_OR_RETURN(contestant.error, contestant.error_of());
  if (contestant.error <= contestant.tolerance) return {};
  return error(StatusCode::internal, contestant.name, " is off by ", contestant.error,
               " from double precision on the same rows, at most ", contestant.tolerance, " is allowed");
}

size_t quiet(const std::vector<Sample>& samples) {
  return static_cast<size_t>(std::count_if(samples.begin(), samples.end(), [](const Sample& s) { return s.waited <= kQuiet; }));
}

// The quiet samples, or the quietest three.
Timing summary(std::vector<Sample> samples) {
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.waited < b.waited; });
  samples.resize(std::max(quiet(samples), std::min<size_t>(3, samples.size())));
  double waited = 0;
  for (const Sample& s : samples) waited += s.waited / static_cast<double>(samples.size());
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.ns < b.ns; });
  return {samples[samples.size() / 2].ns, samples.front().ns, static_cast<int>(samples.size()), waited};
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
  const size_t enough = settings.quick ? 1 : 15, least = settings.quick ? 1 : 3;
  const double sample_ns = settings.quick ? 1e5 : 1e7, total_ns = settings.quick ? 0 : 8e9, patience_ns = 3 * total_ns;

  std::vector<double> first(contestants.size());
  std::vector<std::vector<Sample>> samples(contestants.size());
  for (size_t i = 0; i < contestants.size(); ++i) {
    settle();
    TIERKV_ASSIGN_OR_RETURN(const Sample sample, time_calls(contestants[i], 1));
    first[i] = sample.ns;
    if (sample.ns > kNotRepeated) samples[i].push_back(sample);
    TIERKV_RETURN_IF_ERROR(check(contestants[i]));
  }
  const auto begin = Clock::now();
  for (size_t round = 0;; ++round) {
    size_t fewest = enough;
    for (size_t i = 0; i < contestants.size(); ++i) {
      if (first[i] <= kNotRepeated) fewest = std::min(fewest, quiet(samples[i]));
    }
    const double spent = elapsed_ns(begin);
    if (round >= least && (fewest >= enough || spent > patience_ns || (spent > total_ns && fewest >= least))) break;
    for (size_t k = 0; k < contestants.size(); ++k) {
      const size_t i = (k + round) % contestants.size();
      if (first[i] > kNotRepeated) continue;
      settle();
      if (first[i] < kNoWakeUp) TIERKV_RETURN_IF_ERROR(contestants[i].work());
      const int calls = static_cast<int>(std::clamp(std::ceil(sample_ns / first[i]), 1.0, 1e4));
      TIERKV_ASSIGN_OR_RETURN(const Sample sample, time_calls(contestants[i], calls));
      samples[i].push_back(sample);
    }
  }
  for (size_t i = 0; i < contestants.size(); ++i) contestants[i].timing = summary(std::move(samples[i]));
  return {};
}

}  // namespace tierkv::bench
