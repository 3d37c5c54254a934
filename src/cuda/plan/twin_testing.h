// twin_testing.h — the scalar twin of the kernels: the same descriptors, the same reading of bytes (reading.h), the same partial
// states and merge, in plain loops. Tests run it on the processor, so that everything but the threads is tested without a device.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "attn/rows.h"
#include "cuda/launch/better.h"
#include "cuda/launch/reading.h"
#include "cuda/plan/plan.h"
#include "quant/frame.h"

namespace tierkv::cuda::testing {

// A plan whose views all lie in it, as a launch.
inline Launch launch_of(const PlanInput& input, const Plan& plan, const float* queries, const float* sinks) {
  Launch launch;
  launch.codecs = input.codecs.data(), launch.views = plan.views.data(), launch.masks = plan.masks.data();
  launch.segments = plan.segments.data(), launch.tasks = plan.tasks.data(), launch.cta_begin = plan.cta_begin.data();
  launch.queries = queries, launch.sink_logits = sinks;
  launch.head_dim = input.params.head_dim, launch.group = input.group;
  launch.scale = input.params.scale, launch.softcap = input.params.softcap;
  take_blocks(plan, launch);
  return launch;
}

class Twin {
 public:
  Twin(const Launch& launch, uint32_t partials) : launch_(launch), d_(launch.head_dim) {
    const size_t rows = static_cast<size_t>(partials) * launch.group;
    out_.resize(rows * d_), top_.assign(rows, -INFINITY), sum_.assign(rows, 0.0f);
  }

  // To where the launch says.
  void run() {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < launch_.cta_begin[launch_.ctas]; ++i) {
      rows = std::max(rows, launch_.tasks[launch_.segments[i].task].first_row + launch_.group);
    }
    if (launch_.out_type == 0) return run(launch_.out, launch_.lse);
    std::vector<float> out(size_t{rows} * d_);
    run(out.data(), launch_.lse);
    attn::narrow(out.data(), out.size(), static_cast<DType>(launch_.out_type), launch_.out);
  }

  // out: [rows][head_dim]; lse: [rows].
  void run(float* out, float* lse) {
    uint32_t tasks = 0;
    for (uint32_t cta = 0; cta < launch_.ctas; ++cta) {
      for (uint32_t i = launch_.cta_begin[cta]; i < launch_.cta_begin[cta + 1]; ++i) {
        attend(launch_.segments[i]);
        tasks = std::max(tasks, launch_.segments[i].task + 1);
      }
    }
    for (uint32_t t = 0; t < tasks; ++t) {
      if (!merge(launch_.tasks[t], out, lse) && launch_.failed) launch_.failed[t] = 1;
    }
  }

  // Row t of a view in plain channels.
  std::vector<float> plain_key(const CodecDesc& codec, const ViewDesc& view, uint32_t t) const { return key_row(codec, view, t); }
  std::vector<float> plain_value(const CodecDesc& codec, const ViewDesc& view, uint32_t t) const {
    std::vector<float> row = value_row(codec, view.values, t);
    if (codec.value.hadamard) quant::from_frame(quant::Frame::hadamard, row.data(), 1, d_);
    return row;
  }

 private:
  void attend(const SegmentDesc& segment) {
    for (uint32_t row = 0; row < launch_.group; ++row) {
      const size_t at = static_cast<size_t>(segment.partial) * launch_.group + row;
      std::vector<float> plain(launch_.queries + (launch_.tasks[segment.task].first_row + row) * d_,
                               launch_.queries + (launch_.tasks[segment.task].first_row + row + 1) * d_);
      for (float& x : plain) x *= launch_.scale;
      std::vector<float> sums[2] = {std::vector<float>(d_), std::vector<float>(d_)};  // by frame
      for (uint32_t v = 0; v < segment.views; ++v) {
        const ViewDesc& view = launch_.views[segment.first_view + v];
        const CodecDesc& codec = launch_.codecs[view.codec];
        for (uint32_t t = view.begin; t < view.end; ++t) {
          if (view.mask != kNoMask && (launch_.masks[view.mask * kMaskWords + t / 32] >> (t % 32) & 1u) == 0) continue;
          float score = dot(key_row(codec, view, t), plain);
          if (launch_.softcap > 0.0f) score = launch_.softcap * std::tanh(score / launch_.softcap);
          absorb(score * 1.44269504f, value_row(codec, view.values, t), at, sums, codec.value.hadamard);
        }
      }
      quant::from_frame(quant::Frame::hadamard, sums[1].data(), 1, d_);
      for (uint32_t c = 0; c < d_; ++c) out_[at * d_ + c] = sums[0][c] + sums[1][c];
    }
  }

