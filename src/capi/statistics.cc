// statistics.cc — tierkv/c.h: memory, quality, checksums, adaptation.
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/structs.h"

using tierkv::MemoryStats;
using tierkv::Status;
using tierkv::capi::guarded;

static_assert(TIERKV_SINK == static_cast<int>(tierkv::Tier::sink) && TIERKV_ARCHIVE == static_cast<int>(tierkv::Tier::archive) &&
              TIERKV_NUM_TIERS == tierkv::kNumTiers);

namespace tierkv::capi {
namespace {

tierkv_memory plain(const MemoryStats& m) {
  tierkv_memory out{};
  for (int t = 0; t < kNumTiers; ++t) out.tier[t] = {m.tier[t].tokens, m.tier[t].payload_bytes, m.tier[t].overhead_bytes};
  out.bookkeeping_bytes = m.bookkeeping_bytes;
  out.free_bytes = m.free_bytes;
  out.total_bytes = m.total_bytes;
  out.peak_bytes = m.peak_bytes;
  out.budget_bytes = m.budget_bytes;
  out.fp16_bytes = m.fp16_bytes;
  out.parked_tokens = m.parked_tokens;
  out.parked_bytes = m.parked_bytes;
  out.table_bytes = m.table_bytes;
  out.scratch_bytes = m.scratch_bytes;
  out.promoted_tokens = m.promoted_tokens;
  out.promoted_bytes = m.promoted_bytes;
  out.cold_bytes = m.cold_bytes;
  out.spilled_tokens = m.spilled_tokens;
  out.read_blocks = m.read_blocks;
  out.skipped_blocks = m.skipped_blocks;
  out.skipped_mass = m.skipped_mass;
  out.device_tokens = m.device_tokens;
  out.device_bytes = m.device_bytes;
  return out;
}

}  // namespace
}  // namespace tierkv::capi

using namespace tierkv::capi;

extern "C" {

tierkv_status tierkv_memory_usage(const tierkv_cache* cache, tierkv_memory* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return sized_out(plain(cache->value->memory_usage()), out, "out");
  });
}

tierkv_status tierkv_seq_memory_usage(const tierkv_cache* cache, tierkv_seq seq, tierkv_memory* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    TIERKV_ASSIGN_OR_RETURN(const MemoryStats m, cache->value->memory_usage(seq));
    return sized_out(plain(m), out, "out");
  });
}

tierkv_status tierkv_quality_metrics(const tierkv_cache* cache, tierkv_quality* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    const tierkv::QualityMetrics q = cache->value->quality_metrics();
    return sized_out(tierkv_quality{0, q.samples, q.mean, q.recent_mean, q.target, q.adaptations}, out, "out");
  });
}

tierkv_status tierkv_verify(const tierkv_cache* cache, tierkv_seq seq) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->verify(seq);
  });
}

tierkv_status tierkv_adapt_thresholds(tierkv_cache* cache, double score) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->adapt_thresholds({score});
  });
}

tierkv_status tierkv_get_thresholds(const tierkv_cache* cache, tierkv_thresholds* out, size_t element_size, size_t capacity,
                                    size_t* count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(count);
    std::vector<tierkv_thresholds> all;
    for (const tierkv::LayerThresholds& t : cache->value->thresholds()) all.push_back({t.hot, t.warm, t.archive_bits});
    return list_structs_out(all, out, element_size, capacity, count);
  });
}

tierkv_status tierkv_set_thresholds(tierkv_cache* cache, const tierkv_thresholds* given, size_t element_size, size_t count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(given);
    if (element_size < sizeof(tierkv_thresholds)) {
      return tierkv::error(tierkv::StatusCode::invalid_argument, "element_size is ", element_size, "; give sizeof(*given)");
    }
    if (count > cache->value->config().num_layers) {
      return tierkv::error(tierkv::StatusCode::invalid_argument, "thresholds for ", count, " layers, this cache has ",
                           cache->value->config().num_layers);
    }
    std::vector<tierkv::LayerThresholds> all(count);
    for (size_t i = 0; i < count; ++i) {
      tierkv_thresholds one;
      std::memcpy(&one, reinterpret_cast<const std::byte*>(given) + i * element_size, sizeof one);
      all[i] = {one.hot, one.warm, one.archive_bits};
    }
    return cache->value->set_thresholds(all);
  });
}

tierkv_status tierkv_save_thresholds(const tierkv_cache* cache, const char* path) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    return cache->value->save_thresholds(path);
  });
}

tierkv_status tierkv_load_thresholds(tierkv_cache* cache, const char* path) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    return cache->value->load_thresholds(path);
  });
}

}  // extern "C"
