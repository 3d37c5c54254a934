// learn_measure — a real model learnt in passing, for docs/build/measurements.md: not a test, run by hand.
//
//   learn_measure MODEL.gguf TEXT.txt OUT [NAME:key=value,...]...
//
// Reads 8,192 tokens of a text as one sequence (TIERKV_MEASURE_TOKENS: another number) while every learner named watches, and at
// 2,048, 4,096 and 8,192 tokens writes OUT.NAME.TOKENS.tkc and a line with what the check says, time and memory. Keys of a learner:
// stride, sample, covariance, metric, normal, gram (0: without output projections), residual (0: without).
#include <ggml-backend.h>
#include <llama.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "base/f16.h"
#include "base/thread_pool.h"
#include "learn/learner.h"
#include "learn/products.h"
#include "llama/collector.h"
#include "llama/output_weights.h"
#include "tierkv/llama.h"

namespace tierkv::learn {
namespace {

// Of this thread, so that what else the machine does is not counted.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Watcher {
  std::string name;
  LearnSettings settings;
  bool residual = true;
  std::unique_ptr<Learner> learner;
  double seconds = 0.0;
};

// The text so far of one layer, for the sums that attention has and does not give away.
struct LayerRows {
  std::vector<uint16_t> keys;  // [kv head][position][dim]
  double inverse = 0.0;        // sum of 1/(|h|²·scale)
  uint64_t count = 0;
  std::vector<float> squares;  // |h|² of the micro-batch
};

class Measure {
 public:
  Measure(const llama::ModelShape& shape, std::vector<llama::OutputWeights> weights, size_t tokens)
      : shape_(shape), weights_(std::move(weights)), tokens_(tokens), layers_(shape.layers) {
    for (LayerRows& layer : layers_) layer.keys.resize(tokens * shape.kv_heads * shape.head_dim);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const int32_t number = shape.cache_layers[i];
      if (number > 0) layer_of_["l_out-" + std::to_string(number - 1)] = i;
      else layer_of_["embd"] = layer_of_["inp_scaled"] = i;
    }
  }

  std::vector<Watcher> watchers;

  static bool on_node(ggml_tensor* node, bool ask, void* user) {
    auto& self = *static_cast<Measure*>(user);
    const auto found = self.layer_of_.find(ggml_get_name(node));
    if (found == self.layer_of_.end()) return false;
    if (!ask && node->type == GGML_TYPE_F32) {
      std::vector<float> row(static_cast<size_t>(node->ne[0]));
      std::vector<float>& squares = self.layers_[found->second].squares;
      squares.assign(static_cast<size_t>(node->ne[1]), 0.0f);
      for (size_t t = 0; t < squares.size(); ++t) {
        ggml_backend_tensor_get(node, row.data(), t * node->nb[1], row.size() * sizeof(float));
        for (const float x : row) squares[t] += x * x;
      }
    }
    return true;
  }

