#include "llama/probe.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/f16.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "calib/klt.h"

namespace tierkv::llama {
namespace {

constexpr double kProbeBits = 1.0;  // of kProbeCodec
constexpr double kUsualBits = 1.5;  // an archive as it is used
constexpr double kLoudness = 0.25;  // of the distortion that all layers together have there
// Of an error. On SmolLM2 the divergence is proportional to the distortion up to a gain of 2 in keys; at 3 the softmax of some
// layers breaks down.
constexpr double kMostGain[2] = {2.0, 4.0};
constexpr double kWhisper = 0.03;  // of an error, for the floor: a thousandth of the distortion
constexpr uint32_t kFloorLayers = 10;
constexpr uint32_t kStretch = 256;      // scored tokens of a window, unless there are too few windows
constexpr uint32_t kMostPrefix = 2048;  // tokens before them
constexpr uint32_t kChunk = 128;        // scored tokens at a time
constexpr uint32_t kBlock = 32;         // tokens whose mean is one sample of the standard error

enum Side { kKeys = 0, kValues = 1 };

struct Trial {
  uint32_t layer = 0;
  Side side = kKeys;
  double gain = 0.0;
  double distortion = 0.0;
  std::vector<double> blocks;  // mean divergence of each block of tokens
};

struct Rows {
  std::vector<uint16_t> exact[2],
      coded[2];  // by side: [token][kv head][head_dim], fp16; coded is empty in layers that are not probed
};

double key_distortion(const calib::KltHead& head, const calib::KltWords& words) {
  double sum = 0.0;
  size_t j = 0;
  for (int w = calib::kKltWidths - 1; w >= 0; --w) {
    for (uint32_t k = 0; k < words.components(static_cast<uint32_t>(w)); ++k, ++j) sum += head.distortion[w][j];
  }
  for (; j < head.variance.size(); ++j) sum += head.variance[j];
  return sum;
}

// What the tables predict of a layer with the widths that all layers have at `bits`.
double layer_distortion(const calib::Calibration& c, double bits, uint32_t layer, Side side) {
  double sum = 0.0;
  for (uint32_t h = 0; h < c.model.kv_heads; ++h) {
    const calib::KltHead& head = c.klt->head(layer, h);
    if (head.mean.empty()) continue;
    const auto choice = c.klt_choice(bits, /*joint=*/true, layer, h);
    if (!choice.ok()) continue;  // never of tables in memory
    sum += side == kKeys ? key_distortion(head, choice->keys) : static_cast<double>(head.value_distortion[choice->value_bits - 2u]);
  }
  return sum;
}

bool has_basis(const calib::Calibration& c, uint32_t layer) {
  for (uint32_t h = 0; h < c.model.kv_heads; ++h) {
    if (c.klt->head(layer, h).mean.empty()) return false;
  }
  return true;
}

struct Trials {
  std::vector<Trial> loud;      // both sides of every layer, at the same distortion where they can be
  std::vector<Trial> whispers;  // some layers with next to none
};

Trials plan_trials(const calib::Calibration& c) {
  double usual = 0.0;
  std::vector<uint32_t> layers;
  for (uint32_t l = 0; l < c.model.layers; ++l) {
    if (!has_basis(c, l)) continue;
    layers.push_back(l);
    usual += layer_distortion(c, kUsualBits, l, kKeys) + layer_distortion(c, kUsualBits, l, kValues);
  }
  const auto add = [&](std::vector<Trial>& trials, uint32_t layer, Side side, double share) {
    const double own = layer_distortion(c, kProbeBits, layer, side);
    if (!(own > 0.0) || !std::isfinite(own)) return;
    const double gain = share * std::min(kMostGain[side], std::sqrt(kLoudness * usual / own));
    trials.push_back({layer, side, gain, gain * gain * own, {}});
  };
  Trials trials;
  for (const uint32_t layer : layers) {
    add(trials.loud, layer, kKeys, 1.0);
    add(trials.loud, layer, kValues, 1.0);
  }
  const size_t floors = std::min<size_t>(kFloorLayers, layers.size());
  for (size_t i = 0; i < floors; ++i)
    add(trials.whispers, layers[floors == 1 ? 0 : i * (layers.size() - 1) / (floors - 1)], kKeys, kWhisper);
  return trials;
}

// The reference's predictions of the scored tokens of one window.
class Reference {
 public:
  void clear() { probabilities_.clear(), level_.clear(); }
  size_t rows() const { return level_.size(); }
  void add(std::span<const float> logits) {
    const double sum = log_sum_exp(logits);
    const size_t at = probabilities_.size();
    probabilities_.resize(at + logits.size());
    for (size_t i = 0; i < logits.size(); ++i) probabilities_[at + i] = std::exp(static_cast<float>(logits[i] - sum));
    level_.push_back(0.0);
    level_.back() = expectation(level_.size() - 1, logits) - sum;
  }
  // KL(reference || other): 0 exactly for the same logits.
  double divergence(size_t row, std::span<const float> logits) const {
    return level_[row] - (expectation(row, logits) - log_sum_exp(logits));
  }

