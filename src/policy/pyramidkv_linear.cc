// The pyramid of ruvector-attention: its own budget formula, and inside a layer its choice, the lowest accumulated mass goes (H2O).
#include "policy/policies.h"
#include "policy/pyramid.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

class PyramidLinear final : public EvictionPolicy {
 public:
  uint32_t signals() const override { return 1u << kMassTotal; }
  Scope scope() const override { return Scope::head; }
  uint32_t layer_budget(uint32_t layer, uint32_t num_layers, uint32_t budget) const override {
    return pyramid_linear_budget(layer, num_layers, budget);
  }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override { keep_top(in, in.signal[kMassTotal], keep); }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_pyramidkv_linear(const EvictionConfig&) { return std::make_unique<PyramidLinear>(); }

}  // namespace tierkv::policy
