// observe.h — turns the mass that attention gave each token into the statistics the eviction policy keeps, and into a MassReport.
// Where only the total is wanted, of tokens that are not archived yet, the backend sums it up by itself (attn/backend.h, HeadMass).
//
// One observer serves one stream for one attention call; queries arrive in order.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/attention.h"
#include "policy/policy.h"
#include "tiers/stream.h"

namespace tierkv::cache {

using tiers::HeadStream;
using tiers::kDeadPosition;
using tiers::StreamViews;

struct ObserveSettings {
  uint32_t signals = 0;              // floats per token; 0: no statistics
  const int* signal_slot = nullptr;  // [policy::kNumSignals], -1 where not kept
  uint32_t observation = 32;         // queries in a window
  uint32_t window_queries = 0;       // already in the current one
  uint32_t group = 1;                // query heads per KV head
};

class StreamObserver final : public attn::MassObserver {
 public:
  // `positions` are the call's queries'. `report` may be null. Its tokens, when wanted, are already sized.
  StreamObserver(const ObserveSettings& settings, const HeadStream& stream, const StreamViews& views, const uint32_t* positions,
                 MassReport* report, uint32_t length);

  void add(uint32_t query, uint32_t view, const float* mass, uint32_t rows) override;
  void end_query(uint32_t query) override;

  std::vector<BlockMass> take_blocks() { return std::move(blocks_); }

 private:
  int slot(policy::Signal signal) const { return settings_.signals ? settings_.signal_slot[signal] : -1; }
  template <class Body>
  void for_each_token(Body&& body);
  void close_window();

  const ObserveSettings settings_;
  const StreamViews& views_;
  const uint32_t* const positions_;
  MassReport* report_;
  const size_t report_base_;
  std::vector<BlockMass> blocks_;
  std::vector<uint32_t> live_;  // positions, for counting what a query could see
  uint32_t window_queries_;
  bool query_open_ = false;
};

}  // namespace tierkv::cache
