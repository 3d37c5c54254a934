#include "llama/collector.h"

#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/status_macros.h"
#include "learn/products.h"

namespace tierkv::llama {
namespace {

constexpr uint32_t kPart = 4;      // queries of a task
constexpr uint32_t kSegment = 64;  // rows whose lengths a task measures

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const uint16_t* half_row(const RowsView& rows, uint32_t token, uint32_t head) {
  return static_cast<const uint16_t*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

bool all_finite(const std::vector<uint16_t>& halves) {
  return std::all_of(halves.begin(), halves.end(), [](uint16_t h) { return (h & 0x7C00u) != 0x7C00u; });
}

Status not_finite(uint32_t layer, const char* what) {
  return error(StatusCode::invalid_argument, what, " of layer ", layer, " are not finite: the model cannot be calibrated");
}

}  // namespace

calib::ModelId model_id(const ModelShape& shape) {
  calib::ModelId id;
  char name[256] = "";
  if (shape.model != nullptr) (void)llama_model_meta_val_str(shape.model, "general.name", name, sizeof(name));
  id.name = name;
  id.fingerprint = shape.fingerprint;
  id.layers = shape.layers;
  id.heads = shape.heads;
  id.kv_heads = shape.kv_heads;
  id.head_dim = shape.head_dim;
  return id;
}

Collector::Collector(const ModelShape& shape, std::vector<uint32_t> windows, const CollectorOptions& options,
                     std::vector<OutputWeights> weights, ThreadPool& pool)
    : shape_(shape), options_(options), windows_(std::move(windows)), weights_(std::move(weights)), pool_(pool) {
  weights_.resize(shape.layers);
  group_ = shape.heads / shape.kv_heads;
  longest_ = windows_.empty() ? 0 : *std::max_element(windows_.begin(), windows_.end());
  statistics_.model = model_id(shape);
  statistics_.block = options.block;
  statistics_.sinks = options.sinks;
  statistics_.distance = options.distance;
  statistics_.ropes = shape.ropes;
  statistics_.ropes.resize(shape.layers);

  // Sampled tokens: evenly over all that are not sinks.
  uint64_t total = 0;
  for (const uint32_t length : windows_) total += length - std::min(length, options.sinks);
  const uint64_t count = std::min<uint64_t>(total, options.sample_tokens);
  uint64_t before = 0;
  for (const uint32_t length : windows_) {
    sample_first_.push_back(statistics_.sampled());
    const uint64_t here = length - std::min(length, options.sinks);
    for (uint64_t i = statistics_.sampled(); i < count && i * total / count < before + here; ++i) {
      statistics_.positions.push_back(static_cast<uint32_t>(i * total / count - before) + options.sinks);
    }
    before += here;
  }
  sample_first_.push_back(statistics_.sampled());

  const size_t dim = shape.head_dim, square = dim * dim;
  calib::PairSums empty;
  for (std::vector<double>* sums : {&empty.key_block, &empty.key_plain, &empty.value, &empty.queries}) sums->assign(square, 0.0);
  statistics_.pairs.assign(static_cast<size_t>(shape.layers) * shape.kv_heads, empty);
  value_.assign(shape.layers, std::vector<double>(shape.heads, 0.0));
  statistics_.layers.resize(shape.layers);
  layers_.resize(shape.layers);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    calib::LayerSample& sample = statistics_.layers[i];
    const size_t rows = static_cast<size_t>(statistics_.sampled()) * shape.kv_heads;
    sample.keys.assign(rows * dim, 0);
    sample.values.assign(rows * dim, 0);
    sample.weight.assign(rows, 0.0f);
    sample.influence.assign(rows, 0.0f);
    Layer& layer = layers_[i];
    const auto same =
        std::find_if(turners_.begin(), turners_.end(), [&](const auto& t) { return t->rope() == statistics_.ropes[i]; });
    layer.turner = same != turners_.end()
                       ? same->get()
                       : turners_.emplace_back(std::make_unique<calib::Turner>(statistics_.ropes[i], shape.head_dim)).get();
    layer.idle = shape.window[i] != 0 && shape.window[i] <= options.distance;
    if (layer.idle) continue;
    layer.keys.resize(longest_ * shape.kv_heads * dim);
    layer.values.resize(layer.keys.size());
    layer.lengths.resize(static_cast<size_t>(longest_) * shape.heads);
    layer.weight.resize(static_cast<size_t>(longest_) * shape.kv_heads);
    layer.influence.resize(layer.weight.size());
  }
}

const float* Collector::gram(uint32_t layer, uint32_t head) const {
  if (weights_[layer].gram.empty()) return nullptr;
  return weights_[layer].gram.data() + static_cast<size_t>(head) * shape_.head_dim * shape_.head_dim;
}

uint32_t Collector::without_residual() const {
  return static_cast<uint32_t>(
      std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) { return !layer.has_residual; }));
}

