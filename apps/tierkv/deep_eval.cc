#include "deep_eval.h"

#include <algorithm>

#include "engine/clock.h"
#include "engine_names.h"

namespace tierkv::cli {
namespace {}  // namespace

double DeepPacker::ratio() const { return bytes_ ? static_cast<double>(fp16_) / static_cast<double>(bytes_) : 0.0; }

void DeepPacker::settle(Session& session) {
  if (session.length() < std::max(end_, 4u) + every_ + recent_) return;
  AdaptiveKVCache& cache = *session.cache();
  DeepOptions options = target_;
  options.keep_recent = recent_;
  options.first_position = end_;
  DeepReport report;
  const double start = now();
  const std::vector<std::byte> bytes = take(cache.freeze(session.sequence(), options, &report), "--deep");
  const double frozen = now();
  if (report.tokens == 0) bad_input("--deep: " + report.note);
  session.bind(take(cache.unfreeze(bytes), "--deep"));
  decode_s_ += now() - frozen;
  encode_s_ += frozen - start;
  end_ = report.first_position + report.tokens;
  tokens_ += report.tokens;
  bytes_ += report.bytes;
  fp16_ += static_cast<uint64_t>(report.ratio * static_cast<double>(report.bytes) + 0.5);
  quality_ += report.quality * report.tokens;
}

ParkTimes park_and_wake(AdaptiveKVCache& cache, SeqId sequence, double ratio, uint32_t recent) {
  DeepOptions options;
  options.ratio = ratio;
  options.keep_recent = recent;
  ParkTimes times;
  const double start = now();
  check(cache.park(sequence, options, &times.report), "--deep");
  const double parked = now();
  check(cache.wake(sequence), "--deep");
  times.park_seconds = parked - start;
  times.wake_seconds = now() - parked;
  return times;
}

}  // namespace tierkv::cli
