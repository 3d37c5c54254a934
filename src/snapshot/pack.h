// pack.h — parking and waking: blocks of a sequence become packed ones, and resident again.
//
// Both ways make what is new before they let go of what was, so that a call that fails has changed nothing. Block references, with
// rows, positions and tiers, stay in the streams; the store changes the blocks' state.
// Memory:   packing holds the packed bytes and the encoder's own rows outside the arena until it is done; for waking see
//           deep_blocks.h.
// Threads:  REQUIRES, for all: the sequence's lock is held.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "snapshot/deep_part.h"

namespace tierkv::snapshot {

// failed_precondition: nothing to pack, or it would not shrink. resource_exhausted: the arena has no room, not even in the memory
// of the blocks. `report` is filled in all cases.
[[nodiscard]] Status pack(const StreamEnv& env, Sequence& sequence, std::span<const LayerPlan> plans,
                          const DeepCalibration& calibration, const DeepOptions& options, uint32_t threads, DeepReport& report);

// Everything that is packed, in all groups or not at all, each block in the codec and the tier that its header says.
// resource_exhausted: the arena has no room; `needed` is what it would have to give then.
[[nodiscard]] Status unpack(const StreamEnv& env, Sequence& sequence, CodecSet& codecs, ThreadPool& pool, uint64_t& needed);

// A snapshot's deep part of what is packed. failed_precondition: in more than one group, and a snapshot holds one; or behind tokens
// that are still warm, and what is loaded from it would be archived behind them. data_loss: it changed in memory.
// REQUIRES: something is.
[[nodiscard]] Result<DeepPart> packed_part(const Sequence& sequence, std::span<const LayerPlan> plans);

}  // namespace tierkv::snapshot