  void observe(const llama::AttentionSeen& seen) {
    LayerRows& layer = layers_[seen.layer];
    const uint32_t dim = shape_.head_dim, n = seen.keys.tokens;
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      for (uint32_t t = 0; t < n; ++t) {
        std::copy_n(static_cast<const uint16_t*>(seen.keys.data) + t * seen.keys.token_stride + h * seen.keys.head_stride, dim,
                    layer.keys.data() + (h * tokens_ + seen.position + t) * dim);
      }
    }
    const bool idle = shape_.window[seen.layer] != 0 && shape_.window[seen.layer] <= 512;
    std::vector<float> lse(static_cast<size_t>(n) * shape_.heads);
    for (uint32_t t = 0; t < n && !idle; ++t) {
      if ((seen.position + t) % kStride != 0 || seen.position + t < 516) continue;
      log_sums(seen, layer, t, lse.data() + static_cast<size_t>(t) * shape_.heads);
      if (layer.squares.size() != n) continue;
      const size_t columns = static_cast<size_t>(shape_.heads) * dim;
      layer.inverse += 1.0 / (static_cast<double>(layer.squares[t]) * weights_[seen.layer].scale(seen.out + t * columns, columns));
      ++layer.count;
    }
    const Executor serial = [](uint32_t count, const std::function<void(uint32_t)>& task) {
      for (uint32_t i = 0; i < count; ++i) task(i);
    };
    for (Watcher& watcher : watchers) {
      const double start = now();
      watcher.learner->add_rows(0, seen.layer, seen.position, seen.keys, seen.values);
      watcher.learner->add_queries(0, seen.layer, seen.position, seen.queries, seen.out, lse.data(), seen.scale, seen.softcap,
                                   serial);
      watcher.seconds += now() - start;
      if (watcher.residual && layer.count > 0) {
        watcher.learner->set_residual(seen.layer, static_cast<double>(layer.count) / layer.inverse);
      }
    }
  }

 private:
  static constexpr uint32_t kStride = 4;  // what every learner's divides by

  void log_sums(const llama::AttentionSeen& seen, const LayerRows& layer, uint32_t t, float* lse) {
    const uint32_t dim = shape_.head_dim, end = seen.position + t + 1, window = shape_.window[seen.layer];
    const uint32_t low = window != 0 && end > window ? end - window : 0, group = shape_.heads / shape_.kv_heads;
    std::vector<float> scores(end + 16), scratch(16 * dim);
    for (uint32_t h = 0; h < shape_.heads; ++h) {
      const float* q = static_cast<const float*>(seen.queries.data) + t * seen.queries.token_stride + h * seen.queries.head_stride;
      const uint16_t* keys = layer.keys.data() + ((h / group) * tokens_ + low) * dim;
      dot_rows(keys, end - low, dim, q, 1, scores.data(), scores.size(), scratch.data());
      double top = -1e30, sum = 0.0;
      for (uint32_t s = 0; s < end - low; ++s) {
        scores[s] *= seen.scale;
        if (seen.softcap > 0.0f) scores[s] = seen.softcap * std::tanh(scores[s] / seen.softcap);
        top = std::max(top, static_cast<double>(scores[s]));
      }
      if (seen.sink_logits != nullptr) top = std::max(top, static_cast<double>(seen.sink_logits[h]));
      for (uint32_t s = 0; s < end - low; ++s) sum += std::exp(scores[s] - static_cast<float>(top));
      if (seen.sink_logits != nullptr) sum += std::exp(seen.sink_logits[h] - top);
      lse[h] = static_cast<float>(top + std::log(sum));
    }
  }

  llama::ModelShape shape_;
  std::vector<llama::OutputWeights> weights_;
  size_t tokens_;
  std::vector<LayerRows> layers_;
  std::map<std::string, uint32_t, std::less<>> layer_of_;
};

Watcher parse(const std::string& text, const llama::ModelShape& shape, const std::vector<llama::OutputWeights>& weights) {
  Watcher watcher;
  const size_t colon = text.find(':');
  watcher.name = text.substr(0, colon);
  bool gram = true;
  for (size_t at = colon; at != std::string::npos && at + 1 < text.size();) {
    const size_t equals = text.find('=', at), end = text.find(',', at + 1);
    const std::string key = text.substr(at + 1, equals - at - 1);
    const double value = std::atof(text.c_str() + equals + 1);
    if (key == "stride") watcher.settings.query_stride = static_cast<uint32_t>(value);
    else if (key == "sample") watcher.settings.sample_tokens = static_cast<uint32_t>(value);
    else if (key == "covariance") watcher.settings.shrinking.covariance = value;
    else if (key == "metric") watcher.settings.shrinking.metric = value;
    else if (key == "normal") watcher.settings.shrinking.normal_rows = static_cast<uint32_t>(value);
    else if (key == "gram") gram = value != 0.0;
    else if (key == "residual") watcher.residual = value != 0.0;
    else std::fprintf(stderr, "unknown key %s\n", key.c_str()), std::exit(2);
    at = end;
  }
  LearnModel model{llama::model_id(shape), shape.ropes, shape.window, {}};
  for (const llama::OutputWeights& layer : weights) model.grams.push_back(gram ? layer.gram : std::vector<float>());
  auto made = Learner::create(std::move(model), watcher.settings);
  if (!made.ok()) std::fprintf(stderr, "%s\n", made.status().message().c_str()), std::exit(1);
  watcher.learner = std::move(*made);
  return watcher;
}

