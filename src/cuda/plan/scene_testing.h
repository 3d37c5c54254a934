// scene_testing.h — random pieces of attention for tests of this room: sequences of blocks in any codecs, hot rows, dead rows,
// windows, softcaps and sinks, and what double precision over the decoded rows makes of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "attn/attention.h"
#include "attn/backend.h"
#include "cuda/brief_testing.h"
#include "cuda/plan/paths.h"
#include "cuda/plan/plan.h"
#include "quant/registry.h"
#include "quant/table_testing.h"

namespace tierkv::cuda::testing {

// Tasks one after the other, in the thread that asks.
inline const Executor kAlone = [](uint32_t count, const std::function<void(uint32_t)>& task) {
  for (uint32_t i = 0; i < count; ++i) task(i);
};

struct SceneShape {
  uint32_t head_dim = 128, group = 4, kv_heads = 2, block = 128;
  std::vector<std::string> codecs;  // names of pairs: blocks take them in runs, in this order
  std::vector<uint32_t> lengths;    // tokens of each sequence
  uint32_t sinks = 0;               // fp16 rows in front
  uint32_t hot = 16;                // fp16 rows at the end
  bool dead = false;                // some rows were evicted
  bool cut = false;                 // some blocks are not full
  bool sink_logits = false;
  attn::AttendParams params;
  float sharpness = 1.0f;
};

class Scene {
 public:
  Scene(const SceneShape& shape, uint32_t seed) : shape_(shape), rng_(seed) {
    shape_.params.head_dim = shape.head_dim;
    shape_.params.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const size_t rows = shape.lengths.size() * shape.kv_heads * shape.group;
    std::normal_distribution<float> normal;
    queries_.resize(rows * shape.head_dim);
    for (float& x : queries_) x = shape.sharpness * normal(rng_);
    if (shape.sink_logits) {
      for (uint32_t i = 0; i < shape.kv_heads * shape.group; ++i) sinks_.push_back(normal(rng_));
    }
    views_.resize(shape.lengths.size() * shape.kv_heads);
    for (size_t s = 0; s < shape.lengths.size() && status_.ok(); ++s) {
      for (uint32_t h = 0; h < shape.kv_heads && status_.ok(); ++h) fill(views_[s * shape.kv_heads + h], shape.lengths[s]);
    }
  }

  const Status& status() const { return status_; }
  const SceneShape& shape() const { return shape_; }
  const std::vector<float>& queries() const { return queries_; }
  const float* sinks() const { return sinks_.empty() ? nullptr : sinks_.data(); }
  size_t rows() const { return queries_.size() / shape_.head_dim; }
  size_t tasks() const { return views_.size(); }
  std::span<const attn::BlockView> views(size_t task) const { return views_[task]; }
  uint32_t position(size_t task) const { return shape_.lengths[task / shape_.kv_heads] - 1; }

  // What answers may be off by (distance()): 1e-3, and twice that where a path for whole numbers rounds queries and weights.
  double tolerance() const { return whole_ ? 2e-3 : 1e-3; }

  // Double precision over decoded rows: [rows][head_dim], and the log of each row's sum.
  void reference(std::vector<double>& out, std::vector<double>& lse) const {
    const uint32_t d = shape_.head_dim;
    out.assign(rows() * d, 0.0), lse.assign(rows(), -INFINITY);
    for (size_t task = 0; task < tasks(); ++task) {
      std::vector<float> keys, values;
      decode(task, keys, values);
      for (uint32_t g = 0; g < shape_.group; ++g) {
        const size_t row = task * shape_.group + g;
        attend(keys, values, row, task % shape_.kv_heads * shape_.group + g, out.data() + row * d, lse[row]);
      }
    }
  }

  // What the query of a task gave each row of its views, all query heads together, against these sums.
  std::vector<double> mass(size_t task, const std::vector<double>& lse) const {
    std::vector<float> keys, values;
    decode(task, keys, values);
    std::vector<double> out(keys.size() / shape_.head_dim);
    for (size_t row = task * shape_.group; row < (task + 1) * shape_.group; ++row) {
      const std::vector<double> scores = scores_of(keys, row);
      for (size_t t = 0; t < out.size() && lse[row] > -INFINITY; ++t) out[t] += std::exp(scores[t] - lse[row]);
    }
    return out;
  }

 private:
  struct Pair {
    std::unique_ptr<quant::Codec> key, value;
  };

