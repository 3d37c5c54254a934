#include "learn/learner.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "learn/layer.h"
#include "learn/products.h"
#include "learn/rows.h"
#include "learn/sums.h"

namespace tierkv::learn {
namespace {

constexpr uint64_t kMeasure = 8192;     // tokens whose FP16 keys and values memory is measured by
constexpr uint32_t kLeastSample = 256;  // tokens, whatever they take
constexpr uint32_t kVariety = 64;       // different tokens that are enough
constexpr float kSameToken = 1e-3f;     // squared distance over squared length: rounding of a batch against that of a single token

uint32_t window_of(const LearnModel& model, uint32_t layer) { return model.windows.empty() ? 0 : model.windows[layer]; }

bool is_learnt(const LearnModel& model, const LearnSettings& settings, uint32_t layer) {
  const uint32_t window = window_of(model, layer);
  return window == 0 || window > settings.distance;
}

Status check(const LearnModel& model, const LearnSettings& settings) {
  const calib::ModelId& id = model.id;
  if (id.layers == 0 || id.kv_heads == 0 || id.heads == 0 || id.heads % id.kv_heads != 0 || id.head_dim < 32 || id.head_dim > 256 ||
      id.head_dim % 16 != 0) {
    return error(StatusCode::invalid_argument, "a model of ", id.layers, " layers, ", id.heads, "/", id.kv_heads,
                 " heads and head_dim ", id.head_dim, " cannot be learnt");
  }
  if (model.ropes.size() != id.layers || (!model.windows.empty() && model.windows.size() != id.layers) ||
      (!model.grams.empty() && model.grams.size() != id.layers)) {
    return error(StatusCode::invalid_argument, "a model of ", id.layers, " layers has ropes for ", model.ropes.size(),
                 ", windows for ", model.windows.size(), " and output projections for ", model.grams.size());
  }
  const size_t gram = static_cast<size_t>(id.heads) * id.head_dim * id.head_dim;
  for (const std::vector<float>& of_layer : model.grams) {
    if (!of_layer.empty() && of_layer.size() != gram) {
      return error(StatusCode::invalid_argument, "an output projection has ", of_layer.size(), " values, not ", gram);
    }
  }
  if (settings.block == 0 || settings.block > 256 || settings.sample_tokens == 0) {
    return error(StatusCode::invalid_argument, "blocks of ", settings.block, " tokens (1 to 256) and a sample of ",
                 settings.sample_tokens, " tokens: none may be 0");
  }
  for (uint32_t i = 0; i < id.layers; ++i) {
    for (const calib::RopePair& pair : model.ropes[i]) {
      if (pair.a >= id.head_dim || pair.b >= id.head_dim || pair.a == pair.b || !std::isfinite(pair.angle)) {
        return error(StatusCode::invalid_argument, "the RoPE of layer ", i, " names channels that are not there");
      }
    }
    if (is_learnt(model, settings, i)) return {};
  }
  return error(StatusCode::invalid_argument, "every layer has a sliding window of at most ", settings.distance,
               " tokens: nothing is ever archived, and there is nothing to learn");
}

// A metric of dim x dim needs some 32 queries for each of its rows. Looking at more takes time: 4 % of reading SmolLM2 at a stride
// of 16, as much of reading Gemma-3-270M at 4.
uint32_t stride_of(const LearnModel& model, const LearnSettings& settings) {
  if (settings.query_stride != 0) return settings.query_stride;
  const double group = static_cast<double>(model.id.heads) / model.id.kv_heads;
  const double wanted = static_cast<double>(settings.tokens) * group / (32.0 * model.id.head_dim);
  return 1u << static_cast<uint32_t>(std::lround(std::clamp(std::log2(std::max(wanted, 1.0)), 2.0, 4.0)));
}

// Tokens that the sample may have within a quarter of the FP16 keys and values.
uint32_t capacity(const LearnModel& model, const LearnSettings& settings, const LearnShape& shape) {
  std::vector<calib::Rope> ropes;  // different ones
  uint64_t whole = 0, fixed = sizeof(Learner) + kVariety * shape.dim * sizeof(uint16_t), token = 0;
  for (uint32_t i = 0; i < model.id.layers; ++i) {
    const uint64_t window = window_of(model, i);
    whole += (window == 0 ? kMeasure : std::min(kMeasure, window)) * shape.kv_heads * shape.dim * 4;
    if (!is_learnt(model, settings, i)) continue;
    fixed += sizeof(LayerLearner) + LayerLearner::fixed_bytes(shape, !model.grams.empty() && !model.grams[i].empty());
    token += LayerLearner::token_bytes(shape);
    if (std::find(ropes.begin(), ropes.end(), model.ropes[i]) != ropes.end()) continue;
    ropes.push_back(model.ropes[i]);
    fixed += calib::Turner(model.ropes[i], shape.dim).bytes();
  }
  const uint64_t left = whole / 4 > fixed ? whole / 4 - fixed : 0;
  return static_cast<uint32_t>(std::min<uint64_t>(settings.sample_tokens, std::max<uint64_t>(kLeastSample, left / token)));
}

bool host_rows(const RowsView& rows, uint32_t heads, uint32_t dim) {
  return rows.data != nullptr && rows.place == MemoryPlace::host && rows.heads == heads && rows.head_dim == dim;
}

}  // namespace

Learner::Learner(LearnModel model, const LearnSettings& settings) : id_(model.id), ropes_(model.ropes), settings_(settings) {
  settings_.query_stride = stride_of(model, settings);
  LearnShape shape;
  shape.heads = id_.heads;
  shape.kv_heads = id_.kv_heads;
  shape.dim = id_.head_dim;
  shape.block = settings.block;
  shape.sinks = settings.sinks;
  shape.distance = settings.distance;
  const uint32_t tokens = capacity(model, settings, shape);
  residuals_.reset(new std::atomic<double>[id_.layers]);
  seen_.reset(new std::atomic<uint64_t>[id_.layers]);
  layers_.resize(id_.layers);
  for (uint32_t i = 0; i < id_.layers; ++i) {
    residuals_[i] = 1.0, seen_[i] = 0;
    if (!is_learnt(model, settings, i)) continue;
    const auto same = std::find_if(turners_.begin(), turners_.end(), [&](const auto& t) { return t->rope() == ropes_[i]; });
    const calib::Turner& turner =
        same != turners_.end() ? **same : *turners_.emplace_back(std::make_unique<calib::Turner>(ropes_[i], id_.head_dim));
    static const std::vector<float> identity;
    const std::vector<float>& gram = model.grams.empty() ? identity : model.grams[i];
    layers_[i] = std::make_unique<LayerLearner>(shape, turner, window_of(model, i), gram, tokens);
    last_learnt_ = i;
    if (!model.grams.empty()) std::vector<float>().swap(model.grams[i]);
  }
  while (layers_[first_learnt_] == nullptr) ++first_learnt_;
  different_.reserve(static_cast<size_t>(kVariety) * id_.head_dim);
}

Learner::~Learner() = default;

Result<std::unique_ptr<Learner>> Learner::create(LearnModel model, const LearnSettings& settings) try {
  TIERKV_RETURN_IF_ERROR(check(model, settings));
  return std::unique_ptr<Learner>(new Learner(std::move(model), settings));
}
TIERKV_NO_MEMORY("learn a model")

void Learner::add_rows(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& keys, const RowsView& values) noexcept try {
  if (layer >= id_.layers || keys.tokens != values.tokens || !host_rows(keys, id_.kv_heads, id_.head_dim) ||
      !host_rows(values, id_.kv_heads, id_.head_dim)) {
    return;
  }
  if (layer == 0 && variety_ < kVariety) count_variety(values);
  if (!layers_[layer]) return;
  layers_[layer]->add_rows(seq, position, keys, values);
  seen_[layer] += keys.tokens;
} catch (const std::exception&) {  // without memory it learns less
}

// Values of the first layer are a function of the token alone, up to rounding.
void Learner::count_variety(const RowsView& values) {
  const uint32_t dim = id_.head_dim;
  std::vector<float> row(dim);
  std::lock_guard lock(mutex_);
  for (uint32_t t = 0; t < values.tokens && variety_ < kVariety; ++t) {
    if (!to_floats(values, t, 0, row.data())) continue;
    const float length = sum_of(dim, [&](uint32_t c) { return row[c] * row[c]; });
    bool is_new = true;
    for (size_t at = 0; at < different_.size() && is_new; at += dim) {
      is_new = sum_of(dim, [&](uint32_t c) {
                 const float apart = row[c] - f16_to_f32(different_[at + c]);
                 return apart * apart;
               }) > kSameToken * length;
    }
    if (!is_new) continue;
    for (const float x : row) different_.push_back(f32_to_f16(x));
    ++variety_;
  }
}

bool Learner::wants_query(uint32_t layer, uint32_t position) const noexcept {
  return layer < id_.layers && layers_[layer] && position % settings_.query_stride == 0 &&
         position >= settings_.sinks + settings_.distance;
}

void Learner::add_queries(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& queries, const float* out,
                          const float* lse, float scale, float softcap, const Executor& run) noexcept try {
  if (layer >= id_.layers || !layers_[layer] || out == nullptr || lse == nullptr || !host_rows(queries, id_.heads, id_.head_dim)) {
    return;
  }
  layers_[layer]->add_queries(seq, {position, queries, out, lse, scale, softcap, settings_.query_stride}, run);
} catch (const std::exception&) {
}

void Learner::set_residual(uint32_t layer, double mean_square) noexcept {
  if (layer < id_.layers && std::isfinite(mean_square) && mean_square > 0.0) residuals_[layer] = mean_square;
}

void Learner::forget(uint64_t seq) noexcept {
  for (const auto& layer : layers_) {
    if (layer) layer->forget(seq);
  }
}

uint64_t Learner::tokens() const noexcept { return seen_[last_learnt_] + earlier_tokens_; }

bool Learner::has_enough(uint32_t layer) const noexcept {
  return layer < id_.layers && layers_[layer] && seen_[layer] + earlier_tokens_ >= settings_.tokens &&
         layers_[layer]->sampled() >= std::min<uint64_t>(kLeastSample, settings_.sample_tokens);
}

bool Learner::ready() const noexcept { return has_enough(last_learnt_); }

size_t Learner::bytes() const noexcept {
  size_t total = sizeof *this + different_.capacity() * sizeof(uint16_t);
  for (const auto& turner : turners_) total += turner->bytes();
  for (const auto& layer : layers_) {
    if (layer) total += layer->bytes();
  }
  return total;
}

SumsFrame Learner::frame() const {
  SumsFrame frame;
  frame.model = id_;
  frame.block = settings_.block;
  frame.sinks = settings_.sinks;
  frame.distance = settings_.distance;
  for (const auto& layer : layers_) frame.learnt.push_back(layer != nullptr);
  return frame;
}

Status Learner::check_finite() const {
  for (uint32_t i = 0; i < id_.layers; ++i) {
    if (!layers_[i] || layers_[i]->finite()) continue;
    return error(StatusCode::invalid_argument, "keys, values or queries of layer ", i,
                 " are not finite: nothing is learnt of this model");
  }
  return {};
}

Result<Sums> Learner::all_sums() const {
  TIERKV_RETURN_IF_ERROR(check_finite());
  Sums sums;
  sums.tokens = seen_[last_learnt_];
  sums.variety = variety_;
  for (const auto& layer : layers_) sums.layers.push_back(layer ? layer->sums() : LayerSums());
  return sums;
}

Status Learner::save_sums(const std::string& path) const try {
  TIERKV_ASSIGN_OR_RETURN(const Sums sums, all_sums());
  std::lock_guard lock(mutex_);
  if (saved_) return error(StatusCode::failed_precondition, "the sums of this run are in ", path, " already");
  TIERKV_RETURN_IF_ERROR(learn::save_sums(path, frame(), sums));
  saved_ = true;
  return {};
}
TIERKV_NO_MEMORY("keep what was learnt of a model")

Status Learner::load_sums(const std::string& path) try {
  TIERKV_ASSIGN_OR_RETURN(const Sums sums, learn::load_sums(path, frame()));
  std::lock_guard lock(mutex_);
  earlier_.push_back(path);
  earlier_tokens_ += sums.tokens;
  earlier_variety_ = std::max(earlier_variety_, sums.variety);
  return {};
}
TIERKV_NO_MEMORY("read what was learnt of a model")

}  // namespace tierkv::learn
