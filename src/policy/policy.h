// policy.h — eviction as a pure decision: positions and statistics in, which tokens stay out. Moves no bytes.
//
// The cache keeps, per live token, only the statistics ("signals") that the configured policy asks for, feeds them from attention,
// and calls choose() when the budget is reached. A policy with Scope::head is asked once per KV head with that head's own
// statistics; one with Scope::layer once per layer, with statistics averaged over the heads, and the same tokens go in every head.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tierkv/config.h"
#include "tierkv/status.h"

namespace tierkv::policy {

// One float per token each, all over the query heads of a KV head.
enum Signal : uint8_t {
  kMassTotal = 0,   // softmax mass ever received
  kMassLast = 1,    // mass from the newest query alone
  kMassWindow = 2,  // mass from the queries of the current observation window
  kMassBefore = 3,  // the same for the window before it (complete)
  kLowCount = 4,    // how many queries of the history gave it less than 1/t of their mass (t: tokens that query saw)
  kMassFading = 5,  // mass, times kFading with every query that came after
  kNumSignals = 6,
};
inline constexpr float kFading = 0.3f;  // AKV's decay

enum class Scope : uint8_t { head, layer };

struct ChoiceInput {
  uint32_t layer = 0;
  uint32_t num_layers = 1;
  uint32_t budget = 0;                         // tokens that may stay
  uint32_t protect_first = 0;                  // sinks: positions below this always stay
  uint32_t protect_recent = 0;                 // the last tokens of the list always stay
  uint32_t window_queries = 0;                 // how many queries kMassWindow holds so far
  std::span<const uint32_t> positions;         // live tokens, ascending
  std::span<const float> signal[kNumSignals];  // per live token; empty where the policy did not ask
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual uint32_t signals() const = 0;  // bit set of (1 << Signal)
  virtual Scope scope() const = 0;
  // The tokens layer `layer` may keep when the caller allows `budget` a layer on average.
  virtual uint32_t layer_budget(uint32_t layer, uint32_t num_layers, uint32_t budget) const {
    (void)layer, (void)num_layers;
    return budget;
  }
  // keep[i] = 1 for the tokens that stay. Exactly min(budget, n) stay, protected ones first (the sinks before the recent ones when
  // even they do not fit), except for window policies, which may keep fewer.
  virtual void choose(const ChoiceInput& in, std::span<uint8_t> keep) const = 0;
};

struct PolicyRow {
  const char* name;
  const char* summary;
  std::unique_ptr<EvictionPolicy> (*make)(const EvictionConfig& config);
};
std::span<const PolicyRow> policy_rows();
// Null for "none"; an unknown name is refused with the known ones.
Result<std::unique_ptr<EvictionPolicy>> make_policy(const EvictionConfig& config);

}  // namespace tierkv::policy
