// park_testing.h — for tests of idle sequences: the tiers they are tried with, and text for them.
#pragma once

#include <gtest/gtest.h>

#include "snapshot/deep_testing.h"

namespace tierkv::cache {

using namespace tierkv::snapshot::testing;

inline constexpr const char* kTiers = "hot=32,warm=64,archive=rot4,sinks=4";

inline uint64_t in_use(const AdaptiveKVCache& cache) {
  const MemoryStats m = cache.memory_usage();
  return m.total_bytes - m.free_bytes;
}

// The next tokens of a made-up text, in every layer.
inline void append_text(AdaptiveKVCache& cache, SeqId seq, uint32_t tokens) {
  const made_up::Text text = made_up::model().text(tokens, cache.length(seq).value());
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    const auto view = [&](const std::vector<float>& rows) {
      return RowsView::f32(rows.data(), tokens, made_up::kHeads, made_up::kDim);
    };
    const Status status = cache.append(seq, l, view(text.keys[l]), view(text.values[l]));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

}  // namespace tierkv::cache
