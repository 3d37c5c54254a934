// PyramidKV (arXiv 2406.02069): SnapKV's choice of tokens under budgets that fall linearly with the layer.
#include "policy/policies.h"
#include "policy/pyramid.h"
#include "policy/snapkv.h"

namespace tierkv::policy {
namespace {

class PyramidKV final : public SnapKV {
 public:
  explicit PyramidKV(const EvictionConfig& config) : SnapKV(config), window_(config.observation), beta_(config.pyramid_beta) {}
  uint32_t layer_budget(uint32_t layer, uint32_t num_layers, uint32_t budget) const override {
    return pyramidkv_budget(layer, num_layers, budget, window_, beta_);
  }

 private:
  uint32_t window_;
  double beta_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_pyramidkv(const EvictionConfig& config) { return std::make_unique<PyramidKV>(config); }

}  // namespace tierkv::policy
