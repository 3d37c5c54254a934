// chunk.h — one chunk of tokens, all layers, to bytes and back: the closed loop itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "deep/archive.h"
#include "deep/levels.h"
#include "deep/transform.h"

namespace tierkv::deep {

// What every chunk of a file shares.
struct Shared {
  const ModelTables* model = nullptr;
  std::vector<Transform> transforms;  // of every coded layer
  float step = 1.0f;
  int32_t log_step = 0;  // of it, in 1/256 octaves
  Centroids centroids = Centroids::expected();
  uint32_t first_position = 0;
};

// Where components landed within their intervals: what the next pass's centroids are made of.
struct Landing {
  double sum[Centroids::kRatios][Centroids::kLevels] = {};
  uint64_t count[Centroids::kRatios][Centroids::kLevels] = {};
  void add(const Landing& other);
  Centroids centroids(const Centroids& otherwise) const;
};

struct ChunkResult {
  std::vector<std::byte> bytes;
  uint32_t check = 0;               // of the rebuilt rows
  double lost = 0.0, energy = 0.0;  // in the metric
  uint64_t predicted = 0, plain = 0, finer = 0, raw = 0;
  Landing landing;
  bool finite = true;  // the rows given were
};

// Tokens [first, first + count) of the run. `classes`: of every coded layer, [layer][stride].
ChunkResult encode_chunk(const Shared& shared, const Models& models, uint32_t first, uint32_t count, const ReadRows& read,
                         const uint8_t* classes, size_t stride);
// False: the bytes are not what an encoder writes, or the rows rebuilt are not those it saw.
[[nodiscard]] bool decode_chunk(const Shared& shared, const Models& models, uint32_t first, uint32_t count,
                                std::span<const std::byte> bytes, uint32_t check, const WriteRows& write);

// Rows as the tables want them: keys turned back to before RoPE, all heads, then values.
void gather(const Shared& shared, const Transform& transform, uint32_t first, uint32_t count, const ReadRows& read, float* rows);

}  // namespace tierkv::deep
