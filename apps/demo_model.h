// demo_model.h — a make-believe model: keys, values and queries with the habits of real ones, the same on every machine.
//
// Text moves through topics; a token's key is its layer's channel means (a few channels far from zero and wide), plus its topic,
// plus a slow drift, plus noise; the first tokens are sinks that every query likes a little; a query looks for one topic, now or
// long ago.
#pragma once

#include <cstdint>
#include <vector>

namespace demo {

struct Shape {
  uint32_t layers = 4;
  uint32_t heads = 32;
  uint32_t kv_heads = 8;
  uint32_t head_dim = 128;
};

class Model {
 public:
  explicit Model(const Shape& shape);

  // [tokens][kv_heads][head_dim] for tokens first..first+count-1 of one layer.
  void rows(uint32_t layer, uint32_t first, uint32_t count, std::vector<float>& keys, std::vector<float>& values) const;
  // [heads][head_dim] of the token at `position`.
  void query(uint32_t layer, uint32_t position, std::vector<float>& out) const;

 private:
  const float* topic(const std::vector<float>& table, uint32_t layer, uint32_t head, uint32_t which) const;
  static uint32_t topic_at(uint32_t position);

  Shape shape_;
  std::vector<float> mean_, width_;             // [layer][kv head][channel]
  std::vector<float> key_topic_, value_topic_;  // [layer][kv head][topic][channel]
};

}  // namespace demo
