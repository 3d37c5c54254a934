// deep_eval.h — sessions whose older tokens pass through the deep archive, to measure what that costs.
//
// DeepPacker: as the session grows. Every time `every` tokens have become older than the newest `recent` ones, they are frozen into
// a deep archive, real bytes, thrown away and loaded back from it: what follows attends over what a reader of the file would have.
// Each token is coded once.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "engine_names.h"

namespace tierkv::cli {

class DeepPacker {
 public:
  DeepPacker(const DeepOptions& target, uint32_t every, uint32_t recent) : target_(target), every_(every), recent_(recent) {}

  // After tokens were fed. REQUIRES: a tierkv session whose cache has a calibration with tables for deep archives.
  void settle(Session& session);
  // The session starts anew.
  void reset() { end_ = 0; }

  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const { return bytes_; }
  double ratio() const;  // over everything coded so far
  double quality() const { return tokens_ ? quality_ / static_cast<double>(tokens_) : 0.0; }
  double encode_seconds() const { return encode_s_; }
  double decode_seconds() const { return decode_s_; }

 private:
  DeepOptions target_;
  uint32_t every_, recent_;
  uint32_t end_ = 0;  // position up to which tokens were coded
  uint64_t tokens_ = 0, bytes_ = 0, fp16_ = 0;
  double quality_ = 0.0, encode_s_ = 0.0, decode_s_ = 0.0;
};

// What an idle sequence comes back with: everything but its first and newest tokens is parked at `ratio` and woken again, in place.
// REQUIRES: as settle().
struct ParkTimes {
  DeepReport report;
  double park_seconds = 0.0, wake_seconds = 0.0;
};
ParkTimes park_and_wake(AdaptiveKVCache& cache, SeqId sequence, double ratio, uint32_t recent);

}  // namespace tierkv::cli