 private:
  static double log_sum_exp(std::span<const float> logits) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float x : logits) sum += static_cast<double>(std::exp(x - top));
    return static_cast<double>(top) + std::log(sum);
  }
  double expectation(size_t row, std::span<const float> logits) const {
    const float* p = probabilities_.data() + row * logits.size();
    double sum = 0.0;
    for (size_t i = 0; i < logits.size(); ++i) sum += static_cast<double>(p[i]) * static_cast<double>(logits[i]);
    return sum;
  }
  std::vector<float> probabilities_;  // [row][token]
  std::vector<double> level_;         // of each row, minus its entropy
};

class Prober {
 public:
  Prober(const ModelShape& shape, const CalibrationPtr& tables, const CalibrateOptions& options)
      : shape_(shape),
        tables_(tables),
        options_(options),
        width_(static_cast<size_t>(shape.kv_heads) * shape.head_dim),
        rows_(shape.layers) {}

  Status open();
  // Runs the window and keeps the rows of its first `prefix` tokens, as they are and as the codec makes them, and what the model
  // predicts then.
  Status begin(const TokenList& window, uint32_t prefix);
  Status run(Trial& trial);

 private:
  void keep(const AttentionSeen& seen);
  Status code();
  Status play(const Trial* trial, const std::function<void(size_t, std::span<const float>)>& on_logits);
  bool stopped() const { return options_.cancelled && options_.cancelled(); }
  static bool is_stopped(void* user) { return static_cast<const Prober*>(user)->stopped(); }

  const ModelShape& shape_;
  CalibrationPtr tables_;
  const CalibrateOptions& options_;
  size_t width_;
  std::unique_ptr<AdaptiveKVCache> cache_, coder_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
  bool keeping_ = false;
  std::vector<Rows> rows_;  // of each layer
  TokenList scored_;
  uint32_t prefix_ = 0;
  Reference reference_;
};

Status Prober::open() {
  const uint32_t threads = options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency());
  CacheConfig config;
  TIERKV_RETURN_IF_ERROR(apply_preset("fp16", config));
  config.tiers.hot = kAll;
  config.window_slack = std::max(config.window_slack, options_.micro_batch);
  config.threads = threads;
  shape_.apply(config);
  TIERKV_ASSIGN_OR_RETURN(cache_, AdaptiveKVCache::create(config));

  // Archives what is options.distance back, and nothing nearer, like the pairs that the tables were made from.
  CacheConfig coder;
  TIERKV_RETURN_IF_ERROR(apply_preset("balanced", coder));
  coder.tiers.hot = std::min(coder.tiers.hot, options_.distance);
  coder.tiers.warm = options_.distance - coder.tiers.hot;
  coder.tiers.warm_codec = "fp16";
  coder.tiers.archive_codec = kProbeCodec;
  coder.tiers.sinks = options_.sinks;
  coder.archive_block = std::min(256u, std::max(16u, options_.block / 16 * 16));
  coder.warm_block = coder.archive_block % 64 == 0 ? 64 : 16;
  shape_.apply(coder);
  for (uint32_t l = 0; l < shape_.layers; ++l) {
    if (has_basis(*tables_, l)) continue;
    LayerOverride plain;
    plain.first = plain.last = l;
    plain.archive_codec = "fp16";
    coder.overrides.push_back(plain);
  }
  TIERKV_ASSIGN_OR_RETURN(coder_, AdaptiveKVCache::create(coder, tables_));

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = options_.micro_batch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(threads);
  params.no_perf = true;
  params.abort_callback = is_stopped;
  params.abort_callback_data = this;
  HostOptions host;
  host.observer = [this](const AttentionSeen& seen) { keep(seen); };
  TIERKV_ASSIGN_OR_RETURN(host_, Host::attach(params, shape_, *cache_, host));
  context_.reset(llama_init_from_model(shape_.model, params));
  if (!context_) return error(StatusCode::internal, "libllama could not make a context");
  return {};
}

