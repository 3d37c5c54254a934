#include "llama/collect.h"
#include "llama/residual_tap.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/status_macros.h"

namespace tierkv::llama {
namespace {

constexpr uint32_t kLeastWindow = 1024;

// Hands the residual stream before each layer to the collector as the graph computes it.
class ResidualReader {
 public:
  ResidualReader(const ModelShape& shape, Collector& collector) : collector_(collector), layer_of_(residual_nodes(shape)) {}
  void at(uint32_t position, uint32_t tokens) { position_ = position, tokens_ = tokens; }

  static bool on_node(ggml_tensor* node, bool ask, void* user) {
    auto& tap = *static_cast<ResidualReader*>(user);
    const auto found = tap.layer_of_.find(ggml_get_name(node));
    if (found == tap.layer_of_.end()) return false;
    if (!ask) tap.read(node, found->second);
    return true;
  }

 private:
  void read(const ggml_tensor* node, uint32_t layer) {
    if (node->type != GGML_TYPE_F32 || node->ne[1] != tokens_ || node->ne[2] != 1 || !ggml_is_contiguous(node)) return;
    std::vector<float> row(static_cast<size_t>(node->ne[0]));
    squares_.resize(tokens_);
    for (uint32_t t = 0; t < tokens_; ++t) {
      ggml_backend_tensor_get(node, row.data(), t * node->nb[1], row.size() * sizeof(float));
      double sum = 0.0;
      for (const float x : row) sum += static_cast<double>(x) * x;
      squares_[t] = static_cast<float>(sum);
    }
    collector_.residual(layer, position_, squares_);
  }

