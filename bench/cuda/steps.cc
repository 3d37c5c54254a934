// Times whole calls of a cache on a device, from rows and queries in host memory to results there: what a decode step costs a
// layer, the processor's part, the bus and the launch together, and the same with a report of what every row receives. Then with
// rows, queries and results in the device's memory: what the calls take of the caller's time, and what a step takes when the next
// one is asked for before it is done.
//
//   tierkv_steps_cuda [SPEC] [TOKENS] [SEQUENCES] [STEPS] [away]
//
// With `away` blocks leave host memory once the device has them (cuda::Options::keep_on_host is false).
// 32 query heads, 8 KV heads of 128 channels, one layer. Every sequence has rows of its own. Prints two lines of JSON.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tierkv/cache.h"
#include "tierkv/cuda.h"

using namespace tierkv;

namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kRow = kKvHeads * kDim, kChunk = 1024;

[[noreturn]] void fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void check(const Status& status) {
  if (!status.ok()) fail(status);
}

double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}
double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Noise that is cheap and of which no two chunks are alike.
class Rows {
 public:
  explicit Rows(uint32_t seed) : noise_(2 * kChunk * kRow) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& x : noise_) x = normal(rng);
  }
  const float* next(uint32_t tokens) {
    const float by = 1.0f + 1e-4f * static_cast<float>(++made_);
    out_.resize(size_t{tokens} * kRow);
    const float* const from = noise_.data() + made_ * 977 % kChunk * kRow;
    for (size_t i = 0; i < out_.size(); ++i) out_[i] = from[i] * by;
    return out_.data();
  }

 private:
  std::vector<float> noise_, out_;
  uint64_t made_ = 0;
};

struct Setting {
  std::string spec;
  uint32_t tokens, steps;
  bool kept = true;  // blocks in host memory too
};

void in_host_memory(AdaptiveKVCache& cache, const cuda::Device& device, const std::vector<SeqId>& ids, const Setting& setting) {
  Rows keys(98), values(99);
  const size_t row = size_t{kHeads} * kDim;
  std::vector<float> queries(ids.size() * row), out(queries.size());
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& x : queries) x = normal(rng);
  std::vector<AttentionItem> items;
  for (size_t s = 0; s < ids.size(); ++s)
    items.push_back({ids[s], RowsView::f32(queries.data() + s * row, 1, kHeads, kDim), out.data() + s * row});
  std::vector<MassReport> reports(ids.size());
  const auto attend = [&] {
    const auto begin = std::chrono::steady_clock::now();
    check(cache.attention(0, items));
    return microseconds_since(begin);
  };
  const double first = attend();
  std::vector<double> appends, calls;
  double mean = 0.0;
  for (uint32_t i = 0; i < setting.steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (const SeqId id : ids) {
      check(cache.append(id, 0, RowsView::f32(keys.next(1), 1, kKvHeads, kDim), RowsView::f32(values.next(1), 1, kKvHeads, kDim)));
    }
    appends.push_back(microseconds_since(begin));
    calls.push_back(attend());
    mean += calls.back() / setting.steps;
  }
  std::vector<double> weighed;  // the same calls, which also say what every row receives
  for (size_t s = 0; s < ids.size(); ++s) items[s].mass = &reports[s];
  for (uint32_t i = 0; i < 1 + setting.steps / 4; ++i) weighed.push_back(attend());
  const cuda::Usage usage = device.usage();
  std::printf(
      "{\"memory\": \"host\", \"spec\": \"%s\", \"kept\": %d, \"tokens\": %u, \"sequences\": %zu, \"first_us\": %.0f, \"call_us\": "
      "%.1f, "
      "\"mean_us\": %.1f, \"append_us\": %.1f, \"mass_us\": %.1f, \"block_bytes\": %llu, \"scratch_bytes\": %llu, "
      "\"on_processor\": %llu}\n",
      setting.spec.c_str(), setting.kept, setting.tokens, ids.size(), first, median(calls), mean, median(appends), median(weighed),
      static_cast<unsigned long long>(usage.block_bytes), static_cast<unsigned long long>(usage.scratch_bytes),
      static_cast<unsigned long long>(usage.on_processor));
}

void check(cudaError_t error) {
  if (error != cudaSuccess) fail(Status(StatusCode::io_error, cudaGetErrorString(error)));
}