void Prober::keep(const AttentionSeen& seen) {
  if (!keeping_) return;
  for (const Side side : {kKeys, kValues}) {
    const RowsView& from = side == kKeys ? seen.keys : seen.values;
    std::vector<uint16_t>& to = rows_[seen.layer].exact[side];
    for (uint32_t t = 0; t < from.tokens; ++t) {
      for (uint32_t h = 0; h < from.heads; ++h) {
        const uint16_t* row = static_cast<const uint16_t*>(from.data) + t * from.token_stride + h * from.head_stride;
        to.insert(to.end(), row, row + from.head_dim);
      }
    }
  }
}

Status Prober::begin(const TokenList& window, uint32_t prefix) {
  for (Rows& rows : rows_) {
    for (const Side side : {kKeys, kValues}) rows.exact[side].clear();
  }
  prefix_ = prefix;
  TIERKV_RETURN_IF_ERROR(host_->remove(0));
  keeping_ = true;
  TokenList tokens(window.begin(), window.begin() + prefix);
  for (size_t at = 0; at < prefix; at += host_->micro_batch()) {
    const size_t count = std::min<size_t>(host_->micro_batch(), prefix - at);
    TIERKV_RETURN_IF_ERROR(host_->decode(context_.get(), llama_batch_get_one(tokens.data() + at, static_cast<int32_t>(count))));
  }
  keeping_ = false;
  for (const Rows& rows : rows_) {
    if (rows.exact[kKeys].size() != prefix * width_)
      return error(StatusCode::internal, "a layer's keys did not go by while its window was read");
  }
  TIERKV_RETURN_IF_ERROR(code());
  scored_.assign(window.begin() + prefix, window.end());
  reference_.clear();
  return play(nullptr, [&](size_t, std::span<const float> logits) { reference_.add(logits); });
}

Status Prober::code() {
  TIERKV_ASSIGN_OR_RETURN(const SeqId seq, coder_->add_sequence());
  std::vector<float> back[2];
  for (uint32_t l = 0; l < shape_.layers; ++l) {
    Rows& rows = rows_[l];
    if (!has_basis(*tables_, l)) continue;
    TIERKV_RETURN_IF_ERROR(
        coder_->append(seq, l, RowsView::dense(rows.exact[kKeys].data(), DType::f16, prefix_, shape_.kv_heads, shape_.head_dim),
                       RowsView::dense(rows.exact[kValues].data(), DType::f16, prefix_, shape_.kv_heads, shape_.head_dim)));
    TIERKV_RETURN_IF_ERROR(coder_->flush());
    TIERKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> live, coder_->positions(seq, l, 0));  // a sliding window lets go of some
    for (const Side side : {kKeys, kValues}) back[side].resize(live.size() * width_), rows.coded[side] = rows.exact[side];
    TIERKV_RETURN_IF_ERROR(coder_->get(seq, l, live, back[kKeys].data(), back[kValues].data()));
    for (const Side side : {kKeys, kValues}) {
      for (size_t i = 0; i < live.size(); ++i) {
        for (size_t c = 0; c < width_; ++c) rows.coded[side][live[i] * width_ + c] = f32_to_f16(back[side][i * width_ + c]);
      }
    }
  }
  return coder_->remove(seq);
}