  const Pair* codecs(const std::string& name, uint32_t tokens) {
    // For as long as the program runs: a device's backend knows codecs by their address.
    static std::map<std::tuple<std::string, uint32_t, uint32_t>, Pair> made;
    Pair& pair = made[{name, tokens, shape_.head_dim}];
    if (pair.key) {
      look_at(pair);
      return &pair;
    }
    const auto spec = quant::parse_codec_pair(name);
    if (!spec.ok()) return fail(spec.status());
    auto key = quant::testing::make_any_codec(spec->key, quant::Side::key, {tokens, shape_.head_dim});
    auto value = quant::testing::make_any_codec(spec->value, quant::Side::value, {tokens, shape_.head_dim});
    if (!key.ok()) return fail(key.status());
    if (!value.ok()) return fail(value.status());
    pair.key = std::move(*key), pair.value = std::move(*value);
    look_at(pair);
    return &pair;
  }
  void look_at(const Pair& pair) {
    CodecDesc desc;
    if (!readable(*pair.key, *pair.value, desc)) return;
    const Path path = fast_path(desc, shape_.group);
    whole_ = whole_ || path == Path::whole22 || path == Path::klt_whole;
  }
  const Pair* fail(const Status& status) {
    status_ = status;
    return nullptr;
  }

  void fill(std::vector<attn::BlockView>& views, uint32_t length) {
    uint32_t at = 0;
    if (shape_.sinks != 0 && shape_.sinks < length) add_block(views, "fp16", shape_.sinks, shape_.sinks, at);
    const uint32_t hot = std::min(shape_.hot, length - at), blocks = (length - at - hot) / shape_.block;
    for (uint32_t b = 0; b < blocks; ++b) {
      const auto& name = shape_.codecs[static_cast<size_t>(b) * shape_.codecs.size() / blocks];
      const uint32_t live = shape_.cut && rng_() % 4 == 0 ? 1 + static_cast<uint32_t>(rng_() % shape_.block) : shape_.block;
      add_block(views, name, shape_.block, live, at);
    }
    while (at < length) {
      const uint32_t n = std::min(attn::kMaxViewRows, length - at);
      add_block(views, "fp16", n, n, at);
    }
  }

  void add_block(std::vector<attn::BlockView>& views, const std::string& name, uint32_t tokens, uint32_t live, uint32_t& at) {
    const Pair* pair = codecs(name, tokens);
    if (!pair) return;
    attn::BlockView view;
    view.key_codec = pair->key.get(), view.value_codec = pair->value.get();
    view.ctx.first_position = at;
    view.rows = live;
    const quant::testing::TableModel* model = nullptr;
    if (quant::testing::calibrated(*pair->key)) model = &quant::testing::TableModel::of(shape_.head_dim);
    std::vector<float> keys = quant::testing::random_rows({tokens, shape_.head_dim}, static_cast<uint32_t>(rng_()));
    if (model) keys = model->turned(std::move(keys), at);
    const std::vector<float> values = quant::testing::random_rows({tokens, shape_.head_dim}, static_cast<uint32_t>(rng_()));
    view.keys = encode(*pair->key, keys, view.ctx);
    view.values = encode(*pair->value, values, view.ctx);
    if (shape_.dead && rng_() % 3 == 0) {
      std::vector<uint32_t>& positions = positions_.emplace_back(live);
      for (uint32_t t = 0; t < live; ++t) positions[t] = rng_() % 3 == 0 ? attn::kDeadPosition : at + t;
      view.ctx.positions = positions.data();
    }
    views.push_back(view);
    at += tokens;
  }

  std::span<const std::byte> encode(const quant::Codec& codec, const std::vector<float>& rows, const quant::BlockContext& ctx) {
    void* at = std::aligned_alloc(64, (codec.bytes() + 63) / 64 * 64);
    aligned_.emplace_back(static_cast<std::byte*>(at), &std::free);
    const std::span<std::byte> out(static_cast<std::byte*>(at), codec.bytes());
    if (const Status status = codec.encode(rows.data(), ctx, out); !status.ok()) fail(status);
    return out;
  }

  void decode(size_t task, std::vector<float>& keys, std::vector<float>& values) const {
    for (const attn::BlockView& view : views_[task]) {
      const size_t before = keys.size(), n = static_cast<size_t>(view.rows) * shape_.head_dim;
      keys.resize(before + n), values.resize(before + n);
      view.key_codec->decode(view.keys, view.ctx, 0, view.rows, keys.data() + before);
      view.value_codec->decode(view.values, view.ctx, 0, view.rows, values.data() + before);
    }
  }