  Collector& collector_;
  const ResidualNodes layer_of_;
  uint32_t position_ = 0, tokens_ = 0;
  std::vector<float> squares_;
};

bool is_cancelled(void* user) {
  const auto& options = *static_cast<const CalibrateOptions*>(user);
  return options.cancelled && options.cancelled();
}

Status check_options(uint32_t context, const CalibrateOptions& options) {
  if (context < kLeastWindow || options.window < kLeastWindow) {
    return error(StatusCode::invalid_argument, "windows of ", std::min(context, options.window),
                 " tokens are too short to calibrate with: at least ", kLeastWindow, " are needed",
                 context < kLeastWindow ? ", and the model's context has fewer" : "");
  }
  const uint32_t window = std::min(context, options.window);
  if (options.block == 0 || options.query_stride == 0 || options.sample_tokens == 0 ||
      options.sinks + options.distance + options.block > window / 4 * 3) {
    return error(StatusCode::invalid_argument, "blocks of ", options.block, " tokens, ", options.sinks, " sinks and a distance of ",
                 options.distance, " do not fit windows of ", window,
                 " tokens: together at most three quarters of one, and a block, a sample and a stride of at least 1");
  }
  return {};
}

Status check_variety(const std::vector<TokenList>& windows) {
  std::set<int32_t> distinct;
  uint64_t tokens = 0;
  for (const TokenList& window : windows) {
    distinct.insert(window.begin(), window.end());
    tokens += window.size();
  }
  if (distinct.size() >= kLeastDistinctTokens) return {};
  return error(StatusCode::invalid_argument, "the text repeats ", distinct.size(),
               distinct.size() == 1 ? " token" : " different tokens", " over ", tokens, ": calibration needs at least ",
               kLeastDistinctTokens, " different ones, from text like what the model will read");
}

}  // namespace

Result<std::vector<TokenList>> calibration_windows(const std::vector<TokenList>& texts, uint32_t context,
                                                   const CalibrateOptions& options) {
  TIERKV_RETURN_IF_ERROR(check_options(context, options));
  uint64_t total = 0;
  for (const TokenList& text : texts) total += text.size();
  if (options.tokens != 0) total = std::min(total, options.tokens);
  if (total < kLeastCalibrationTokens) {
    return error(StatusCode::invalid_argument, "calibration needs at least ", kLeastCalibrationTokens,
                 " tokens of text, and there are ", total,
                 options.tokens != 0 && options.tokens < kLeastCalibrationTokens ? " to be used" : "");
  }
  const uint64_t window = std::min(context, options.window), count = (total + window - 1) / window;
  const size_t first = options.first_token >= 0 ? 1 : 0, content = total / count - first;
  // How many each text gives: in turn, as long as it has any left.
  std::vector<uint64_t> room, given(texts.size(), 0);
  for (size_t i = 0; i < texts.size(); ++i) {
    room.push_back(texts[i].size() / content);
    if (room.back() > 0) continue;
    return error(StatusCode::invalid_argument, "text ", i + 1, " of ", texts.size(), " has ", texts[i].size(),
                 " tokens, fewer than a window (", content, "): it would add nothing");
  }
  std::vector<size_t> order;
  for (bool any = true; any && order.size() < count;) {
    any = false;
    for (size_t i = 0; i < texts.size() && order.size() < count; ++i) {
      if (given[i] == room[i]) continue;
      ++given[i];
      order.push_back(i);
      any = true;
    }
  }
  std::vector<TokenList> windows;
  std::vector<uint64_t> taken(texts.size(), 0);
  for (const size_t i : order) {
    const uint64_t spare = texts[i].size() - given[i] * content, nth = taken[i]++;
    const auto from = texts[i].begin() + static_cast<ptrdiff_t>(nth * content + (given[i] > 1 ? spare * nth / (given[i] - 1) : 0));
    TokenList& made = windows.emplace_back();
    if (first != 0) made.push_back(options.first_token);
    made.insert(made.end(), from, from + static_cast<ptrdiff_t>(content));
  }
  TIERKV_RETURN_IF_ERROR(check_variety(windows));
  return windows;
}

Result<Collected> collect(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrateOptions& options) {
  const uint32_t threads = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  ThreadPool pool(threads);
  std::vector<uint32_t> lengths;
  uint64_t total = 0;
  for (const TokenList& window : windows) {
    lengths.push_back(static_cast<uint32_t>(window.size()));
    total += window.size();
  }
  Collector collector(shape, lengths, {options.block, options.sinks, options.distance, options.sample_tokens, options.query_stride},
                      output_weights(shape, options.model_file, pool), pool);
  ResidualReader tap(shape, collector);

  CacheConfig config;
  TIERKV_RETURN_IF_ERROR(apply_preset("fp16", config));
  config.tiers.hot = kAll;  // a micro-batch is appended and attended to in one piece
  config.window_slack = std::max(config.window_slack, options.micro_batch);
  config.threads = threads;
  shape.apply(config);
  TIERKV_ASSIGN_OR_RETURN(const auto cache, AdaptiveKVCache::create(config));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = options.micro_batch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(threads);
  params.no_perf = true;
  shape.rope.apply(params);
  params.cb_eval = ResidualReader::on_node;
  params.cb_eval_user_data = &tap;
  params.abort_callback = is_cancelled;
  params.abort_callback_data = const_cast<CalibrateOptions*>(&options);
  HostOptions host_options;
  host_options.observer = [&](const AttentionSeen& seen) { collector.observe(seen); };
  TIERKV_ASSIGN_OR_RETURN(const auto host, Host::attach(params, shape, *cache, host_options));
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(shape.model, params), llama_free);
  if (!context) return error(StatusCode::internal, "libllama could not make a context");

  uint64_t done = 0;
  for (TokenList window : windows) {
    collector.begin_window();
    for (size_t at = 0; at < window.size(); at += host->micro_batch()) {
      const size_t count = std::min<size_t>(host->micro_batch(), window.size() - at);
      tap.at(static_cast<uint32_t>(at), static_cast<uint32_t>(count));
      TIERKV_RETURN_IF_ERROR(host->decode(context.get(), llama_batch_get_one(window.data() + at, static_cast<int32_t>(count))));
      done += count;
      if (options.progress) options.progress({"reading", done, total});
      if (options.cancelled && options.cancelled()) return error(StatusCode::failed_precondition, "calibration was stopped");
    }
    TIERKV_RETURN_IF_ERROR(collector.end_window());
    TIERKV_RETURN_IF_ERROR(host->remove(0));
  }
  Collected collected;
  collected.pairs = collector.pairs();
  collected.watching_seconds = collector.seconds();
  collected.without_residual = collector.without_residual();
  collected.without_projection = collector.without_projection();
  TIERKV_ASSIGN_OR_RETURN(collected.statistics, collector.finish());
  return collected;
}

}  // namespace tierkv::llama
