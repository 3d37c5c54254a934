// prompt_scene_testing.h — prompts for tests of this room: the sequences of a scene (scene_testing.h), each with many queries, as
// one call, and what double precision over the decoded rows makes of it.
#pragma once

#include <cstring>

#include "attn/backend.h"
#include "attn/rows.h"
#include "base/f16.h"
#include "cuda/plan/scene_testing.h"

namespace tierkv::cuda::testing {

struct PromptShape {
  SceneShape scene;
  std::vector<uint32_t> tokens;  // queries of each sequence: its last tokens
  DType type = DType::f32;       // of the queries
  float size = 1.0f;             // of the queries, and 1 / size of the scale
  uint32_t gap = 0;              // elements between heads; not 0: queries and results are where the twin's device has its memory
};

class PromptScene {
 public:
  PromptScene(const PromptShape& shape, uint32_t seed) : shape_(shape), scene_(shape.scene, seed), rng_(seed + 1000) {
    shape_.scene.params = scene_.shape().params;
    shape_.scene.params.scale /= shape.size;
    const uint32_t heads = query_heads();
    std::normal_distribution<float> normal;
    views_.resize(scene_.tasks());
    for (size_t t = 0; t < scene_.tasks(); ++t) {
      views_[t].assign(scene_.views(t).begin(), scene_.views(t).end());
      for (attn::BlockView& view : views_[t]) {
        // Blocks of one scene differ; names of blocks that were freed must not come back.
        static uint64_t name = 1u << 20;
        if (view.rows == shape.scene.block) view.sealed = ++name * 0x9E3779B97F4A7C15ull;
      }
    }
    for (size_t s = 0; s < shape.tokens.size(); ++s) {
      Sequence& one = sequences_.emplace_back();
      const size_t rows = static_cast<size_t>(shape.tokens[s]) * heads;
      one.queries.resize(rows * dim());
      for (float& x : one.queries) x = shape.size * shape.scene.sharpness * normal(rng_);
      if (shape.type != DType::f32) {
        for (float& x : one.queries) {
          const bool bf16 = shape.type == DType::bf16;
          one.narrow.push_back(bf16 ? f32_to_bf16(x) : f32_to_f16(x));
          x = bf16 ? bf16_to_f32(one.narrow.back()) : f16_to_f32(one.narrow.back());
        }
      }
      if (shape.gap != 0) spread(one, rows);
      const uint32_t length = shape.scene.lengths[s];
      for (uint32_t q = 0; q < shape.tokens[s]; ++q) one.positions.push_back(length - shape.tokens[s] + q);
      one.out.assign(rows * dim(), NAN), one.lse.assign(rows, NAN);
    }
  }

  const Status& status() const { return scene_.status(); }
  uint32_t dim() const { return shape_.scene.head_dim; }
  uint32_t query_heads() const { return shape_.scene.kv_heads * shape_.scene.group; }

  std::vector<attn::AttendWork> works() {
    std::vector<attn::AttendWork> works(sequences_.size());
    for (size_t s = 0; s < sequences_.size(); ++s) {
      Sequence& one = sequences_[s];
      attn::AttendWork& work = works[s];
      for (uint32_t h = 0; h < shape_.scene.kv_heads; ++h) work.heads.emplace_back(views_[s * shape_.scene.kv_heads + h]);
      const void* const rows = shape_.type == DType::f32 ? static_cast<const void*>(one.queries.data()) : one.narrow.data();
      work.queries = RowsView::dense(rows, shape_.type, shape_.tokens[s], query_heads(), dim());
      if (shape_.gap != 0) {
        const auto stride = static_cast<ptrdiff_t>(dim() + shape_.gap);
        work.queries.data = one.wide.data() + shape_.gap * attn::element_bytes(shape_.type),
        work.queries.place = MemoryPlace::device;
        work.queries.head_stride = stride, work.queries.token_stride = stride * query_heads();
      }
      work.positions = one.positions.data(), work.out = one.out.data(), work.lse = one.lse.data();
      work.sink_logits = scene_.sinks(), work.params = shape_.scene.params;
    }
    return works;
  }

  // ‖out - reference‖ / ‖reference‖ over all rows of every `every`th query; infinity where something is not finite or the lse is
  // far off.
  double error(uint32_t every = 1) const {
    double off = 0.0, size = 0.0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (uint32_t h = 0; h < shape_.scene.kv_heads; ++h) {
        std::vector<float> keys, values;
        std::vector<uint32_t> positions;
        decode(s * shape_.scene.kv_heads + h, keys, values, positions);
        for (uint32_t q = 0; q < shape_.tokens[s]; q += q + 1 < shape_.tokens[s] ? std::min(every, shape_.tokens[s] - 1 - q) : 1) {
          for (uint32_t g = 0; g < shape_.scene.group; ++g) {
            compare(sequences_[s], keys, values, positions, q, h * shape_.scene.group + g, off, size);
          }
        }
      }
    }
    return size > 0.0 ? std::sqrt(off / size) : off > 0.0 ? INFINITY : 0.0;
  }

 private:
  struct Sequence {
    std::vector<float> queries, out, lse;
    std::vector<uint16_t> narrow;
    std::vector<std::byte> wide;  // queries with gaps before and between them
    std::vector<uint32_t> positions;
  };

