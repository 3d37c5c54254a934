#include "snapshot/run.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::snapshot {
namespace {

// Ends of the blocks at the front of a stream that stay as they are.
std::vector<uint32_t> ends_of(const HeadStream& s, const LayerPlan& plan) {
  std::vector<uint32_t> ends;
  uint32_t next = 0;
  for (const BlockRef& ref : s.blocks) {
    const bool stays = ref.block.tier() != Tier::warm || plan.warm == kAll;
    if (!stays || ref.block.packed() || ref.positions || ref.first_position != next || ref.rows == 0) break;
    next += ref.rows;
    ends.push_back(next);
  }
  return ends;
}

bool same_shape(const SnapshotHeader& a, const SnapshotHeader& b) {
  return a.layers == b.layers && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.hot_bf16 == b.hot_bf16 &&
         a.signal_mask == b.signal_mask && a.model == b.model;
}

// One run behind tokens that end at `at`.
class RunCheck {
 public:
  RunCheck(const Snapshot& run, size_t index, uint32_t at, bool last) : run_(run), index_(index), at_(at), last_(last) {}

  Status check() const {
    if (run_.header.deep) return bad("it has a deep archive");
    const uint32_t end = run_.layers[0].length;
    for (const SnapshotLayer& layer : run_.layers) {
      if (layer.length != end) return bad("its layers are of different lengths");
    }
    if (end < at_ || (end == at_ && !last_)) return bad("it ends at ", end, " and the one before at ", at_);
    for (size_t i = 0; i < run_.streams.size(); ++i) {
      const SnapshotLayer& layer = run_.layers[i / run_.header.kv_heads];
      TIERKV_RETURN_IF_ERROR(layer.window ? check_windowed(run_.streams[i], end) : check_stream(run_.streams[i], end));
    }
    return {};
  }

 private:
  template <class... Parts>
  Status bad(const Parts&... parts) const {
    return error(StatusCode::data_loss, "run ", index_, " does not follow the one before: ", parts...);
  }

  // Only the last run has something of it, and then it has all.
  Status check_windowed(const SnapshotStream& s, uint32_t end) const {
    const bool empty = s.blocks == 0 && s.tail_rows == 0;
    if (!last_ && !empty) return bad("tokens of a sliding window before the last run");
    if (last_ && empty && end != 0) return bad("the tokens of a sliding window are missing: it needs the rest of a sequence");
    return {};
  }

  Status check_stream(const SnapshotStream& s, uint32_t end) const {
    uint32_t next = at_;
    for (uint32_t i = 0; i < s.blocks; ++i) {
      const SnapshotBlock& block = run_.blocks[s.first_block + i];
      if (block.first_position < at_) return bad("it begins at ", block.first_position);
      if (last_ && i > 0) continue;  // what follows may have gaps, as in any snapshot
      if (block.first_position != next || !block.positions.empty()) return bad("tokens are missing at ", next);
      next += block.rows;
    }
    if (last_) {
      const bool begins = s.blocks > 0 || (s.tail_rows > 0 ? s.tail_first_position == at_ : end == at_);
      return begins ? Status() : bad("tokens are missing at ", at_);
    }
    if (s.tail_rows != 0 || next != end) return bad("it ends at ", next, " and says ", end);
    return {};
  }

  const Snapshot& run_;
  const size_t index_;
  const uint32_t at_;
  const bool last_;
};

}  // namespace

std::vector<uint32_t> run_ends(const Sequence& sequence, std::span<const LayerPlan> plans) {
  std::vector<uint32_t> common;
  bool first = true;
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    if (plans[l].window != 0) continue;
    for (const HeadStream& s : sequence.heads(l)) {
      std::vector<uint32_t> ends = ends_of(s, plans[l]);
      if (first) {
        common = std::move(ends);
        first = false;
        continue;
      }
      std::vector<uint32_t> both;
      std::set_intersection(common.begin(), common.end(), ends.begin(), ends.end(), std::back_inserter(both));
      common = std::move(both);
    }
  }
  return common;
}

bool goes_on_at(const Sequence& sequence, std::span<const LayerPlan> plans, uint32_t first) {
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    if (plans[l].window != 0) continue;
    for (const HeadStream& s : sequence.heads(l)) {
      const auto next =
          std::find_if(s.blocks.begin(), s.blocks.end(), [&](const BlockRef& b) { return b.first_position >= first; });
      if (next != s.blocks.end()) {
        if (next->first_position != first || next->positions) return false;
      } else if (s.tail.rows() ? s.tail.position(0) != first : sequence.layer(l).length != first) {
        return false;
      }
    }
  }
  return true;
}

Result<Snapshot> join_runs(std::span<const Snapshot> runs) {
  uint32_t at = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!same_shape(runs[i].header, runs[0].header)) {
      return error(StatusCode::invalid_argument, "run ", i, " is of another model or shape than the first");
    }
    TIERKV_RETURN_IF_ERROR(RunCheck(runs[i], i, at, i + 1 == runs.size()).check());
    at = runs[i].layers[0].length;
  }
  Snapshot out;
  out.header = runs[0].header;
  out.layers = runs.back().layers;
  for (size_t s = 0; s < runs[0].streams.size(); ++s) {
    SnapshotStream joined = runs.back().streams[s];
    joined.first_block = out.blocks.size();
    for (const Snapshot& run : runs) {
      const auto from = run.blocks.begin() + static_cast<std::ptrdiff_t>(run.streams[s].first_block);
      out.blocks.insert(out.blocks.end(), from, from + run.streams[s].blocks);
    }
    joined.blocks = static_cast<uint32_t>(out.blocks.size() - joined.first_block);
    out.streams.push_back(joined);
  }
  return out;
}

}  // namespace tierkv::snapshot
