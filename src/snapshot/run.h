// run.h — a sequence in pieces: runs of consecutive tokens, each a snapshot of its own, and the sequence that several of them make.
//
//   [run: sinks and archive blocks 0..516) [run 516..772) … [the rest: later archive blocks, warm blocks, hot tail]
//
// A run ends where in every stream a block ends that will not be coded again: in the archive, or in the warm tier where it is the
// last. Sequences that begin with the same tokens have the same runs there, so a store keeps each once. The rest is what changes as
// a sequence grows. Layers with a sliding window are in the rest, whole: they hold newest tokens and nothing else. A sequence made
// of runs without a rest is all archive; of a model with windows there is none such.
//
// Format:   a run is a snapshot (docs/build/block_format.md) whose streams begin later, and without a rest end in blocks. Whatever
//           reads snapshots reads runs: what is missing looks like tokens that were evicted.
// Threads:  pure functions. REQUIRES, for those that take a sequence: its lock is held.
#pragma once

#include <span>
#include <vector>

#include "snapshot/snapshot.h"

namespace tierkv::snapshot {

// Where runs may end, ascending; 0 is not among them. Empty: nothing has come to rest, or the first token was evicted.
[[nodiscard]] std::vector<uint32_t> run_ends(const Sequence& sequence, std::span<const LayerPlan> plans);

// Whether the tokens from `first` on are all there: a run may begin there and have the rest in it. REQUIRES: first is 0 or one of
// run_ends().
[[nodiscard]] bool goes_on_at(const Sequence& sequence, std::span<const LayerPlan> plans, uint32_t first);

// One picture of consecutive runs, the first from position 0 on. It points into theirs, which outlive it.
// invalid_argument: they are of different shapes. data_loss: they do not follow one another.
// REQUIRES: read_body() gave them; at least one.
[[nodiscard]] Result<Snapshot> join_runs(std::span<const Snapshot> runs);

}  // namespace tierkv::snapshot
