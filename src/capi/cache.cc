// cache.cc — tierkv/c.h: caches, sequences, parking.
#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/structs.h"

using tierkv::Result;
using tierkv::Status;
using tierkv::StatusCode;
using tierkv::capi::guarded;

static_assert(TIERKV_INTERNAL == static_cast<int>(StatusCode::internal) &&
              TIERKV_DATA_LOSS == static_cast<int>(StatusCode::data_loss) &&
              TIERKV_NOT_FOUND == static_cast<int>(StatusCode::not_found) &&
              TIERKV_IO_ERROR == static_cast<int>(StatusCode::io_error) &&
              TIERKV_INVALID_ARGUMENT == static_cast<int>(StatusCode::invalid_argument) &&
              TIERKV_OUT_OF_RANGE == static_cast<int>(StatusCode::out_of_range) &&
              TIERKV_RESOURCE_EXHAUSTED == static_cast<int>(StatusCode::resource_exhausted) &&
              TIERKV_FAILED_PRECONDITION == static_cast<int>(StatusCode::failed_precondition) &&
              TIERKV_UNSUPPORTED == static_cast<int>(StatusCode::unsupported));

namespace tierkv::capi {
namespace {

Result<tierkv::DeepOptions> options_of(const tierkv_deep_options* given) {
  tierkv_deep_options all;
  tierkv_deep_options_init(&all);
  if (given) TIERKV_RETURN_IF_ERROR(sized_in(given, sizeof(size_t), "options", all));
  DeepOptions out;
  out.ratio = all.ratio;
  out.quality = all.quality;
  out.keep_recent = all.keep_recent;
  out.first_position = all.first_position;
  return out;
}

}  // namespace
}  // namespace tierkv::capi

using namespace tierkv::capi;

extern "C" {

tierkv_status tierkv_cache_create(const tierkv_config* config, tierkv_cache** out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    TIERKV_NOT_NULL(out);
    auto handle = std::make_unique<tierkv_cache>();
    TIERKV_ASSIGN_OR_RETURN(handle->value, tierkv::AdaptiveKVCache::create(config->value));
    *out = handle.release();
    return {};
  });
}

void tierkv_cache_destroy(tierkv_cache* cache) { delete cache; }

tierkv_status tierkv_seq_add(tierkv_cache* cache, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->add_sequence(), out);
  });
}

tierkv_status tierkv_seq_fork(tierkv_cache* cache, tierkv_seq seq, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->fork(seq), out);
  });
}

tierkv_status tierkv_seq_remove(tierkv_cache* cache, tierkv_seq seq) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->remove(seq);
  });
}

void tierkv_deep_options_init(tierkv_deep_options* options) {
  if (!options) return;
  *options = tierkv_deep_options{};
  options->size = sizeof *options;
  options->keep_recent = tierkv::DeepOptions::kTiers;
}

tierkv_status tierkv_seq_park(tierkv_cache* cache, tierkv_seq seq, const tierkv_deep_options* options, tierkv_deep_report* report) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (report && report->size < sizeof(size_t)) return wrong_size("report", report->size);
    TIERKV_ASSIGN_OR_RETURN(const tierkv::DeepOptions deep, options_of(options));
    tierkv::DeepReport made;
    TIERKV_RETURN_IF_ERROR(cache->value->park(seq, deep, &made));
    if (!report) return {};
    return sized_out(tierkv_deep_report{0, made.tokens, made.first_position, made.bytes, made.ratio, made.quality}, report,
                     "report");
  });
}

tierkv_status tierkv_seq_wake(tierkv_cache* cache, tierkv_seq seq) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->wake(seq);
  });
}

tierkv_status tierkv_seq_is_parked(const tierkv_cache* cache, tierkv_seq seq, int* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->is_parked(seq), out);
  });
}

tierkv_status tierkv_seq_promote(tierkv_cache* cache, tierkv_seq seq, uint32_t first, uint32_t count,
                                 tierkv_promotion_report* report) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (report && report->size < sizeof(size_t)) return wrong_size("report", report->size);
    tierkv::PromotionReport made;
    TIERKV_RETURN_IF_ERROR(cache->value->promote(seq, first, count, &made));
    if (!report) return {};
    return sized_out(tierkv_promotion_report{0, made.blocks, made.tokens, made.without_copy}, report, "report");
  });
}

tierkv_status tierkv_seq_demote(tierkv_cache* cache, tierkv_seq seq, uint32_t first, uint32_t count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->demote(seq, first, count);
  });
}

tierkv_status tierkv_cache_set_pressure_handler(tierkv_cache* cache, tierkv_pressure_handler handler, void* user) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (!handler) return cache->value->set_pressure_handler(nullptr);
    return cache->value->set_pressure_handler([handler, user](const tierkv::MemoryPressure& p) {
      const tierkv_pressure out = {sizeof(tierkv_pressure), p.seq, p.needed_bytes, p.used_bytes, p.budget_bytes, p.attempt};
      return handler(user, &out) != 0;
    });
  });
}

tierkv_status tierkv_seq_list(const tierkv_cache* cache, tierkv_seq* out, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(count);
    return list_out(cache->value->sequences(), out, capacity, count);
  });
}

}  // extern "C"