uint32_t Collector::without_projection() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < shape_.layers; ++i) count += gram(i, 0) == nullptr;
  return count;
}

void Collector::begin_window() {
  ++window_;
  for (Layer& layer : layers_) {
    layer.positions = 0;
    layer.residual.assign(longest_, 1.0f);
    std::fill(layer.weight.begin(), layer.weight.end(), 0.0f);
    std::fill(layer.influence.begin(), layer.influence.end(), 0.0f);
  }
}

void Collector::residual(uint32_t layer, uint32_t position, std::span<const float> squares) {
  layers_[layer].has_residual = true;
  for (size_t i = 0; i < squares.size() && position + i < longest_; ++i) {
    if (squares[i] != 0.0f) layers_[layer].residual[position + i] = squares[i];
  }
}

void Collector::observe(const AttentionSeen& seen) {
  const double start = now();
  Layer& layer = layers_[seen.layer];
  const uint32_t count = seen.keys.tokens;
  if (window_ == 0 || seen.position != layer.positions || layer.positions + count > windows_[window_ - 1])
    return;  // end_window() says so
  take_sample(seen);
  if (!layer.idle) {
    copy_rows(seen, layer);
    measure_values(layer, seen.layer, seen.position, count);
    add_pairs(seen, layer);
  }
  layer.positions += count;
  seconds_ += now() - start;
}

void Collector::take_sample(const AttentionSeen& seen) {
  calib::LayerSample& sample = statistics_.layers[seen.layer];
  const auto first = statistics_.positions.begin() + sample_first_[window_ - 1],
             last = statistics_.positions.begin() + sample_first_[window_];
  for (auto at = std::lower_bound(first, last, seen.position); at != last && *at < seen.position + seen.keys.tokens; ++at) {
    const auto index = static_cast<size_t>(at - statistics_.positions.begin());
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      const size_t to = (index * shape_.kv_heads + h) * shape_.head_dim;
      std::copy_n(half_row(seen.keys, *at - seen.position, h), shape_.head_dim, sample.keys.data() + to);
      std::copy_n(half_row(seen.values, *at - seen.position, h), shape_.head_dim, sample.values.data() + to);
    }
  }
}

void Collector::copy_rows(const AttentionSeen& seen, Layer& layer) {
  const size_t dim = shape_.head_dim;
  for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
    for (uint32_t t = 0; t < seen.keys.tokens; ++t) {
      const size_t to = (static_cast<size_t>(h) * longest_ + seen.position + t) * dim;
      std::copy_n(half_row(seen.keys, t, h), dim, layer.keys.data() + to);
      std::copy_n(half_row(seen.values, t, h), dim, layer.values.data() + to);
    }
  }
}

