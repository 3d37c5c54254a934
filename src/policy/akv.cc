// Adaptive KV Memory's score: decay·score + attention mass + recency, with its decay of 0.3 a query and its weights, 0.7 for
// attention and 0.3 for recency. The mass counts against the largest of the tokens that may go, recency by rank: 0 for the oldest
// of them, 1 for the newest. (With the protected ones in the measure, a sink that takes half of all mass would leave recency
// alone to decide.) AKV moves the losers to fewer bits; as a policy here it drops them, so that it can stand beside the others.
#include <algorithm>
#include <cmath>
#include <vector>

#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

constexpr float kAttention = 0.7f, kRecency = 0.3f;

class Akv final : public EvictionPolicy {
 public:
  uint32_t signals() const override { return 1u << kMassFading; }
  Scope scope() const override { return Scope::head; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override {
    const std::span<const float> mass = in.signal[kMassFading];
    const size_t n = in.positions.size();
    const size_t first = std::min(sink_count(in), n), last = std::max(first, n - std::min<size_t>(in.protect_recent, n));
    float most = 0.0f;
    for (size_t i = first; i < last; ++i) most = std::max(most, mass[i]);  // NaN is never larger
    const float per_mass = most > 0.0f && std::isfinite(most) ? kAttention / most : 0.0f;
    const float per_rank = last > first + 1 ? kRecency / static_cast<float>(last - first - 1) : 0.0f;
    std::vector<float> score(n, 0.0f);
    for (size_t i = first; i < last; ++i) score[i] = mass[i] * per_mass + static_cast<float>(i - first) * per_rank;
    keep_top(in, score, keep);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_akv(const EvictionConfig&) { return std::make_unique<Akv>(); }

}  // namespace tierkv::policy