  // Of one query row with every row of its task's views; minus infinity where it is not seen.
  std::vector<double> scores_of(const std::vector<float>& keys, size_t row) const {
    const uint32_t d = shape_.head_dim;
    const size_t task = row / shape_.group;
    std::vector<double> scores;
    const float* key = keys.data();
    for (const attn::BlockView& view : views_[task]) {
      for (uint32_t t = 0; t < view.rows; ++t, key += d) {
        double score = 0.0;
        for (uint32_t c = 0; c < d; ++c) score += static_cast<double>(key[c]) * queries_[row * d + c];
        score *= shape_.params.scale;
        if (shape_.params.softcap > 0.0f) score = shape_.params.softcap * std::tanh(score / shape_.params.softcap);
        const uint64_t at = view.position(t), now = position(task);
        const bool hidden = at == attn::kDeadPosition || (shape_.params.causal && at > now) ||
                            (shape_.params.window && at + shape_.params.window <= now);
        scores.push_back(hidden ? -INFINITY : score);
      }
    }
    return scores;
  }

  void attend(const std::vector<float>& keys, const std::vector<float>& values, size_t row, size_t head, double* out,
              double& lse) const {
    const uint32_t d = shape_.head_dim;
    const std::vector<double> scores = scores_of(keys, row);
    double top = sinks_.empty() ? -INFINITY : sinks_[head];
    for (const double s : scores) top = std::max(top, s);
    if (top == -INFINITY) return;
    double sum = sinks_.empty() ? 0.0 : std::exp(sinks_[head] - top);
    for (size_t t = 0; t < scores.size(); ++t) {
      const double weight = std::exp(scores[t] - top);
      sum += weight;
      for (uint32_t c = 0; c < d; ++c) out[c] += weight * values[t * d + c];
    }
    for (uint32_t c = 0; c < d; ++c) out[c] /= sum;
    lse = top + std::log(sum);
  }

  SceneShape shape_;
  std::mt19937 rng_;
  Status status_;
  bool whole_ = false;  // a codec has a path for whole numbers
  std::vector<float> queries_, sinks_;
  std::vector<std::vector<attn::BlockView>> views_;
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> aligned_;
  std::list<std::vector<uint32_t>> positions_;
};

// ‖out - reference‖ / ‖reference‖ over all rows; infinity where something is not finite.
inline double distance(const std::vector<double>& reference, const float* out) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(out[i])) return INFINITY;
    difference += (out[i] - reference[i]) * (out[i] - reference[i]);
    size += reference[i] * reference[i];
  }
  return size > 0.0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

// Every codec there is, in all its widths, that a device can read.
inline std::vector<std::string> readable_codecs() {
  std::vector<std::string> names;
  for (const quant::CodecRow& row : quant::codec_rows()) {
    for (const int bits : quant::testing::widths_of(row)) {
      quant::CodecSpec spec;
      spec.id = row.id, spec.bits = static_cast<uint8_t>(bits);
      quant::CodecSpec value = spec;
      if (row.values) value = *quant::parse_codec(row.values);
      const auto k = quant::testing::make_any_codec(spec, quant::Side::key, {128, 128});
      const auto v = quant::testing::make_any_codec(value, quant::Side::value, {128, 128});
      CodecDesc desc;
      if (k.ok() && v.ok() && readable(**k, **v, desc)) names.push_back(to_string(quant::CodecPair{spec, value}));
    }
  }
  for (const char* name : {"kivi4-g64", "kivi2-g64", "kivi3-g32+s8", "kivi2-g64+s4+clip", "kivi4+had+center", "int8-g32",
                           "even4/mid2", "even3/mid2", "even4/mid3", "kltk4/rot4", "klt1.25+top4", "klt2+top3", "klt1.25+top9",
                           "kivi2+top4", "rot2+top32", "even4+top4/mid2+top5", "kltk4+top4/rot4"}) {
    names.push_back(name);
  }
  return names;
}