void Collector::measure_values(Layer& layer, uint32_t index, uint32_t first, uint32_t count) {
  const uint32_t segments = (count + kSegment - 1) / kSegment, dim = shape_.head_dim;
  pool_.run(shape_.heads * segments, [&](uint32_t task) {
    const uint32_t head = task / segments, from = first + task % segments * kSegment, n = std::min(kSegment, first + count - from);
    std::vector<float> scratch(learn::lengths_scratch(n, dim));
    const uint16_t* rows = layer.values.data() + (static_cast<size_t>(head / group_) * longest_ + from) * dim;
    learn::row_lengths(rows, n, dim, gram(index, head), layer.lengths.data() + static_cast<size_t>(head) * longest_ + from,
                       scratch.data());
  });
}

HeadWindow Collector::head_window(const Layer& layer, uint32_t index, uint32_t head) const {
  HeadWindow result;
  const size_t rows = static_cast<size_t>(head) * longest_;
  result.keys = layer.keys.data() + rows * shape_.head_dim;
  result.values = layer.values.data() + rows * shape_.head_dim;
  result.lengths = layer.lengths.data() + rows * group_;
  result.stride = longest_;
  result.gram = gram(index, head * group_);
  result.turner = layer.turner;
  result.dim = shape_.head_dim;
  result.group = group_;
  result.window = shape_.window[index];
  result.block = options_.block;
  result.sinks = options_.sinks;
  result.distance = options_.distance;
  return result;
}

void Collector::add_pairs(const AttentionSeen& seen, Layer& layer) {
  // The window's number shifts the grid, so that windows together look at every phase.
  std::vector<uint32_t> chosen;
  for (uint32_t t = seen.position; t < seen.position + seen.queries.tokens; ++t) {
    if ((t + window_) % options_.query_stride == 0 && t >= options_.sinks + options_.distance) chosen.push_back(t);
  }
  if (chosen.empty()) return;
  const uint32_t parts = (static_cast<uint32_t>(chosen.size()) + kPart - 1) / kPart;
  const uint32_t positions = seen.position + seen.queries.tokens;
  const size_t columns = static_cast<size_t>(shape_.heads) * shape_.head_dim;
  std::vector<float> residual(chosen.size());
  pool_.run(static_cast<uint32_t>(chosen.size()), [&](uint32_t i) {
    residual[i] = layer.residual[chosen[i]] * weights_[seen.layer].scale(seen.out + (chosen[i] - seen.position) * columns, columns);
  });
  if (tasks_.size() < static_cast<size_t>(parts) * shape_.kv_heads) tasks_.resize(static_cast<size_t>(parts) * shape_.kv_heads);
  pool_.run(parts * shape_.kv_heads, [&](uint32_t index) {
    const uint32_t head = index / parts, part = index % parts;
    PairTask& task = tasks_[index];
    task.begin(head_window(layer, seen.layer, head), positions);
    for (size_t i = part * kPart; i < std::min<size_t>(chosen.size(), (part + 1) * kPart); ++i) {
      const uint32_t row = chosen[i] - seen.position;
      SeenQuery query;
      query.position = chosen[i];
      query.head_stride = seen.queries.head_stride;
      query.rows =
          static_cast<const float*>(seen.queries.data) + row * seen.queries.token_stride + head * group_ * query.head_stride;
      query.out = seen.out + (static_cast<size_t>(row) * shape_.heads + head * group_) * shape_.head_dim;
      query.scale = seen.scale;
      query.softcap = seen.softcap;
      query.sink_logits = seen.sink_logits != nullptr ? seen.sink_logits + head * group_ : nullptr;
      query.residual = residual[i];
      query.seed = ((static_cast<uint64_t>(window_) << 20 | seen.layer) << 10 | head) << 24 | chosen[i];
      task.add(query);
    }
    task.finish();
  });
  pool_.run(shape_.kv_heads, [&](uint32_t head) {
    const std::span<const PairTask> of_head = std::span(tasks_).subspan(static_cast<size_t>(head) * parts, parts);
    add_up(seen.layer, head, of_head);
    float* weight = layer.weight.data() + static_cast<size_t>(head) * longest_;
    float* influence = layer.influence.data() + static_cast<size_t>(head) * longest_;
    for (const PairTask& task : of_head) {
      for (uint32_t s = 0; s < positions; ++s) {
        weight[s] += task.weight[s];
        influence[s] += task.influence[s];
      }
    }
  });
  for (uint32_t i = 0; i < parts * shape_.kv_heads; ++i) pairs_ += tasks_[i].pairs;
}