void report(const Watcher& watcher, const std::string& out, size_t tokens) {
  LearnCheck check;
  const double start = now();
  const auto solved = watcher.learner->solve("measured", {}, &check);
  const double took = now() - start;
  std::printf("%-12s %5zu tokens: watching %.2f s, %.1f MiB, solving %.2f s, held out %.4g of %.4g = %.3f  %s\n",
              watcher.name.c_str(), tokens, watcher.seconds, static_cast<double>(watcher.learner->bytes()) / 1048576.0, took,
              check.calibrated, check.uncalibrated, check.calibrated / check.uncalibrated,
              solved.ok() ? "" : solved.status().message().c_str());
  std::fflush(stdout);
  if (!solved.ok()) return;
  const Status saved = (*solved)->save(out + "." + watcher.name + "." + std::to_string(tokens) + ".tkc");
  if (!saved.ok()) std::printf("%s\n", saved.message().c_str());
}

int measure(int argc, char** argv) {
  const std::string path = argv[1], out = argv[3];
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(path.c_str(), llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", path.c_str()), 1;
  const auto shape = llama::inspect(model);
  if (!shape.ok()) return std::fprintf(stderr, "%s\n", shape.status().message().c_str()), 1;
  std::vector<llama_token> tokens(text.size() + 1);
  const int32_t n =
      llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(std::min<size_t>(text.size(), 400000)),
                     tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  const char* wanted = std::getenv("TIERKV_MEASURE_TOKENS");
  tokens.resize(
      std::min<size_t>(static_cast<size_t>(std::max(n, 0)), wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 8192));

  ThreadPool pool(1);
  const auto weights = llama::output_weights(*shape, path, pool);
  Measure measure(*shape, weights, tokens.size());
  for (int i = 4; i < argc; ++i) measure.watchers.push_back(parse(argv[i], *shape, weights));
  if (argc == 4) measure.watchers.push_back(parse("default", *shape, weights));

  CacheConfig config;
  if (!apply_preset("fp16", config).ok()) return 1;
  config.tiers.hot = kAll;
  config.window_slack = 512;
  config.threads = 1;
  shape->apply(config);
  const auto cache = AdaptiveKVCache::create(config);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 512;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = 1;
  params.cb_eval = Measure::on_node;
  params.cb_eval_user_data = &measure;
  llama::HostOptions options;
  options.observer = [&](const llama::AttentionSeen& seen) { measure.observe(seen); };
  const auto host = llama::Host::attach(params, *shape, **cache, options);
  if (!host.ok()) return std::fprintf(stderr, "%s\n", host.status().message().c_str()), 1;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model, params), llama_free);
  const double start = now();
  for (size_t at = 0; at < tokens.size(); at += 512) {
    const size_t count = std::min<size_t>(512, tokens.size() - at), end = at + count;
    const Status read = (*host)->decode(context.get(), llama_batch_get_one(tokens.data() + at, static_cast<int32_t>(count)));
    if (!read.ok()) return std::fprintf(stderr, "%s\n", read.message().c_str()), 1;
    if (end != 2048 && end != 4096 && end != tokens.size()) continue;
    for (const Watcher& watcher : measure.watchers) report(watcher, out, end);
  }
  std::printf("read %zu tokens in %.1f s, all watching included\n", tokens.size(), now() - start);
  return 0;
}

}  // namespace
}  // namespace tierkv::learn

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "learn_measure MODEL.gguf TEXT.txt OUT [NAME:key=value,...]...\n"), 2;
  return tierkv::learn::measure(argc, argv);
}