// A batch's rows are one tensor, [sequences][1][heads][channels], as a model has them; all steps have the same.
void in_device_memory(AdaptiveKVCache& cache, const cuda::Device& device, const std::vector<SeqId>& ids, const Setting& setting) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  const size_t count = ids.size(), row = size_t{kHeads} * kDim;
  const auto tensor = [&](uint32_t heads, uint32_t seed) {
    std::vector<float> values(count * heads * kDim);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& x : values) x = normal(rng);
    void* there = nullptr;
    check(cudaMalloc(&there, values.size() * sizeof(float)));
    check(cudaMemcpy(there, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    return static_cast<float*>(there);
  };
  const float *const keys = tensor(kKvHeads, 5), *const values = tensor(kKvHeads, 6), *const queries = tensor(kHeads, 7);
  float* const out = tensor(kHeads, 8);
  const auto rows = [&](const float* of, uint32_t heads) {
    RowsView view = RowsView::f32(of, 1, heads, kDim);
    view.place = MemoryPlace::device, view.ready = stream;
    return view;
  };
  std::vector<AppendItem> appended;
  std::vector<AttentionItem> asked;
  for (size_t s = 0; s < count; ++s) {
    appended.push_back({ids[s], rows(keys + s * kRow, kKvHeads), rows(values + s * kRow, kKvHeads), {}});
    asked.push_back({ids[s], rows(queries + s * row, kHeads), out + s * row, -1, nullptr, {}});
  }
  AttentionOptions options;
  options.observe = false;
  std::vector<double> appends, calls, alone;
  const auto step = [&] {
    const auto begin = std::chrono::steady_clock::now();
    check(cache.append_many(0, appended));
    const auto between = std::chrono::steady_clock::now();
    appends.push_back(std::chrono::duration<double, std::micro>(between - begin).count());
    check(cache.attention(0, asked, options));
    calls.push_back(microseconds_since(between));
  };
  for (uint32_t i = 0; i < setting.steps; ++i) {  // one by one
    const auto begin = std::chrono::steady_clock::now();
    step();
    check(cudaStreamSynchronize(stream));
    alone.push_back(microseconds_since(begin));
  }
  appends.clear(), calls.clear();
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < setting.steps; ++i) step();
  check(cudaStreamSynchronize(stream));
  const double together = microseconds_since(begin) / setting.steps;
  check(device.check());
  const cuda::Usage usage = device.usage();
  std::printf(
      "{\"memory\": \"device\", \"spec\": \"%s\", \"kept\": %d, \"tokens\": %u, \"sequences\": %zu, \"append_us\": %.1f, "
      "\"call_us\": %.1f, "
      "\"step_us\": %.1f, \"pipelined_us\": %.1f, \"device_bytes\": %llu, \"peak_bytes\": %llu, \"on_processor\": %llu}\n",
      setting.spec.c_str(), setting.kept, setting.tokens, count, median(appends), median(calls), median(alone), together,
      static_cast<unsigned long long>(usage.device_bytes), static_cast<unsigned long long>(usage.peak_bytes),
      static_cast<unsigned long long>(usage.on_processor));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string spec = argc > 1 ? argv[1] : "hot=128,warm=0,archive=kivi2,sinks=4";
  const uint32_t tokens = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 32768;
  const uint32_t sequences = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 8;
  const uint32_t steps = argc > 4 ? static_cast<uint32_t>(std::atoi(argv[4])) : 60;
  cuda::Options options;
  options.keep_on_host = argc <= 5 || std::string(argv[5]) != "away";
  CacheConfig config;
  config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  check(apply_spec(spec, config));
  auto made = AdaptiveKVCache::create(config);
  if (!made.ok()) fail(made.status());
  AdaptiveKVCache& cache = **made;

  std::vector<SeqId> ids;
  for (uint32_t s = 0; s < sequences; ++s) ids.push_back(*cache.add_sequence());
  std::vector<std::thread> fillers;
  for (uint32_t s = 0; s < sequences; ++s) {
    fillers.emplace_back([&, s] {
      Rows keys(2 * s + 1), values(2 * s + 2);
      for (uint32_t t = 0; t < tokens + 16 * s; t += kChunk) {
        const uint32_t count = std::min(kChunk, tokens + 16 * s - t);
        check(cache.append(ids[s], 0, RowsView::f32(keys.next(count), count, kKvHeads, kDim),
                           RowsView::f32(values.next(count), count, kKvHeads, kDim)));
      }
    });
  }
  for (std::thread& filler : fillers) filler.join();
  auto device = cuda::attach(cache, options);
  if (!device.ok()) fail(device.status());
  const Setting setting{spec, tokens, steps, options.keep_on_host};
  in_host_memory(cache, **device, ids, setting);
  in_device_memory(cache, **device, ids, setting);
  return 0;
}