Status Prober::play(const Trial* trial, const std::function<void(size_t, std::span<const float>)>& on_logits) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache_->add_sequence());
  TIERKV_RETURN_IF_ERROR(host_->bind(0, seq));
  std::vector<uint16_t> changed;
  for (uint32_t l = 0; l < shape_.layers; ++l) {
    const uint16_t* side[2] = {rows_[l].exact[kKeys].data(), rows_[l].exact[kValues].data()};
    if (trial != nullptr && trial->layer == l) {
      const std::vector<uint16_t>&exact = rows_[l].exact[trial->side], &coded = rows_[l].coded[trial->side];
      changed = exact;
      for (size_t i = 0; i < exact.size(); ++i) {
        if (exact[i] == coded[i]) continue;
        const float x = f16_to_f32(exact[i]), error = f16_to_f32(coded[i]) - x;
        changed[i] = f32_to_f16(std::clamp(x + static_cast<float>(trial->gain) * error, -kMaxF16, kMaxF16));
      }
      side[trial->side] = changed.data();
    }
    for (uint32_t at = 0; at < prefix_; at += options_.micro_batch) {
      const uint32_t count = std::min(options_.micro_batch, prefix_ - at);
      TIERKV_RETURN_IF_ERROR(
          cache_->append(seq, l, RowsView::dense(side[kKeys] + at * width_, DType::f16, count, shape_.kv_heads, shape_.head_dim),
                         RowsView::dense(side[kValues] + at * width_, DType::f16, count, shape_.kv_heads, shape_.head_dim)));
    }
  }
  const auto vocabulary = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(shape_.model)));
  const size_t chunk = std::min<size_t>(kChunk, host_->micro_batch());
  for (size_t at = 0; at < scored_.size(); at += chunk) {
    const size_t count = std::min(chunk, scored_.size() - at);
    std::vector<int8_t> wanted(count, 1);
    llama_batch batch = llama_batch_get_one(scored_.data() + at, static_cast<int32_t>(count));
    batch.logits = wanted.data();
    TIERKV_RETURN_IF_ERROR(host_->decode(context_.get(), batch));
    for (size_t i = 0; i < count; ++i) {
      const float* row = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
      if (row == nullptr) return error(StatusCode::internal, "libllama gave no logits for a token that was scored");
      on_logits(at + i, {row, vocabulary});
    }
  }
  return {};
}

Status Prober::run(Trial& trial) {
  double sum = 0.0;
  TIERKV_RETURN_IF_ERROR(play(&trial, [&](size_t row, std::span<const float> logits) {
    sum += reference_.divergence(row, logits);
    const size_t in_block = row % kBlock + 1;
    if (in_block != kBlock && row + 1 != reference_.rows()) return;
    trial.blocks.push_back(sum / static_cast<double>(in_block));
    sum = 0.0;
  }));
  if (!trial.blocks.empty() && std::isfinite(trial.blocks.back())) return {};
  return error(StatusCode::invalid_argument, "probing layer ", trial.layer, ": the model gave NaN or infinity");
}

struct Mean {
  double value = 0.0, error = 0.0;
};

Mean mean_of(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  Mean mean;
  for (const double x : samples) mean.value += x / n;
  for (const double x : samples) mean.error += (x - mean.value) * (x - mean.value);
  mean.error = n > 1.0 ? std::sqrt(mean.error / (n * (n - 1.0))) : mean.value;
  return mean;
}

// A parabola over layers through the whispers: the earlier the first difference, the more there is to round differently.
class Floor {
 public:
  explicit Floor(std::span<const Trial> whispers) {
    std::vector<Mean> means;
    for (const Trial& t : whispers) means.push_back(mean_of(t.blocks));
    double noise = 0.0;
    for (const Mean& m : means) noise += m.error * m.error;
    // Polynomials that are orthogonal on the layers measured, one degree after the other, as many as there are points for.
    std::vector<std::vector<double>> rows(whispers.size());
    for (size_t degree = 0; degree < std::min<size_t>(3, whispers.size()); ++degree) {
      Term term;
      std::vector<double> values;
      for (const Trial& t : whispers) values.push_back(std::pow(static_cast<double>(t.layer), static_cast<double>(degree)));
      for (size_t lower = 0; lower < terms_.size(); ++lower) {
        double dot = 0.0, size = 0.0;
        for (size_t i = 0; i < values.size(); ++i) dot += values[i] * rows[i][lower], size += rows[i][lower] * rows[i][lower];
        term.less.push_back(dot / size);
        for (size_t i = 0; i < values.size(); ++i) values[i] -= term.less.back() * rows[i][lower];
      }
      double dot = 0.0, size = 0.0;
      for (size_t i = 0; i < values.size(); ++i) dot += values[i] * means[i].value, size += values[i] * values[i];
      term.weight = dot / size;
      terms_.push_back(term);
      for (size_t i = 0; i < values.size(); ++i) rows[i].push_back(values[i]);
    }
    if (!means.empty()) error_ = std::sqrt(noise * static_cast<double>(terms_.size())) / static_cast<double>(means.size());
  }
  double at(uint32_t layer) const {
    std::vector<double> values;
    double sum = 0.0;
    for (size_t degree = 0; degree < terms_.size(); ++degree) {
      double x = std::pow(static_cast<double>(layer), static_cast<double>(degree));
      for (size_t lower = 0; lower < degree; ++lower) x -= terms_[degree].less[lower] * values[lower];
      values.push_back(x);
      sum += terms_[degree].weight * x;
    }
    return std::max(0.0, sum);
  }
  double error() const { return error_; }