void Collector::add_up(uint32_t layer, uint32_t head, std::span<const PairTask> parts) {
  calib::PairSums& sums = statistics_.pairs[static_cast<size_t>(layer) * shape_.kv_heads + head];
  const size_t dim = shape_.head_dim;
  const double stands_for = options_.query_stride;
  for (const PairTask& part : parts) {
    for (size_t i = 0; i < dim; ++i) {
      for (size_t at = i * dim + i; at < (i + 1) * dim; ++at) {
        sums.key_block[at] += stands_for * part.key_block[at];
        sums.key_plain[at] += stands_for * part.key_plain[at];
        sums.queries[at] += part.queries[at];
      }
    }
    for (uint32_t g = 0; g < group_; ++g) value_[layer][head * group_ + g] += stands_for * part.value[g];
    sums.query_count += part.rows;
  }
}

Status Collector::end_window() {
  const uint32_t length = windows_[window_ - 1];
  for (uint32_t i = 0; i < shape_.layers; ++i) {
    Layer& layer = layers_[i];
    if (layer.positions != length) {
      return error(StatusCode::failed_precondition, "layer ", i, " showed ", layer.positions, " of the ", length,
                   " tokens of window ", window_);
    }
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      const calib::PairSums& sums = statistics_.pair_sums(i, h);
      if (!all_finite(sums.key_block) || !all_finite(sums.queries) || !all_finite(value_[i]))
        return not_finite(i, "the statistics");
    }
    if (layer.idle) continue;
    calib::LayerSample& sample = statistics_.layers[i];
    for (uint32_t at = sample_first_[window_ - 1]; at < sample_first_[window_]; ++at) {
      for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
        const size_t from = static_cast<size_t>(h) * longest_ + statistics_.positions[at],
                     to = static_cast<size_t>(at) * shape_.kv_heads + h;
        sample.weight[to] = static_cast<float>(options_.query_stride) * layer.weight[from];
        sample.influence[to] = static_cast<float>(options_.query_stride) * layer.influence[from];
      }
    }
  }
  statistics_.tokens += length;
  return {};
}

Result<calib::Statistics> Collector::finish() {
  if (window_ != windows_.size()) {
    return error(StatusCode::failed_precondition, window_, " of ", windows_.size(), " windows of the text went by");
  }
  const size_t dim = shape_.head_dim;
  for (uint32_t i = 0; i < shape_.layers; ++i) {
    if (!all_finite(statistics_.layers[i].keys)) return not_finite(i, "the keys");
    if (!all_finite(statistics_.layers[i].values)) return not_finite(i, "the values");
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      calib::PairSums& sums = statistics_.pairs[static_cast<size_t>(i) * shape_.kv_heads + h];
      for (uint32_t g = 0; g < group_; ++g) {
        const double weight = value_[i][h * group_ + g];
        const float* matrix = gram(i, h * group_ + g);
        for (size_t at = 0; at < dim * dim; ++at) {
          sums.value[at] += weight * (matrix != nullptr ? static_cast<double>(matrix[at]) : at % (dim + 1) == 0 ? 1.0 : 0.0);
        }
      }
      for (std::vector<double>* matrix : {&sums.key_block, &sums.key_plain, &sums.queries}) {
        for (size_t r = 0; r < dim; ++r) {
          for (size_t c = 0; c < r; ++c) (*matrix)[r * dim + c] = (*matrix)[c * dim + r];
        }
      }
    }
  }
  return std::move(statistics_);
}

}  // namespace tierkv::llama
