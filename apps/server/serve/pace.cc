#include "serve/pace.h"

#include <algorithm>

namespace tierkv::serve {
namespace {

// Follows changes within some ten steps, and one slow step does not count for much.
void follow(double& mean, double value) { mean = mean == 0.0 ? value : mean + 0.1 * (std::min(value, 4.0 * mean) - mean); }

}  // namespace

uint32_t Pace::rows(uint32_t writers) const {
  if (writers >= most_) return 0;
  const uint32_t room = (most_ - writers) / piece_ * piece_;
  if (writers == 0) return room;
  if (plain_s_ == 0.0 || row_s_ == 0.0) return std::min(piece_, room);
  const double rows = (kStretch - 1.0) * plain_s_ / row_s_;
  const auto pieces = static_cast<uint32_t>(std::clamp(rows / piece_, 1.0, static_cast<double>(most_)));
  return std::min(pieces * piece_, room);
}

void Pace::took(uint32_t writers, uint32_t prompt_rows, double seconds) {
  if (writers > 0 && prompt_rows == 0) follow(plain_s_, seconds);
  if (writers > 0 && prompt_rows > 0 && plain_s_ > 0.0) {
    follow(row_s_, std::max(seconds - plain_s_, 0.05 * seconds) / prompt_rows);
  }
}

}  // namespace tierkv::serve
