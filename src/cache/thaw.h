// thaw.h — what loading a snapshot and loading runs of one share: it fits the cache, and becomes a sequence whole or not at all.
#pragma once

#include <memory>

#include "cache/impl.h"
#include "snapshot/snapshot.h"

namespace tierkv::cache {

// The eviction statistics that this cache keeps, as snapshots name them.
uint32_t signal_mask(const AdaptiveKVCache::Impl& impl);
snapshot::SnapshotShape snapshot_shape(const AdaptiveKVCache::Impl& impl);
// invalid_argument: it is of another shape or model.
[[nodiscard]] Status check_model(const snapshot::SnapshotHeader& file, const AdaptiveKVCache::Impl& impl);
// `lacks`: the bytes it needs, when it is refused for want of them.
[[nodiscard]] Result<std::shared_ptr<tiers::Sequence>> build(AdaptiveKVCache::Impl& impl, snapshot::Snapshot& snapshot,
                                                             uint64_t& lacks);

}  // namespace tierkv::cache