  static float dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0.0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return static_cast<float>(sum);
  }

  void absorb(float score, const std::vector<float>& row, size_t at, std::vector<float> (&sums)[2], int frame) {
    const float top = std::max(top_[at], score), shrink = std::exp2(top_[at] - top), weight = std::exp2(score - top);
    top_[at] = top;
    sum_[at] = sum_[at] * shrink + weight;
    for (uint32_t c = 0; c < d_; ++c) {
      sums[frame][c] = sums[frame][c] * shrink + weight * row[c];
      sums[1 - frame][c] *= shrink;
    }
  }

  // Codes of one lane as levels, along its depth.
  static std::vector<float> lane_values(const quant::SideLayout& side, const uint8_t* bytes, uint32_t lane, uint32_t depth) {
    std::vector<float> out(depth);
    for (uint32_t quad = 0; quad * kQuad < depth; ++quad) {
      float levels[kQuad];
      unpack_quad(side, bytes, lane, quad, levels);
      std::copy(levels, levels + kQuad, out.begin() + quad * kQuad);
    }
    return out;
  }

  // What better row t of keys has more, in plain channels of a block at position 0.
  void add_better_key(const CodecDesc& codec, const ViewDesc& view, uint32_t t, std::vector<float>& row) const {
    const uint8_t* const at = view.keys + padded_bytes(codec.key.bytes);
    for (uint32_t b = 0; b < codec.key_better; ++b) {
      if (better_index(at, codec.key_better, b) != t) continue;
      for (uint32_t c = 0; c < d_; ++c) row[c] += better_key(at, codec.key_better, b, c);
    }
  }
  // And of values, in the codec's frame.
  void add_better_value(const CodecDesc& codec, const uint8_t* bytes, uint32_t t, std::vector<float>& row) const {
    const uint8_t* const at = bytes + padded_bytes(codec.value.bytes);
    for (uint32_t b = 0; b < codec.value_better; ++b) {
      if (better_index(at, codec.value_better, b) != t) continue;
      for (uint32_t c = 0; c < d_; ++c) row[c] += better_value(at, codec.value_better, b, c, d_);
    }
  }

  // In the plain frame.
  std::vector<float> key_row(const CodecDesc& codec, const ViewDesc& view, uint32_t t) const {
    const quant::SideLayout& key = codec.key;
    std::vector<float> row(d_);
    if (key.kind == quant::LayoutKind::rows16) {
      const auto* halves = reinterpret_cast<const uint16_t*>(view.keys) + static_cast<size_t>(t) * d_;
      for (uint32_t c = 0; c < d_; ++c) row[c] = short_value(halves[c], key.bf16);
    } else if (key.kind == quant::LayoutKind::words) {
      return word_row(codec, view, t);
    } else {
      row = lane_values(key, view.keys, t, d_);
      for (uint32_t c = 0; c < d_; ++c) {
        const uint32_t entry = key.by_channel ? t / key.group * d_ + c : c / key.group * key.tokens + t;
        const ScaleOffset grid = meta_entry(key, view.keys + key.meta_at, entry, key.groups * (key.by_channel ? d_ : key.tokens));
        row[c] = row[c] * grid.scale + grid.offset;
        if (!key.even) row[c] += channel_terms(key, view.keys, c).mean;
      }
    }
    if (key.hadamard) quant::from_frame(quant::Frame::hadamard, row.data(), 1, d_);
    for (uint32_t c = 0; key.even && c < d_; ++c) {
      const ChannelTerms terms = channel_terms(key, view.keys, c);
      row[c] = row[c] * terms.factor + terms.mean;
    }
    add_better_key(codec, view, t, row);
    return row;
  }

  std::vector<float> word_row(const CodecDesc& codec, const ViewDesc& view, uint32_t t) const {
    const quant::SideLayout& key = codec.key;
    std::vector<float> row(key.mean, key.mean + d_);
    for (uint32_t quad = 0; quad * kQuad < key.components; ++quad) {
      float codes[kQuad];
      unpack_components(key, view.keys, t, quad, codes);
      for (uint32_t k = 0; k < kQuad; ++k) {
        const uint32_t j = quad * kQuad + k;
        for (uint32_t c = 0; c < d_; ++c) row[c] += (codes[k] - middle_of(key, j)) * half_value(key.rows[j * d_ + c]);
      }
    }
    add_better_key(codec, view, t, row);
    for (uint32_t p = 0; p < key.pairs; ++p) {
      float cosine, sine;
      turn_of(key, view.first_position, p, cosine, sine);
      float &a = row[key.turned[2 * p]], &b = row[key.turned[2 * p + 1]];
      const float x = a, y = b;
      a = x * cosine - y * sine, b = x * sine + y * cosine;
    }
    return row;
  }

  // In the codec's frame.
  std::vector<float> value_row(const CodecDesc& codec, const uint8_t* bytes, uint32_t t) const {
    const quant::SideLayout& value = codec.value;
    std::vector<float> row(d_);
    for (uint32_t c = 0; c < d_; ++c) {
      if (value.kind == quant::LayoutKind::rows16) {
        row[c] = short_value(reinterpret_cast<const uint16_t*>(bytes)[static_cast<size_t>(t) * d_ + c], value.bf16);
        continue;
      }
      float levels[kQuad];
      unpack_quad(value, bytes, c, t / kQuad, levels);
      const ScaleOffset grid =
          meta_entry(value, bytes + value.meta_at, c / value.group * value.tokens + t, value.groups * value.tokens);
      row[c] = levels[t % kQuad] * grid.scale + grid.offset;
    }
    add_better_value(codec, bytes, t, row);
    return row;
  }

  // False: a row is not finite, and zeros.
  bool merge(const TaskDesc& task, float* out, float* lse) const {
    bool all_fine = true;
    for (uint32_t row = 0; row < launch_.group; ++row) {
      float top = launch_.sink_logits ? launch_.sink_logits[task.first_head + row] * 1.44269504f : -INFINITY;
      double sum = launch_.sink_logits ? 1.0 : 0.0;
      const float sink = top;
      for (uint32_t p = 0; p < task.partials; ++p) top = std::max(top, top_[(task.first_partial + p) * launch_.group + row]);
      if (launch_.sink_logits) sum = std::exp2(static_cast<double>(sink) - top);
      std::vector<double> values(d_);
      for (uint32_t p = 0; p < task.partials; ++p) {
        const size_t at = static_cast<size_t>(task.first_partial + p) * launch_.group + row;
        if (top_[at] == -INFINITY && sum_[at] == 0.0f) continue;
        const double share = std::exp2(static_cast<double>(top_[at]) - top);
        sum += share * sum_[at];
        for (uint32_t c = 0; c < d_; ++c) values[c] += share * out_[at * d_ + c];
      }
      const size_t to = task.first_row + row;
      bool fine = std::isfinite(sum);
      for (uint32_t c = 0; c < d_; ++c) fine &= std::isfinite(values[c]);
      all_fine &= fine;
      for (uint32_t c = 0; c < d_; ++c) out[to * d_ + c] = fine && sum > 0.0 ? static_cast<float>(values[c] / sum) : 0.0f;
      lse[to] = sum > 0.0 ? static_cast<float>((top + std::log2(sum)) / 1.44269504) : -INFINITY;
    }
    return all_fine;
  }

  const Launch launch_;
  const uint32_t d_;
  std::vector<float> out_, top_, sum_;
};

}  // namespace tierkv::cuda::testing
