#include "demo_model.h"

#include <algorithm>
#include <cmath>

namespace demo {
namespace {

constexpr uint32_t kTopics = 24;
constexpr uint32_t kTopicTokens = 48;  // how long the text stays with a topic
constexpr uint32_t kSinks = 4;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Noise is a function of where it is: any row can be made at any time, without the ones before it.
class Noise {
 public:
  Noise(uint64_t a, uint64_t b, uint64_t c)
      : state_(mix(a * 0x9E3779B97F4A7C15ull + mix(b * 0xD1B54A32D192ED03ull + mix(c + 1)))) {}
  uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15ull); }
  // Near enough to a normal distribution, and exact arithmetic everywhere: the sum of four 16-bit integers.
  float normal() {
    const uint64_t x = next();
    const int64_t sum = static_cast<int64_t>((x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48)) - 2 * 65535;
    return static_cast<float>(sum) * (1.0f / 37837.0f);
  }

 private:
  uint64_t state_;
};

}  // namespace

Model::Model(const Shape& shape) : shape_(shape) {
  const uint32_t heads = shape.layers * shape.kv_heads, dim = shape.head_dim;
  mean_.resize(static_cast<size_t>(heads) * dim);
  width_.assign(mean_.size(), 1.0f);
  key_topic_.resize(mean_.size() * kTopics);
  value_topic_.resize(key_topic_.size());
  for (uint32_t h = 0; h < heads; ++h) {
    Noise noise(1, h, 0);
    for (uint32_t c = 0; c < dim; ++c) mean_[h * dim + c] = 0.7f * noise.normal();
    for (uint32_t k = 0; k < dim / 32; ++k) {
      const size_t c = h * dim + noise.next() % dim;
      mean_[c] = noise.next() & 1 ? 9.0f : -9.0f;
      width_[c] = 4.0f;
    }
  }
  Noise noise(2, 0, 0);
  for (float& x : key_topic_) x = noise.normal();
  for (float& x : value_topic_) x = noise.normal();
}

uint32_t Model::topic_at(uint32_t position) { return static_cast<uint32_t>(Noise(3, position / kTopicTokens, 0).next() % kTopics); }

const float* Model::topic(const std::vector<float>& table, uint32_t layer, uint32_t head, uint32_t which) const {
  return table.data() + (static_cast<size_t>(layer * shape_.kv_heads + head) * kTopics + which) * shape_.head_dim;
}

void Model::rows(uint32_t layer, uint32_t first, uint32_t count, std::vector<float>& keys, std::vector<float>& values) const {
  const uint32_t dim = shape_.head_dim;
  keys.resize(static_cast<size_t>(count) * shape_.kv_heads * dim);
  values.resize(keys.size());
  size_t at = 0;
  for (uint32_t t = first; t < first + count; ++t) {
    const uint32_t which = topic_at(t);
    const float drift = std::sin(0.0009f * static_cast<float>(t));
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      const size_t channel = static_cast<size_t>(layer * shape_.kv_heads + h) * dim;
      const float* key_topic = topic(key_topic_, layer, h, which);
      const float* value_topic = topic(value_topic_, layer, h, which);
      Noise noise(4 + layer, t, h);
      for (uint32_t c = 0; c < dim; ++c, ++at) {
        const float spread = 0.8f * key_topic[c] + 0.6f * noise.normal();
        keys[at] =
            t < kSinks ? mean_[channel + c] * 1.2f : mean_[channel + c] * (1.0f + 0.15f * drift) + width_[channel + c] * spread;
        values[at] = t < kSinks ? 0.05f * noise.normal() : 0.6f * value_topic[c] + 0.8f * noise.normal();
      }
    }
  }
}

void Model::query(uint32_t layer, uint32_t position, std::vector<float>& out) const {
  const uint32_t dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
  out.resize(static_cast<size_t>(shape_.heads) * dim);
  for (uint32_t h = 0; h < shape_.heads; ++h) {
    Noise noise(100 + layer, position, h);
    // Half of the heads follow the present topic, the others remember one from anywhere in the text.
    const uint32_t which = h % 2 == 0 ? topic_at(position) : topic_at(static_cast<uint32_t>(noise.next() % (position + 1)));
    const float* wanted = topic(key_topic_, layer, h / group, which);
    for (uint32_t c = 0; c < dim; ++c) out[static_cast<size_t>(h) * dim + c] = 0.45f * wanted[c] + 0.5f * noise.normal();
  }
}

}  // namespace demo
