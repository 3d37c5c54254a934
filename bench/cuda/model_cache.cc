// What bench/cuda/model_step.py calls: a cache on the device by addresses of tensors, one layer of a batch's step at a time, or a
// step as a graph.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tierkv/cache.h"
#include "tierkv/cuda.h"

using namespace tierkv;

namespace {

struct ModelCache {
  std::unique_ptr<AdaptiveKVCache> cache;
  std::shared_ptr<const cuda::Device> device;
  std::vector<SeqId> ids;
  std::unique_ptr<cuda::StepGraph> step;
  cudaGraphExec_t exec = nullptr;

  ~ModelCache() {
    step.reset();
    if (exec) cudaGraphExecDestroy(exec);
  }
};

std::string last_error;

bool said(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return !status.ok();
}

// Noise of which no two chunks are alike, of all layers of one sequence.
Status fill(AdaptiveKVCache& cache, SeqId id, uint32_t tokens, uint32_t seed) {
  constexpr uint32_t kChunk = 1024;
  const CacheConfig& c = cache.config();
  const size_t row = size_t{c.num_kv_heads} * c.head_dim;
  std::vector<float> noise(2 * kChunk * row), rows(kChunk * row);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (float& x : noise) x = normal(rng);
  for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
    for (uint32_t at = 0; at < tokens; at += kChunk) {
      const uint32_t count = std::min(kChunk, tokens - at);
      const float* const from = noise.data() + rng() % kChunk * row;
      const float by = 1.0f + 1e-6f * static_cast<float>(at);
      for (size_t i = 0; i < count * row; ++i) rows[i] = from[i] * by;
      const RowsView view = RowsView::f32(rows.data(), count, c.num_kv_heads, c.head_dim);
      if (Status status = cache.append(id, layer, view, view); !status.ok()) return status;
    }
  }
  return {};
}

RowsView view_of(uint64_t address, int type, uint32_t heads, uint32_t dim, uint64_t stream) {
  RowsView view = RowsView::dense(reinterpret_cast<const void*>(address), static_cast<DType>(type), 1, heads, dim);
  view.place = MemoryPlace::device, view.ready = reinterpret_cast<void*>(stream);
  return view;
}

}  // namespace

