// shapes.h — shapes of one attention layer, rows and queries to fill it with, and exact attention over them.
//
// Filling a long cache with new random rows would take longer than measuring it, so a short run of rows repeats: token t holds row
// t % period. That makes the exact result cheap as well: a row that occurs n times counts n times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tierkv::bench {

struct AttentionShape {
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;

  uint32_t group() const { return heads / kv_heads; }
  size_t row() const { return static_cast<size_t>(kv_heads) * head_dim; }  // values of one token's keys
  std::string name() const { return std::to_string(heads) + "x" + std::to_string(kv_heads) + "x" + std::to_string(head_dim); }
  bool operator==(const AttentionShape&) const = default;
};

struct SourceRows {
  AttentionShape shape;
  uint32_t period = 0;
  std::vector<float> keys, values;  // [period][kv_heads][head_dim]

  const float* key(uint32_t t) const { return keys.data() + (t % period) * shape.row(); }
  const float* value(uint32_t t) const { return values.data() + (t % period) * shape.row(); }
};

// Keys with outlier channels, Gaussian values.
SourceRows make_source(const AttentionShape& shape, uint32_t period);

// [count][heads][head_dim] that look at a few dozen of a thousand tokens.
std::vector<float> make_source_queries(const SourceRows& rows, uint32_t count);

// Attention of one query head over the tokens 0..length-1 of `rows`, in double precision.
std::vector<double> exact_attention(const SourceRows& rows, const float* query, uint32_t head, uint32_t length);

}  // namespace tierkv::bench
