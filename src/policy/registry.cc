// Every eviction policy: one row each. Tests, configuration and the command line iterate this table.
#include "base/status_macros.h"
#include "policy/policies.h"
#include "policy/policy.h"

namespace tierkv::policy {
namespace {

constexpr PolicyRow kRows[] = {
    {"h2o", "per head, recent tokens and those with the most attention mass so far", make_h2o},
    {"sliding_window", "the sinks and the newest tokens", make_sliding_window},
    {"streaming_llm", "the first four tokens and the newest ones", make_streaming_llm},
    {"tova", "per layer, the tokens the newest query looks at", make_tova},
    {"snapkv", "per head, the tokens the last queries looked at, with their neighbours", make_snapkv},
    {"scissorhands", "per head, drops the tokens that most often got less than the average attention", make_scissorhands},
    {"pyramidkv", "snapkv with budgets that fall linearly over the layers (the paper's)", make_pyramidkv},
    {"pyramidkv_linear", "h2o with budgets proportional to layers left (ruvector-attention's)", make_pyramidkv_linear},
    {"akv", "per head, attention mass that fades with every query, and recency (AKV's score)", make_akv},
};

}  // namespace

std::span<const PolicyRow> policy_rows() { return kRows; }

Result<std::unique_ptr<EvictionPolicy>> make_policy(const EvictionConfig& config) {
  if (config.policy == "none") return std::unique_ptr<EvictionPolicy>();
  std::string known = "none";
  for (const PolicyRow& row : kRows) {
    if (config.policy == row.name) return row.make(config);
    known.append(", ").append(row.name);
  }
  return error(StatusCode::invalid_argument, "unknown eviction policy '", config.policy, "'; allowed: ", known);
}

}  // namespace tierkv::policy
