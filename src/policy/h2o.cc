// H2O (arXiv 2306.14048): per head, the recent tokens and the heavy hitters, those with the most attention mass ever received.
#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

class H2O final : public EvictionPolicy {
 public:
  uint32_t signals() const override { return 1u << kMassTotal; }
  Scope scope() const override { return Scope::head; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override { keep_top(in, in.signal[kMassTotal], keep); }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_h2o(const EvictionConfig&) { return std::make_unique<H2O>(); }

}  // namespace tierkv::policy
