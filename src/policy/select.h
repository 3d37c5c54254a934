// select.h — what the policies share: protection, top-k and windows over a list of live tokens.
//
// Ties:     among equal scores the newer token stays (ruvector-attention removes the first minimum, which is the oldest).
// NaN:      counts as the lowest score there is, so a broken statistic can never displace a sound one.
// Protected tokens are those with a position below in.protect_first (sinks) and the last in.protect_recent of the list. When even
// they do not fit the budget, sinks stay first (oldest first), then the newest of the recent ones.
// Threads:  pure functions.
// REQUIRES: keep.size() == in.positions.size(), scores of the same size; positions ascending.
#pragma once

#include <span>

#include "policy/policy.h"

namespace tierkv::policy {

// The newest tokens that a choice must keep. `wanted` is eviction.protect_recent, at most half the budget. Tokens that no query has
// looked at yet have no statistics to be judged by and are kept too, up to three quarters of what the sinks leave; the newest
// always is.
uint32_t recent_to_protect(uint32_t wanted, uint32_t unobserved, uint32_t budget, uint32_t sinks);

// How many tokens at the front of the list are sinks.
size_t sink_count(const ChoiceInput& in);

// Exactly min(budget, n) tokens: the protected ones, then the highest scores.
void keep_top(const ChoiceInput& in, std::span<const float> score, std::span<uint8_t> keep);

// The tokens below position `sinks` and the last `window` of the list (0: what the budget allows), never more than the budget.
// A window shorter than the protected recent tokens is widened to them.
void keep_sinks_and_window(const ChoiceInput& in, uint32_t sinks, uint32_t window, std::span<uint8_t> keep);

}  // namespace tierkv::policy
