// One decode step of attention, 32 query heads on 8 KV heads of 128 channels, one layer, one thread: presets at 4K and 32K tokens.
#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kDim = 128;

Result<Timing> time_attention(const FilledCache& filled, const Settings& settings) {
  std::vector<float> out(static_cast<size_t>(kHeads) * kDim);
  AttentionOptions options;
  options.observe = false;
  Status status;
  const Timing timing = measure(settings, [&] {
    status = filled.cache->attention(filled.seq, 0, RowsView::f32(filled.queries.data(), 1, kHeads, kDim), out.data(), options);
  });
  if (!status.ok()) return status;
  return timing;
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (const char* preset : {"fp16", "kivi4", "balanced"}) {
    for (uint32_t kilo : {4u, 32u}) {
      const std::string name = std::string("cache/") + preset + "/decode/" + std::to_string(kilo) + "Kx32x8x128";
      cases.push_back({name, [=](const Settings& settings, const Emit& emit) -> Status {
        if (settings.quick && kilo > 4) return {};
        const uint32_t tokens = settings.quick ? 1024 : kilo * 1024;
        TIERKV_ASSIGN_OR_RETURN(const FilledCache filled, fill_cache(preset, tokens));
        TIERKV_RETURN_IF_ERROR(filled.check_attention(1e-3));
        const MemoryStats memory = filled.cache->memory_usage();
        TIERKV_ASSIGN_OR_RETURN(const Timing timing, time_attention(filled, settings));
        Row row(name);
        row.timing(timing).number("tokens", tokens).number("ns_per_token", timing.median_ns / tokens);
        row.number("gbps", static_cast<double>(memory.total_bytes) / timing.median_ns);
        row.number("bits", 16.0 / memory.compression());
        emit(row);
        return {};
      }});
    }
  }
}

}  // namespace tierkv::bench
