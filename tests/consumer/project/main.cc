// What a program that embeds tierkv looks like: append keys and values, attend over them, ask what they cost.
#include <cmath>
#include <cstdio>
#include <vector>

#include <tierkv/cache.h>

int main() {
  tierkv::CacheConfig config;
  config.num_layers = 1;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  if (tierkv::Status status = tierkv::apply_spec("balanced", config); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  auto created = tierkv::AdaptiveKVCache::create(config);
  if (!created.ok()) {
    std::fprintf(stderr, "%s\n", created.status().to_string().c_str());
    return 1;
  }
  tierkv::AdaptiveKVCache& cache = **created;
  const tierkv::SeqId seq = cache.add_sequence().value();

  const uint32_t tokens = 2048;
  std::vector<float> keys(tokens * 2 * 64), values(keys.size()), query(8 * 64), out(query.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = std::sin(0.37f * static_cast<float>(i));
    values[i] = std::cos(0.71f * static_cast<float>(i));
  }
  for (size_t i = 0; i < query.size(); ++i) query[i] = std::cos(0.11f * static_cast<float>(i));

  tierkv::Status status =
      cache.append(seq, 0, tierkv::RowsView::f32(keys.data(), tokens, 2, 64), tierkv::RowsView::f32(values.data(), tokens, 2, 64));
  if (status.ok()) status = cache.attention(seq, 0, tierkv::RowsView::f32(query.data(), 1, 8, 64), out.data());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  // Attention is a weighted mean of values between -1 and 1; the newest token is still exact to FP16.
  for (float x : out) {
    if (!(std::fabs(x) < 1.5f)) {
      std::fprintf(stderr, "attention gave %f\n", static_cast<double>(x));
      return 1;
    }
  }
  const uint32_t newest = tokens - 1;
  std::vector<float> row(2 * 64);
  status = cache.get(seq, 0, {&newest, 1}, row.data(), nullptr);
  if (!status.ok() || std::fabs(row[0] - keys[newest * row.size()]) > 0.001f) {
    std::fprintf(stderr, "the newest key came back as %f: %s\n", static_cast<double>(row[0]), status.to_string().c_str());
    return 1;
  }
  const tierkv::MemoryStats memory = cache.memory_usage();
  std::printf("%u tokens, %llu bytes resident, %llu as FP16\n", tokens, static_cast<unsigned long long>(memory.total_bytes),
              static_cast<unsigned long long>(memory.fp16_bytes));
  return memory.total_bytes > 0 ? 0 : 1;
}
