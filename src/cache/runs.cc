// runs.cc — run_ends, freeze_run, unfreeze_runs: a sequence in pieces (snapshot/run.h).
#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"
#include "cache/thaw.h"
#include "snapshot/run.h"

namespace tierkv {

using plan::LayerPlan;
using snapshot::RunRange;
using snapshot::Snapshot;
using snapshot::SnapshotHeader;

namespace {

// REQUIRES: the sequence's lock is held.
Result<RunRange> find_run(SeqId seq, const tiers::Sequence& sequence, std::span<const LayerPlan> plans, uint32_t first,
                          uint32_t end) {
  const uint32_t length = sequence.length();
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    if (sequence.layer(l).length != length) {
      return error(StatusCode::failed_precondition, "sequence ", seq, " is in the middle of a token: layer ", l, " has ",
                   sequence.layer(l).length, " of them, another ", length);
    }
  }
  const std::vector<uint32_t> ends = snapshot::run_ends(sequence, plans);
  const auto is_end = [&](uint32_t position) { return std::binary_search(ends.begin(), ends.end(), position); };
  if (first != 0 && !is_end(first)) return error(StatusCode::invalid_argument, "no run begins at ", first);
  const RunRange run{first, end, end == length};
  if (end < first || (!run.rest && (!is_end(end) || end == first)))
    return error(StatusCode::invalid_argument, "no run from ", first, " ends at ", end);
  if (run.rest && !snapshot::goes_on_at(sequence, plans, first))
    return error(StatusCode::failed_precondition, "sequence ", seq, " has lost tokens from ", first, " on");
  return run;
}

Result<std::shared_ptr<tiers::Sequence>> thaw_runs(AdaptiveKVCache::Impl& impl, std::span<const std::span<const std::byte>> runs,
                                                   uint64_t& lacks) {
  if (runs.empty()) return error(StatusCode::invalid_argument, "a sequence of no runs");
  std::vector<Snapshot> read;
  for (const auto bytes : runs) {
    TIERKV_ASSIGN_OR_RETURN(SnapshotHeader header, snapshot::read_header(bytes));
    TIERKV_RETURN_IF_ERROR(cache::check_model(header, impl));
    TIERKV_ASSIGN_OR_RETURN(Snapshot run, snapshot::read_body(bytes, std::move(header), impl.codecs.calibration()));
    read.push_back(std::move(run));
  }
  TIERKV_ASSIGN_OR_RETURN(Snapshot whole, snapshot::join_runs(read));
  return cache::build(impl, whole, lacks);
}

}  // namespace

Result<std::vector<uint32_t>> AdaptiveKVCache::run_ends(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  return snapshot::run_ends(*sequence, impl_->plans_of(*sequence));
}
TIERKV_NO_MEMORY("look at a sequence")

Result<std::vector<std::byte>> AdaptiveKVCache::freeze_run(SeqId seq, uint32_t first, uint32_t end) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const snapshot::SnapshotShape shape = cache::snapshot_shape(*impl_);
  std::lock_guard lock(sequence->mutex);
  impl_->follow_archive(*sequence);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  const std::vector<LayerPlan> plans = impl_->plans_of(*sequence);
  TIERKV_ASSIGN_OR_RETURN(const RunRange run, find_run(seq, *sequence, plans, first, end));
  return snapshot::write_snapshot(impl_->env, *sequence, plans, shape, nullptr, &run);
}
TIERKV_NO_MEMORY("write a run of a sequence")

Result<SeqId> AdaptiveKVCache::unfreeze_runs(std::span<const std::span<const std::byte>> runs) {
  return cache::with_pressure(*impl_, 0, [&](uint64_t& needed) {
    return guarded("read runs of a sequence", [&]() -> Result<SeqId> {
      TIERKV_ASSIGN_OR_RETURN(auto sequence, thaw_runs(*impl_, runs, needed));
      return impl_->adopt(std::move(sequence));
    });
  });
}

}  // namespace tierkv
