// thread_count.cc — trials of fewer threads and of all, and what the system says of its load.
#include "engine/thread_count.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

namespace tierkv::engine {
namespace {

constexpr double kLacking = 0.4;      // cores' worth of time that a step did not get
constexpr double kFaster = 0.95;      // a trial must be this much of the time before it
constexpr uint32_t kSteps = 3;        // of a trial of fewer threads, and of steps that lack time before one
constexpr uint32_t kStepsOfMore = 2;  // each of them may be as slow as fifty
constexpr uint32_t kFreeSteps = 8;    // a free moment is no free machine
constexpr uint32_t kWait = 16;        // steps before all threads are tried again
constexpr uint32_t kLongestWait = 1024;

}  // namespace

double ThreadCount::usual() const {
  std::array<double, kRecent> sorted = recent_;
  const size_t count = std::min(steps_, kRecent);
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
  return count > 0 ? sorted[count / 2] : 0.0;
}

void ThreadCount::try_with(Phase phase, uint32_t threads, double before) {
  phase_ = phase;
  settled_ = now_;
  now_ = threads;
  before_s_ = before;
  trial_steps_ = 0;
}

void ThreadCount::end_trial() {
  uint32_t& wait = phase_ == Phase::fewer ? wait_fewer_ : wait_more_;
  if (trial_s_ < kFaster * before_s_) {
    wait_fewer_ = 0;
    // Whoever went down a moment ago for nothing waits longer.
    if (phase_ == Phase::fewer) wait_more_ = std::max(wait_more_, kWait);
  } else {
    now_ = settled_;
    wait = std::clamp(2 * wait, kWait, kLongestWait);
  }
  phase_ = Phase::settled;
  steps_ = short_ = free_steps_ = 0;
  short_s_ = 0.0;
}

void ThreadCount::took(double wall_s, double cpu_s, uint32_t free_cores) {
  if (most_ < 2 || wall_s <= 0.0) return;
  if (phase_ != Phase::settled) {
    trial_s_ = trial_steps_ == 0 ? wall_s : std::min(trial_s_, wall_s);
    if (++trial_steps_ >= (phase_ == Phase::fewer ? kSteps : kStepsOfMore)) end_trial();
    return;
  }
  recent_[steps_++ % kRecent] = wall_s;
  free_steps_ = free_cores >= most_ ? free_steps_ + 1 : 0;
  const double had = cpu_s / wall_s;
  const bool lacking = static_cast<double>(now_) - had > kLacking;
  short_ = lacking ? short_ + 1 : 0;
  short_s_ = lacking ? short_s_ + wall_s : 0.0;
  // One step is enough where somebody else is seen to run.
  if (now_ > 1 && short_ >= (free_cores < now_ ? 1 : kSteps) && steps_ > wait_fewer_) {
    try_with(Phase::fewer, std::clamp(static_cast<uint32_t>(had + 0.25), 1u, now_ - 1), short_s_ / short_);
  } else if (now_ < most_ && steps_ >= wait_more_ && free_steps_ >= kFreeSteps) {
    try_with(Phase::more, most_, usual());
  }
}

uint32_t free_cores(uint32_t own) {
  static const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/loadavg", "re"), std::fclose);
  uint32_t running = 0;
  if (!file || std::fscanf(file.get(), "%*s %*s %*s %u", &running) != 1) return cores;
  const uint32_t others = running > own ? running - own : 0;
  return cores > others ? cores - others : 0;
}

double processor_seconds() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return 0.0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace tierkv::engine
