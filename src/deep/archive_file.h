// archive_file.h — a deep archive as bytes: header, table of chunks, chunks, checksum (docs/build/block_format.md has the layout).
//
// Whatever parse_archive() accepts is of a shape that decoding can bear, and asks for no more work than its length allows.
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "deep/archive.h"
#include "deep/levels.h"

namespace tierkv::deep {

inline constexpr uint32_t kMostChunk = 4096;            // tokens
inline constexpr int32_t kMostLogStep = 20 * 256;       // either way
inline constexpr uint32_t kArchiveFixedBytes = 88 + 8;  // header and checksum
inline constexpr uint32_t kArchiveTableBytes = 8;       // for each chunk

struct ArchiveFile {
  ArchiveInfo info;  // `version` and `bytes` are set by whoever reads
  float step = 0.0f;
  int32_t log_step = 0;
  Centroids centroids;
  std::vector<std::span<const std::byte>> chunks;
  std::vector<uint32_t> checks;  // of each chunk
};

uint32_t chunks_of(uint32_t tokens, uint32_t chunk);

std::vector<std::byte> write_archive(const ArchiveFile& file);
// data_loss, unsupported: not an archive, damaged, or of another version. The chunks point into `bytes`.
Result<ArchiveFile> parse_archive(std::span<const std::byte> bytes);

}  // namespace tierkv::deep
