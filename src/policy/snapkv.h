// snapkv.h — SnapKV (arXiv 2404.14469): per head, the tokens the last queries looked at, with their neighbours.
//
// Score:    mass from the last `observation` queries, max-pooled over `pool` neighbouring positions (the paper's long-context
//           runs: max pooling, width 7, 32 queries). While the current window is not full, the missing queries are taken from the
//           one before it in proportion: window + before * (observation - window_queries) / observation.
// Window:   the last `observation` tokens stay as in the paper, but never more than half the budget.
// Pooling reaches over positions, not list neighbours (an evicted gap separates), and takes nothing from the protected tokens:
// their large masses would otherwise lift whatever stands beside them.
#pragma once

#include <vector>

#include "policy/policy.h"

namespace tierkv::policy {

class SnapKV : public EvictionPolicy {
 public:
  explicit SnapKV(const EvictionConfig& config) : observation_(config.observation), pool_(config.pool) {}
  uint32_t signals() const override { return (1u << kMassWindow) | (1u << kMassBefore); }
  Scope scope() const override { return Scope::head; }
  void choose(const ChoiceInput& in, std::span<uint8_t> keep) const override;

 private:
  uint32_t observation_;
  uint32_t pool_;
};

}  // namespace tierkv::policy
