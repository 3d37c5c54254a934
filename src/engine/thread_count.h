// thread_count.h — how many threads the next token is computed with, on a machine that may have other work.
//
// A token is some hundreds of short operations, and all threads of libllama meet after each of them. They wait by spinning, which
// is best on a machine that is theirs. Where another program has one of the cores, the others spin until the system lets their
// fellow go on, milliseconds at a time, and a token takes as long as fifty. Fewer threads are then faster than all.
//
// So the time of each step is watched, and the processor time that the process got in it. A step that got clearly less than its
// threads could use is a reason to try fewer; what is faster stays. When the machine looks free again, all are tried again. A try
// that fails doubles the wait before the next. On a machine that is ours nothing is ever tried.
//
// Threads:  one at a time.
#pragma once

#include <array>
#include <cstdint>

namespace tierkv::engine {

class ThreadCount {
 public:
  explicit ThreadCount(uint32_t most) : most_(most), now_(most), settled_(most) {}

  uint32_t most() const { return most_; }
  uint32_t now() const { return now_; }  // for the next step
  // The last step: its time, the processor time of the process meanwhile, and how many cores nobody else uses.
  void took(double wall_s, double cpu_s, uint32_t free_cores);

 private:
  enum class Phase { settled, fewer, more };
  static constexpr uint32_t kRecent = 5;

  void try_with(Phase phase, uint32_t threads, double before);
  void end_trial();
  double usual() const;  // the median of the last steps

  uint32_t most_, now_;
  uint32_t settled_;  // what a trial that fails goes back to
  Phase phase_ = Phase::settled;
  std::array<double, kRecent> recent_{};
  uint32_t steps_ = 0;       // since the last change
  uint32_t short_ = 0;       // steps in a row that lacked processor time,
  double short_s_ = 0.0;     // and their time
  uint32_t free_steps_ = 0;  // steps in a row when all threads would have had a core
  uint32_t wait_fewer_ = 0, wait_more_ = 0;
  uint32_t trial_steps_ = 0;
  double trial_s_ = 0.0;  // the best of the trial
  double before_s_ = 0.0;
};

// How many cores are free, if `own` threads of this process run: the cores less the threads of others that run at this moment. All
// of them where the system does not say.
uint32_t free_cores(uint32_t own);
// Of this process, all threads together.
double processor_seconds();

}  // namespace tierkv::engine
