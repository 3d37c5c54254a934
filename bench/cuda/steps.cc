// Times whole calls of a cache on a device, from rows and queries in host memory to results there: what a decode step costs a
// layer, the processor's part, the bus and the launch together.
//
//   tierkv_steps_cuda [SPEC] [TOKENS] [SEQUENCES] [STEPS]
//
// 32 query heads, 8 KV heads of 128 channels, one layer. Every sequence has rows of its own. Prints one line of JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
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
  Rows() : noise_(2 * kChunk * kRow) {
    std::mt19937 rng(1);
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

}  // namespace

int main(int argc, char** argv) {
  const std::string spec = argc > 1 ? argv[1] : "hot=128,warm=0,archive=kivi2,sinks=4";
  const uint32_t tokens = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 32768;
  const uint32_t sequences = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 8;
  const uint32_t steps = argc > 4 ? static_cast<uint32_t>(std::atoi(argv[4])) : 60;
  CacheConfig config;
  config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  check(apply_spec(spec, config));
  auto made = AdaptiveKVCache::create(config);
  if (!made.ok()) fail(made.status());
  AdaptiveKVCache& cache = **made;

  Rows keys, values;
  const auto append = [&](SeqId id, uint32_t count) {
    check(cache.append(id, 0, RowsView::f32(keys.next(count), count, kKvHeads, kDim),
                       RowsView::f32(values.next(count), count, kKvHeads, kDim)));
  };
  std::vector<SeqId> ids;
  for (uint32_t s = 0; s < sequences; ++s) {
    ids.push_back(*cache.add_sequence());
    for (uint32_t t = 0; t < tokens + 16 * s; t += kChunk) append(ids[s], std::min(kChunk, tokens + 16 * s - t));
  }
  auto device = cuda::attach(cache);
  if (!device.ok()) fail(device.status());

  const size_t row = size_t{kHeads} * kDim;
  std::vector<float> queries(sequences * row), out(queries.size());
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& x : queries) x = normal(rng);
  std::vector<AttentionItem> items;
  for (uint32_t s = 0; s < sequences; ++s)
    items.push_back({ids[s], RowsView::f32(queries.data() + s * row, 1, kHeads, kDim), out.data() + s * row});
  const auto attend = [&] {
    const auto begin = std::chrono::steady_clock::now();
    check(cache.attention(0, items));
    return microseconds_since(begin);
  };
  const double first = attend();
  std::vector<double> appends, calls;
  for (uint32_t i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (const SeqId id : ids) append(id, 1);
    appends.push_back(microseconds_since(begin));
    calls.push_back(attend());
  }
  double mean = 0.0;
  for (const double us : calls) mean += us / static_cast<double>(calls.size());
  const cuda::Usage usage = (*device)->usage();
  std::printf(
      "{\"spec\": \"%s\", \"tokens\": %u, \"sequences\": %u, \"first_us\": %.0f, \"call_us\": %.1f, \"mean_us\": %.1f, "
      "\"append_us\": %.1f, \"block_bytes\": %llu, \"scratch_bytes\": %llu, \"on_processor\": %llu}\n",
      spec.c_str(), tokens, sequences, first, median(calls), mean, median(appends),
      static_cast<unsigned long long>(usage.block_bytes), static_cast<unsigned long long>(usage.scratch_bytes),
      static_cast<unsigned long long>(usage.on_processor));
  return 0;
}
