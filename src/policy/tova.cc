// TOVA (arXiv 2401.06104): the tokens the newest query looks at, averaged over the heads; all heads of a layer drop the same ones.
#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

class Tova final : public EvictionPolicy {
 public:
  uint32_t signals() const override { return 1u << kMassLast; }
  Scope scope() const override { return Scope::layer; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override { keep_top(in, in.signal[kMassLast], keep); }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_tova(const EvictionConfig&) { return std::make_unique<Tova>(); }

}  // namespace tierkv::policy
