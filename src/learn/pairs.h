// pairs.h — pairs of some queries and the sampled keys of one KV head, added up.
//
// For a query t and a sampled key s that lies at least `distance` before it: p = e^(score - lse), w = p²·|W_O(v_s - o_t)|²·scale².
// Keys of one block share a frame, so w adds up to one weight per block, and the sum gets weight·q q' with q turned to the block's
// start. A block below a share of its query's whole weight is drawn by lot, and then counts as that share.
// Threads:  a part is one thread's; what it adds up to depends on nothing but its queries and the sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calib/rope.h"
#include "learn/sums.h"
#include "tierkv/cache.h"

namespace tierkv::learn {

struct LearnShape {
  uint32_t heads = 0, kv_heads = 0, dim = 0;
  uint32_t block = 0, sinks = 0, distance = 0;
  uint32_t group() const { return heads / kv_heads; }
};

// Queries of consecutive positions, and what attention made of them.
struct QueryRows {
  uint32_t position = 0;
  RowsView rows;
  const float* out = nullptr;  // [tokens][heads][dim]
  const float* lse = nullptr;  // [tokens][heads]
  float scale = 0.0f, softcap = 0.0f;
  uint32_t stride = 1;  // of positions that are looked at
};

// The sampled rows of one KV head of one sequence, by position.
struct SampledRows {
  std::vector<uint32_t> positions;
  std::vector<uint16_t> keys, values;  // fp16 [n][dim]
  std::vector<float> lengths;          // |W_O v|² of each query head of the group: [group][n]
  std::vector<float> sizes;            // |v|²
  float stands_for = 1.0f;             // tokens that each of them stands for
  uint32_t count() const { return static_cast<uint32_t>(positions.size()); }
};

// One KV head of a layer.
struct HeadView {
  LearnShape shape;
  const calib::Turner* turner = nullptr;
  const uint16_t* gram = nullptr;  // fp16 of each query head of the group, [group][dim][dim], over `gram_unit`; null: the identity
  float gram_unit = 1.0f;
  uint32_t head = 0;
  uint32_t window = 0;  // positions a query sees, itself included; 0: all
};

// Looked-at positions: every stride-th from where the archive can have any key.
bool looked_at(uint32_t position, uint32_t stride, const LearnShape& shape);
// Whether a looked-at query is kept for the check.
Kind kind_of_query(uint32_t position, uint32_t stride);

// What some queries of one kind add up to.
struct PairPart {
  std::vector<float> metric;  // [dim][dim], its upper triangle
  std::vector<double> value;  // [group]
  double weight = 0.0, size = 0.0;
  bool finite = true;
};

// Adds up the queries at these positions, ascending. Throws std::bad_alloc.
PairPart add_pairs(const HeadView& head, const SampledRows& sample, const QueryRows& queries, std::span<const uint32_t> positions);

// y[i] = G x[i] for n rows of `dim`, G fp16 and symmetric, over `unit`; null: y = x. scratch: 16·dim floats.
void times_gram(const uint16_t* gram, float unit, const float* x, uint32_t n, uint32_t dim, float* y, float* scratch);

}  // namespace tierkv::learn
