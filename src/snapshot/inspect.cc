// inspect.cc — looks into a snapshot without a cache.
#include "tierkv/snapshot.h"

#include <algorithm>
#include <limits>

#include "base/file.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "deep/archive.h"
#include "snapshot/snapshot.h"

namespace tierkv {

using snapshot::Snapshot;
using snapshot::SnapshotHeader;

namespace {

SnapshotInfo info_of(const SnapshotHeader& h) {
  SnapshotInfo info;
  info.version = h.version;
  info.min_reader = h.min_reader;
  info.model = h.model;
  info.calibration = h.calibration;
  info.num_layers = h.layers;
  info.num_kv_heads = h.kv_heads;
  info.head_dim = h.head_dim;
  info.hot_type = h.hot_bf16 ? "bf16" : "fp16";
  info.eviction_signals = h.signal_mask;
  info.file_bytes = h.file_bytes;
  return info;
}

void count(const Snapshot& snapshot, SnapshotInfo& info) {
  info.blocks = snapshot.blocks.size();
  for (const snapshot::SnapshotBlock& b : snapshot.blocks) {
    info.tier[static_cast<int>(b.tier)].tokens += b.live;
    info.tier[static_cast<int>(b.tier)].bytes += b.keys.size() + b.values.size();
  }
  for (const snapshot::SnapshotStream& s : snapshot.streams) {
    info.tier[static_cast<int>(Tier::hot)].tokens += s.tail_rows;
    info.tier[static_cast<int>(Tier::hot)].bytes += s.keys.size() + s.values.size();
  }
}

}  // namespace

Result<SnapshotInfo> inspect_snapshot(std::span<const std::byte> bytes, const CalibrationPtr& calibration) try {
  return guarded("read a snapshot", [&]() -> Result<SnapshotInfo> {
    TIERKV_ASSIGN_OR_RETURN(SnapshotHeader header, snapshot::read_header(bytes));
    SnapshotInfo info = info_of(header);
    TIERKV_ASSIGN_OR_RETURN(const snapshot::Outline outline, snapshot::read_outline(bytes, header, calibration));
    info.length = outline.layers[0].length;
    for (const snapshot::SnapshotLayer& layer : outline.layers) info.length = std::min(info.length, layer.length);
    for (const snapshot::CodecUse& codec : outline.codecs) {
      info.codecs.push_back(quant::to_string(codec.pair) + " x" + std::to_string(codec.tokens));
    }
    info.lacks_tables = outline.lacks_tables;
    if (info.lacks_tables) return info;
    TIERKV_ASSIGN_OR_RETURN(const Snapshot snapshot, snapshot::read_body(bytes, std::move(header), calibration));
    count(snapshot, info);
    if (snapshot.header.deep) {
      TIERKV_ASSIGN_OR_RETURN(const deep::ArchiveInfo deep, deep::inspect(snapshot.deep));
      info.deep_tokens = deep.tokens;
      info.deep_first_position = deep.first_position;
      info.deep_layers = deep.layers;
      info.deep_bytes = deep.bytes;
    }
    return info;
  });
}
TIERKV_NO_MEMORY("read a snapshot")

Result<SnapshotInfo> inspect_snapshot(const std::string& path, const CalibrationPtr& calibration) try {
  return guarded("read a snapshot", [&]() -> Result<SnapshotInfo> {
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, snapshot::kMaxFileBytes));
    auto info = inspect_snapshot(std::span<const std::byte>(bytes), calibration);
    if (!info.ok()) return snapshot::in_file(path, info.status());
    return info;
  });
}
TIERKV_NO_MEMORY("read a snapshot")

}  // namespace tierkv