  void spread(Sequence& one, size_t rows) const {
    const size_t element = attn::element_bytes(shape_.type), bytes = dim() * element, stride = bytes + shape_.gap * element;
    const auto* const from = shape_.type == DType::f32 ? reinterpret_cast<const std::byte*>(one.queries.data())
                                                       : reinterpret_cast<const std::byte*>(one.narrow.data());
    one.wide.resize(rows * stride + shape_.gap * element);
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(one.wide.data() + shape_.gap * element + row * stride, from + row * bytes, bytes);
    }
  }

  void decode(size_t task, std::vector<float>& keys, std::vector<float>& values, std::vector<uint32_t>& positions) const {
    for (const attn::BlockView& view : views_[task]) {
      const size_t before = keys.size(), n = static_cast<size_t>(view.rows) * dim();
      keys.resize(before + n), values.resize(before + n);
      view.key_codec->decode(view.keys, view.ctx, 0, view.rows, keys.data() + before);
      view.value_codec->decode(view.values, view.ctx, 0, view.rows, values.data() + before);
      for (uint32_t t = 0; t < view.rows; ++t) positions.push_back(view.position(t));
    }
  }

  void compare(const Sequence& one, const std::vector<float>& keys, const std::vector<float>& values,
               const std::vector<uint32_t>& positions, uint32_t q, uint32_t head, double& off, double& size) const {
    const attn::AttendParams& params = shape_.scene.params;
    const size_t row = static_cast<size_t>(q) * query_heads() + head;
    const uint64_t now = one.positions[q];
    std::vector<double> want(dim());
    double top = scene_.sinks() ? scene_.sinks()[head] : -INFINITY;
    std::vector<double> scores(positions.size(), -INFINITY);
    for (size_t t = 0; t < positions.size(); ++t) {
      const uint64_t at = positions[t];
      if (at == attn::kDeadPosition || (params.causal && at > now) || (params.window && at + params.window <= now)) continue;
      double score = 0.0;
      for (uint32_t c = 0; c < dim(); ++c) score += static_cast<double>(keys[t * dim() + c]) * one.queries[row * dim() + c];
      score *= params.scale;
      if (params.softcap > 0.0f) score = params.softcap * std::tanh(score / params.softcap);
      scores[t] = score, top = std::max(top, score);
    }
    double sum = scene_.sinks() ? std::exp(scene_.sinks()[head] - top) : 0.0;
    for (size_t t = 0; t < scores.size() && top > -INFINITY; ++t) {
      const double weight = std::exp(scores[t] - top);
      if (weight == 0.0) continue;
      sum += weight;
      for (uint32_t c = 0; c < dim(); ++c) want[c] += weight * values[t * dim() + c];
    }
    for (uint32_t c = 0; c < dim(); ++c) {
      const double exact = sum > 0.0 ? want[c] / sum : 0.0, got = one.out[row * dim() + c];
      if (!std::isfinite(got)) off = INFINITY;
      off += (got - exact) * (got - exact), size += exact * exact;
    }
    const double lse = sum > 0.0 ? top + std::log(sum) : -INFINITY;
    if (lse == -INFINITY ? one.lse[row] != -INFINITY : !(std::fabs(one.lse[row] - lse) < 5e-3 * std::max(1.0, std::fabs(lse)))) {
      off = INFINITY;
    }
  }

  PromptShape shape_;
  Scene scene_;
  std::mt19937 rng_;
  std::vector<std::vector<attn::BlockView>> views_;
  std::vector<Sequence> sequences_;
};

// Any shape, mixes of codecs, windows, dead rows, ragged lengths; small ones where `small`.
inline PromptShape random_prompt(uint32_t seed, const std::vector<std::string>& names, bool small) {
  std::mt19937 rng(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  PromptShape out;
  SceneShape& shape = out.scene;
  shape.head_dim = std::vector<uint32_t>{32, 64, 80, 96, 128, 128, 128, 256}[pick(8)];
  shape.block = pick(3) ? 128 : 16 * (1 + pick(16));
  shape.group = 1 + pick(pick(2) ? 8 : 16);
  shape.kv_heads = 1 + pick(2);
  for (uint32_t i = 0; i < 1 + pick(3); ++i) shape.codecs.push_back(names[pick(static_cast<uint32_t>(names.size()))]);
  const uint32_t sequences = 1 + pick(small ? 2 : 4);
  for (uint32_t i = 0; i < sequences; ++i) {
    const uint32_t tokens = 17 + pick(small ? 30 : pick(3) ? 60 : 300);
    out.tokens.push_back(tokens);
    shape.lengths.push_back(tokens + pick(small ? 300 : pick(3) ? 700 : 4000));
  }
  shape.sinks = pick(2) * 4, shape.hot = pick(300);
  shape.dead = pick(3) == 0, shape.cut = pick(3) == 0, shape.sink_logits = pick(3) == 0;
  shape.params.window = pick(4) == 0 ? 1 + pick(900) : 0;
  shape.params.softcap = pick(5) == 0 ? 30.0f : 0.0f;
  shape.params.causal = pick(6) != 0;
  shape.sharpness = std::vector<float>{0.3f, 1.0f, 1.0f, 2.0f}[pick(4)];
  out.type = std::vector<DType>{DType::f32, DType::f16, DType::bf16}[pick(3)];
  return out;
}

}  // namespace tierkv::cuda::testing