// Heads and groups of one codec, for tests on a device: check(shape). A brief run takes one in five of all codecs' `cases`, the
// briefest one in eleven.
template <class Check>
void for_shapes_of(const std::string& codec, int& cases, const Check& check) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (const uint32_t group : {1u, 4u, 7u, 16u}) {
      if (brief() && (dim == 256 || group == 7 || ++cases % (brief() == 2 ? 11 : 5))) continue;
      SCOPED_TRACE(codec + " head_dim " + std::to_string(dim) + " group " + std::to_string(group));
      SceneShape shape;
      shape.head_dim = dim, shape.group = group, shape.kv_heads = group > 4 ? 1 : 2;
      shape.codecs = {codec};
      shape.lengths = {128 * 5 + 20};
      shape.sinks = 4;
      check(shape);
    }
  }
}

// Everything by chance: any codecs, shapes and lengths of a ragged batch.
inline SceneShape any_scene(std::mt19937& rng) {
  static const std::vector<std::string> names = readable_codecs();
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  SceneShape shape;
  shape.head_dim = std::vector<uint32_t>{32, 64, 80, 96, 128, 128, 128, 256}[pick(8)];
  shape.block = pick(3) ? 128 : 16 * (1 + pick(16));
  shape.group = 1 + pick(pick(2) ? 8 : 16);
  shape.kv_heads = 1 + pick(2);
  for (uint32_t i = 0; i < 1 + pick(3); ++i) shape.codecs.push_back(names[pick(static_cast<uint32_t>(names.size()))]);
  for (uint32_t i = 0; i < 1 + pick(4); ++i) shape.lengths.push_back(1 + pick(pick(3) ? 700 : 4000));
  shape.sinks = pick(2) * 4, shape.hot = pick(300);
  shape.dead = pick(3) == 0, shape.cut = pick(3) == 0, shape.sink_logits = pick(3) == 0;
  shape.params.window = pick(4) == 0 ? 1 + pick(900) : 0;
  shape.params.softcap = pick(5) == 0 ? 30.0f : 0.0f;
  shape.sharpness = std::vector<float>{0.3f, 1.0f, 1.0f, 2.0f}[pick(4)];
  return shape;
}

// Rows of the same numbers in every run.
inline std::vector<float> noise(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

// The logarithms of sums, with their tolerance where they are numbers.
inline void expect_sums(const std::vector<double>& want, const std::vector<float>& lse, double tolerance) {
  ASSERT_EQ(want.size(), lse.size());
  for (size_t i = 0; i < lse.size(); ++i) {
    if (want[i] == -INFINITY) EXPECT_EQ(lse[i], -INFINITY);
    else EXPECT_NEAR(lse[i], want[i], tolerance * std::max(1.0, std::fabs(want[i])));
  }
}

inline void expect_answers(const Scene& scene, const std::vector<float>& out, const std::vector<float>& lse, double tolerance,
                           double lse_tolerance) {
  std::vector<double> want, want_lse;
  scene.reference(want, want_lse);
  EXPECT_LT(distance(want, out.data()), tolerance);
  expect_sums(want_lse, lse, lse_tolerance);
}

// A block and some rows around it, of every codec that a device can read.
template <class Check>
void for_each_codec(const Check& check) {
  for (const std::string& name : readable_codecs()) {
    SCOPED_TRACE(name);
    for (const uint32_t dim : {64u, 128u}) {
      SceneShape shape;
      shape.head_dim = dim;
      shape.kv_heads = 1, shape.group = 2;
      shape.codecs = {name};
      shape.lengths = {150};
      shape.hot = 22;
      check(shape);
    }
  }
}

// check(shape, seed, thread blocks): windows, softcaps, sinks, dead rows and cut blocks, by chance.
template <class Check>
void for_random_scenes(const std::vector<uint32_t>& dims, uint32_t most_group, const Check& check) {
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    SceneShape shape;
    shape.head_dim = dims[rng() % dims.size()];
    shape.block = 16 * (1 + rng() % 8);
    shape.group = 1 + rng() % most_group;
    shape.codecs = {"rot4", "kivi2", "even4"};
    shape.lengths = {static_cast<uint32_t>(1 + rng() % 600), static_cast<uint32_t>(1 + rng() % 200)};
    shape.sinks = rng() % 2 * 4;
    shape.hot = static_cast<uint32_t>(rng() % 64);
    shape.dead = rng() % 2, shape.cut = rng() % 2, shape.sink_logits = rng() % 2;
    shape.params.window = rng() % 2 ? 1 + static_cast<uint32_t>(rng() % 300) : 0;
    shape.params.softcap = rng() % 3 == 0 ? 20.0f : 0.0f;
    check(shape, seed, 1 + static_cast<uint32_t>(rng() % 9));
  }
}

}  // namespace tierkv::cuda::testing
