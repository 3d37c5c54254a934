// Sliding window with sinks, as in ruvector-attention: the cache's sinks and the newest `window` tokens. Needs no statistics.
#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

class SlidingWindow final : public EvictionPolicy {
 public:
  explicit SlidingWindow(uint32_t window) : window_(window) {}
  uint32_t signals() const override { return 0; }
  Scope scope() const override { return Scope::layer; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override { keep_sinks_and_window(in, 0, window_, keep); }

 private:
  uint32_t window_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_sliding_window(const EvictionConfig& config) {
  return std::make_unique<SlidingWindow>(config.window);
}

}  // namespace tierkv::policy
