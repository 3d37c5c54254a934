// Scissorhands (arXiv 2305.17118): per head, the tokens go whose attention most often fell below 1/t over the history window.
// Counts are small integers and ties are common: among equals the older token goes, as the paper's recency set would have it.
#include <vector>

#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

class Scissorhands final : public EvictionPolicy {
 public:
  uint32_t signals() const override { return 1u << kLowCount; }
  Scope scope() const override { return Scope::head; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override {
    std::vector<float> score(in.signal[kLowCount].begin(), in.signal[kLowCount].end());
    for (float& s : score) s = -s;
    keep_top(in, score, keep);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_scissorhands(const EvictionConfig&) { return std::make_unique<Scissorhands>(); }

}  // namespace tierkv::policy
