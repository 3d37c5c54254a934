#include "deep/archive_file.h"

#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "deep/chunk.h"

namespace tierkv::deep {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'D', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kTrailerBytes = 8, kHeaderBytes = kArchiveFixedBytes - kTrailerBytes, kTableBytes = kArchiveTableBytes;

Status damaged(const std::string& what) { return error(StatusCode::data_loss, "the deep archive is damaged: ", what); }

}  // namespace

uint32_t chunks_of(uint32_t tokens, uint32_t chunk) {
  return static_cast<uint32_t>((static_cast<uint64_t>(tokens) + chunk - 1) / chunk);
}

std::vector<std::byte> write_archive(const ArchiveFile& file) {
  const ArchiveInfo& i = file.info;
  ByteWriter out;
  out.put_bytes(std::as_bytes(std::span(kMagic)));
  out.put(kVersion);
  out.put(kHeaderBytes);
  uint64_t total = kHeaderBytes + kTrailerBytes;
  for (const auto& chunk : file.chunks) total += kTableBytes + chunk.size();
  out.put(total);
  out.put(i.calibration);
  out.put(i.layers);
  out.put(i.kv_heads);
  out.put(i.head_dim);
  out.put(i.first_position);
  out.put(i.tokens);
  out.put(i.chunk);
  out.put(file.step);
  out.put(file.log_step);
  for (const auto& row : file.centroids.offset) {
    for (const uint8_t offset : row) out.put(offset);
  }
  for (size_t c = 0; c < file.chunks.size(); ++c) {
    out.put(static_cast<uint32_t>(file.chunks[c].size()));
    out.put(file.checks[c]);
  }
  for (const auto& chunk : file.chunks) out.put_bytes(chunk);
  out.put(checksum(out.bytes()));
  return std::move(out.bytes());
}

Result<ArchiveFile> parse_archive(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kMagic || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::data_loss, "not a deep archive: its first bytes are others");
  }
  if (bytes.size() < kHeaderBytes + kTrailerBytes) return damaged("it is cut short");
  const auto content = bytes.first(bytes.size() - kTrailerBytes);
  ByteReader in(content.subspan(sizeof kMagic));
  ArchiveFile p;
  p.info.version = in.get<uint32_t>();
  const uint32_t header = in.get<uint32_t>();
  const uint64_t length = in.get<uint64_t>();
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + content.size(), sizeof stored);
  if (length != bytes.size()) return damaged("it says it has another length");
  if (checksum(content) != stored) return damaged("it does not match its checksum");
  if (p.info.version != kVersion) {
    return error(StatusCode::unsupported, "a deep archive of version ", p.info.version, ", and this build knows version ",
                 kVersion);
  }
  if (header != kHeaderBytes) return damaged("a header of another length");
  ArchiveInfo& i = p.info;
  i.bytes = bytes.size();
  i.calibration = in.get<uint64_t>();
  i.layers = in.get<uint32_t>();
  i.kv_heads = in.get<uint32_t>();
  i.head_dim = in.get<uint32_t>();
  i.first_position = in.get<uint32_t>();
  i.tokens = in.get<uint32_t>();
  i.chunk = in.get<uint32_t>();
  p.step = in.get<float>();
  p.log_step = in.get<int32_t>();
  for (auto& row : p.centroids.offset) {
    for (uint8_t& offset : row) offset = in.get<uint8_t>();
  }
  if (i.layers == 0 || i.layers > 4096 || i.kv_heads == 0 || i.kv_heads > 1024 || i.head_dim < 32 || i.head_dim > 256 ||
      i.head_dim % 16 != 0 || 2ull * i.kv_heads * i.head_dim > calib::kDeepMostDim) {
    return damaged("its shape is of no model");
  }
  if (i.tokens == 0 || i.first_position >= (1u << 21) || i.tokens > (1u << 21) - i.first_position)
    return damaged("positions out of range");
  if (i.chunk < kCodingBlock || i.chunk > kMostChunk || i.chunk % kCodingBlock != 0)
    return damaged("chunks of a length no encoder makes");
  if (!std::isfinite(p.step) || p.log_step < -kMostLogStep || p.log_step > kMostLogStep ||
      !(std::fabs(static_cast<double>(p.step) / std::exp2(p.log_step / 256.0) - 1.0) < 1e-3)) {
    return damaged("an impossible step");
  }
  const uint32_t count = chunks_of(i.tokens, i.chunk);
  std::vector<uint32_t> sizes;
  uint64_t left = content.size() - kHeaderBytes;
  if (static_cast<uint64_t>(count) * kTableBytes > left) return damaged("its table does not fit");
  left -= static_cast<uint64_t>(count) * kTableBytes;
  for (uint32_t c = 0; c < count; ++c) {
    sizes.push_back(in.get<uint32_t>());
    p.checks.push_back(in.get<uint32_t>());
    if (sizes.back() > left) return damaged("a chunk does not fit");
    left -= sizes.back();
    // Every block of a layer takes some bits that cannot be left out: what a file makes a reader do is bounded by its length.
    const uint32_t tokens = std::min(i.chunk, i.tokens - c * i.chunk);
    const uint64_t least = static_cast<uint64_t>(chunks_of(tokens, kCodingBlock)) * i.layers;
    if (sizes.back() + 8ull < least) return damaged("a chunk is too short for its tokens");
  }
  if (left != 0) return damaged("bytes that belong to no chunk");
  for (const uint32_t size : sizes) p.chunks.push_back(in.get_bytes(size));
  return p;
}

}  // namespace tierkv::deep