 private:
  struct Term {
    std::vector<double> less;  // of each polynomial of lower degree
    double weight = 0.0;
  };
  std::vector<Term> terms_;
  double error_ = 0.0;
};

}  // namespace

Result<ProbeEffects> probe(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrationPtr& tables,
                           const CalibrateOptions& options) {
  Trials trials = plan_trials(*tables);
  // Windows are equally long, and have room for an archive and as much again: calibration_windows().
  const auto length = static_cast<uint32_t>(windows.front().size());
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(options.probe_tokens / kStretch, 1, windows.size()));
  const uint32_t scored =
      std::clamp((options.probe_tokens + count - 1) / count, 1u, length - (options.sinks + options.distance + options.block));
  const uint32_t prefix = std::min(kMostPrefix, length - scored);
  Prober prober(shape, tables, options);
  TIERKV_RETURN_IF_ERROR(prober.open());
  const uint64_t total = (trials.loud.size() + trials.whispers.size()) * count;
  uint64_t done = 0;
  for (uint32_t w = 0; w < count; ++w) {
    const TokenList& whole = windows[static_cast<size_t>(w) * windows.size() / count];
    TIERKV_RETURN_IF_ERROR(prober.begin(TokenList(whole.begin(), whole.begin() + prefix + scored), prefix));
    for (std::vector<Trial>* kind : {&trials.loud, &trials.whispers}) {
      for (Trial& trial : *kind) {
        TIERKV_RETURN_IF_ERROR(prober.run(trial));
        if (options.progress) options.progress({"probing", ++done, total});
        if (options.cancelled && options.cancelled()) return error(StatusCode::failed_precondition, "calibration was stopped");
      }
    }
  }

  const Floor floor(trials.whispers);
  ProbeEffects effects;
  effects.keys.resize(shape.layers);
  effects.values.resize(shape.layers);
  for (const Trial& trial : trials.loud) {
    const Mean mean = mean_of(trial.blocks);
    (trial.side == kKeys ? effects.keys : effects.values)[trial.layer] = {mean.value, mean.error, floor.at(trial.layer),
                                                                          floor.error(), trial.distortion};
  }
  return effects;
}

LayerWeights weights_of(const ProbeEffects& effects) {
  LayerWeights weights{std::vector<double>(effects.keys.size(), 1.0), std::vector<double>(effects.values.size(), 1.0)};
  struct Heard {
    double* weight;
    double effect, error, distortion;
  };
  std::vector<Heard> heard;
  const auto collect = [&](const std::vector<ProbeEffect>& from, std::vector<double>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      const ProbeEffect& e = from[i];
      if (e.distortion > 0.0) heard.push_back({&to[i], e.divergence - e.floor, std::hypot(e.error, e.floor_error), e.distortion});
    }
  };
  collect(effects.keys, weights.keys);
  collect(effects.values, weights.values);
  double effect = 0.0, noise = 0.0, distortion = 0.0;
  for (const Heard& h : heard) effect += h.effect, noise += h.error * h.error, distortion += h.distortion;
  if (!(effect > 3.0 * std::sqrt(noise))) return weights;

  // The ratio of effect to prediction, 1 on average, its noise, and how far it really varies.
  const double usual = effect / distortion;
  const auto ratio = [&](const Heard& h) { return h.effect / (usual * h.distortion); };
  const auto doubt = [&](const Heard& h) { return h.error / (usual * h.distortion); };
  double spread = 0.0, sum = 0.0;
  for (const Heard& h : heard) {
    const double squared = doubt(h) * doubt(h), share = 1.0 / (1.0 + squared);
    spread += share * ((ratio(h) - 1.0) * (ratio(h) - 1.0) - squared);
    sum += share;
  }
  spread = std::max(spread / sum, 0.01);
  double logs = 0.0;
  for (const Heard& h : heard) {
    const double believed = 1.0 + (ratio(h) - 1.0) * spread / (spread + doubt(h) * doubt(h));
    *h.weight = std::clamp(believed, 1.0 / kMostWeight, kMostWeight);
    logs += std::log(*h.weight);
  }
  const double middle = std::exp(logs / static_cast<double>(heard.size()));
  for (const Heard& h : heard) *h.weight /= middle;
  return weights;
}

}  // namespace tierkv::llama