extern "C" {

const char* tierkv_model_error() { return last_error.c_str(); }

// A cache of `layers` layers, `sequences` sequences of `tokens` tokens each, on the first device. Null: tierkv_model_error().
void* tierkv_model_open(const char* spec, uint32_t layers, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t sequences,
                        uint32_t tokens) {
  CacheConfig config;
  config.num_layers = layers, config.num_heads = heads, config.num_kv_heads = kv_heads, config.head_dim = dim;
  if (said(apply_spec(spec, config))) return nullptr;
  auto made = AdaptiveKVCache::create(config);
  if (!made.ok()) return said(made.status()), nullptr;
  auto model = std::make_unique<ModelCache>();
  model->cache = std::move(made).value();
  for (uint32_t s = 0; s < sequences; ++s) model->ids.push_back(*model->cache->add_sequence());
  std::vector<Status> statuses(sequences);
  std::vector<std::thread> threads;
  for (uint32_t s = 0; s < sequences; ++s) {
    threads.emplace_back([&, s] { statuses[s] = fill(*model->cache, model->ids[s], tokens, s + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    if (said(status)) return nullptr;
  }
  auto device = cuda::attach(*model->cache);
  if (!device.ok()) return said(device.status()), nullptr;
  model->device = *device;
  return model.release();
}
void tierkv_model_close(void* model) { delete static_cast<ModelCache*>(model); }

// Appends a token to each sequence and attends: keys, values [sequences][KV heads][dim] and queries [sequences][heads][dim] of one
// type (0: f32, 1: f16, 2: bf16), out [sequences][heads][dim] f32, all on the device. 0: fine.
int tierkv_model_step(void* of, uint32_t layer, int type, uint64_t keys, uint64_t values, uint64_t queries, uint64_t out,
                      uint64_t stream) {
  ModelCache& model = *static_cast<ModelCache*>(of);
  const CacheConfig& c = model.cache->config();
  const uint64_t size = type == 0 ? 4 : 2, row = uint64_t{c.num_kv_heads} * c.head_dim * size;
  const uint64_t query = uint64_t{c.query_heads()} * c.head_dim;
  std::vector<AppendItem> appended;
  std::vector<AttentionItem> asked;
  for (size_t s = 0; s < model.ids.size(); ++s) {
    appended.push_back({model.ids[s],
                        view_of(keys + s * row, type, c.num_kv_heads, c.head_dim, stream),
                        view_of(values + s * row, type, c.num_kv_heads, c.head_dim, stream),
                        {}});
    asked.push_back({model.ids[s],
                     view_of(queries + s * query * size, type, c.query_heads(), c.head_dim, stream),
                     reinterpret_cast<float*>(out) + s * query,
                     -1,
                     nullptr,
                     {}});
  }
  AttentionOptions options;
  options.observe = false;
  return said(model.cache->append_many(layer, appended)) || said(model.cache->attention(layer, asked, options)) ? 1 : 0;
}

// A step as one graph: tierkv_model_record(), a capture with tierkv_model_step() of every layer, tierkv_model_recorded() before it
// ends; then tierkv_model_graph() with the cudaGraph_t, which has to stay, and a tierkv_model_launch() a step. 0: fine.
int tierkv_model_record(void* of) {
  ModelCache& model = *static_cast<ModelCache*>(of);
  auto recording = cuda::record(*model.cache);
  if (!recording.ok()) return said(recording.status()), 1;
  model.step = std::move(recording).value();
  return 0;
}
int tierkv_model_recorded(void* of) { return said(static_cast<ModelCache*>(of)->step->end()) ? 1 : 0; }
int tierkv_model_graph(void* of, uint64_t graph) {
  ModelCache& model = *static_cast<ModelCache*>(of);
  const cudaError_t made = cudaGraphInstantiate(&model.exec, reinterpret_cast<cudaGraph_t>(graph), 0);
  if (made != cudaSuccess) last_error = cudaGetErrorString(made);
  return made != cudaSuccess;
}
int tierkv_model_launch(void* of, uint64_t stream) {
  ModelCache& model = *static_cast<ModelCache*>(of);
  if (said(model.step->advance(model.exec, reinterpret_cast<void*>(stream)))) return 1;
  const cudaError_t launched = cudaGraphLaunch(model.exec, reinterpret_cast<cudaStream_t>(stream));
  if (launched != cudaSuccess) last_error = cudaGetErrorString(launched);
  return launched != cudaSuccess;
}

int tierkv_model_check(void* of) { return said(static_cast<ModelCache*>(of)->device->check()) ? 1 : 0; }
uint64_t tierkv_model_bytes(void* of) { return static_cast<ModelCache*>(of)->device->usage().peak_bytes; }
uint64_t tierkv_model_on_processor(void* of) { return static_cast<ModelCache*>(of)->device->usage().on_processor; }

// One sequence's attention from host memory, to compare with. 0: fine.
int tierkv_model_reference(void* of, uint32_t layer, uint32_t sequence, const float* queries, float* out) {
  ModelCache& model = *static_cast<ModelCache*>(of);
  const CacheConfig& c = model.cache->config();
  if (said(cuda::detach(*model.cache))) return 1;
  AttentionOptions options;
  options.observe = false;
  const bool failed = said(
      model.cache->attention(model.ids[sequence], layer, RowsView::f32(queries, 1, c.query_heads(), c.head_dim), out, options));
  auto device = cuda::attach(*model.cache);
  if (!device.ok()) return said(device.status()), 1;
  model.device = *device;
  return failed ? 1 : 0;
}
}
