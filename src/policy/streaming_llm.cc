// StreamingLLM (arXiv 2309.17453): the first four tokens and a window, whatever the cache's own number of sinks.
// Tokens keep their positions; a host that wants the paper's re-numbering inside the cache does it when it rotates its queries.
#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

constexpr uint32_t kSinks = 4;

class StreamingLLM final : public EvictionPolicy {
 public:
  explicit StreamingLLM(uint32_t window) : window_(window) {}
  uint32_t signals() const override { return 0; }
  Scope scope() const override { return Scope::layer; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override { keep_sinks_and_window(in, kSinks, window_, keep); }

 private:
  uint32_t window_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_streaming_llm(const EvictionConfig& config) {
  return std::make_unique<StreamingLLM>(config.window);
}

}  // namespace tierkv::policy
