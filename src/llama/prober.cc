#include "llama/prober.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/f16.h"
#include "base/status_macros.h"
#include "llama/probe.h"

namespace tierkv::llama {
namespace {

constexpr uint32_t kChunk = 128;  // scored tokens at a time
constexpr uint32_t kBlock = 32;   // tokens whose mean is one sample of the standard error

}  // namespace

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
  shape_.rope.apply(params);
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

}  // namespace tierkv::llama
