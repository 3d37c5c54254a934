// cache.cc — tierkv/c.h: sequences, tokens, statistics, adaptation and snapshots.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"

using tierkv::AttentionOptions;
using tierkv::DType;
using tierkv::MemoryStats;
using tierkv::Result;
using tierkv::RowsView;
using tierkv::SeqId;
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
static_assert(TIERKV_F32 == static_cast<int>(DType::f32) && TIERKV_F16 == static_cast<int>(DType::f16) &&
              TIERKV_BF16 == static_cast<int>(DType::bf16));
static_assert(TIERKV_SINK == static_cast<int>(tierkv::Tier::sink) && TIERKV_ARCHIVE == static_cast<int>(tierkv::Tier::archive) &&
              TIERKV_NUM_TIERS == tierkv::kNumTiers);

namespace tierkv::capi {
namespace {

Result<RowsView> view_of(const tierkv_rows& rows, const char* what) {
  if (rows.type < TIERKV_F32 || rows.type > TIERKV_BF16) {
    return error(StatusCode::invalid_argument, what, ": type ", rows.type, " is none of TIERKV_F32, TIERKV_F16 and TIERKV_BF16");
  }
  return RowsView{rows.data,
                  static_cast<DType>(rows.type),
                  rows.tokens,
                  rows.heads,
                  rows.head_dim,
                  static_cast<ptrdiff_t>(rows.token_stride),
                  static_cast<ptrdiff_t>(rows.head_stride)};
}

// Hands a caller's id, length or the like out only when the call succeeded.
template <class T, class Out>
Status hand_out(Result<T> result, Out* out) {
  if (!result.ok()) return result.status();
  *out = *result;
  return {};
}

// The "at most capacity, and how many there are" of the listing calls.
template <class T>
Status list_out(const std::vector<T>& all, T* out, size_t capacity, size_t* count) {
  if (capacity && !out) return null_argument("out");
  std::copy_n(all.begin(), std::min(capacity, all.size()), out);
  *count = all.size();
  return {};
}

// Structs begin with the size the caller knew: copies what both sides have and leaves the rest of a longer one alone.
template <class T>
Status sized_out(T full, T* out, const char* name) {
  if (out->size < sizeof(size_t))
    return error(StatusCode::invalid_argument, name, "->size is ", out->size, "; set it to sizeof(*", name, ")");
  full.size = out->size;
  std::memcpy(out, &full, std::min(out->size, sizeof(T)));
  return {};
}

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
  return out;
}

Result<tierkv::DeepOptions> options_of(const tierkv_deep_options* given) {
  tierkv_deep_options all;
  tierkv_deep_options_init(&all);
  if (given && given->size < sizeof(size_t)) {
    return error(StatusCode::invalid_argument, "options->size is ", given->size, "; call tierkv_deep_options_init()");
  }
  if (given) std::memcpy(&all, given, std::min(given->size, sizeof all));
  DeepOptions out;
  out.ratio = all.ratio;
  out.quality = all.quality;
  out.keep_recent = all.keep_recent;
  out.first_position = all.first_position;
  return out;
}

Result<tierkv_attention_options> options_of(const tierkv_attention_options* given) {
  tierkv_attention_options all;
  tierkv_attention_options_init(&all);
  if (!given) return all;
  if (given->size < sizeof(size_t)) {
    return error(StatusCode::invalid_argument, "options->size is ", given->size, "; call tierkv_attention_options_init()");
  }
  std::memcpy(&all, given, std::min(given->size, sizeof all));
  return all;
}

AttentionOptions attention_options(const tierkv_attention_options& o) {
  AttentionOptions options;
  options.causal = o.causal != 0;
  options.observe = o.observe != 0;
  options.scale = o.scale;
  options.softcap = o.softcap;
  options.first_position = o.first_position;
  options.sink_logits = o.sink_logits;
  return options;
}

Status attend(AdaptiveKVCache& cache, SeqId seq, uint32_t layer, const RowsView& queries, float* out,
              const tierkv_attention_options& o) {
  AttentionOptions options = attention_options(o);
  MassReport mass;
  mass.want_tokens = true;
  if (o.token_mass) {
    options.mass = &mass;
    TIERKV_ASSIGN_OR_RETURN(const uint32_t length, cache.length(seq, layer));
    const size_t needed = static_cast<size_t>(cache.config().num_kv_heads) * length;
    if (o.token_mass_size < needed) {
      return error(StatusCode::invalid_argument, "token_mass has room for ", o.token_mass_size, " floats, kv heads x length are ",
                   needed);
    }
  }
  TIERKV_RETURN_IF_ERROR(cache.attention(seq, layer, queries, out, options));
  // Another thread may have appended in between: never more than there is room for.
  if (o.token_mass) std::copy_n(mass.tokens.begin(), std::min(mass.tokens.size(), o.token_mass_size), o.token_mass);
  return {};
}

// Element i of an array whose elements are as long as the caller knew them.
tierkv_attention_item& item_at(tierkv_attention_item* items, size_t i) {
  return *reinterpret_cast<tierkv_attention_item*>(reinterpret_cast<char*>(items) + i * items->size);
}

Status attend_batch(AdaptiveKVCache& cache, uint32_t layer, tierkv_attention_item* items, size_t count,
                    const tierkv_attention_options& o) {
  if (o.token_mass) return error(StatusCode::invalid_argument, "token_mass is for tierkv_attention(), one sequence at a time");
  std::vector<AttentionItem> batch(count);
  for (size_t i = 0; i < count; ++i) {
    const tierkv_attention_item& item = item_at(items, i);
    // The first version of the struct is the shortest there can be.
    if (item.size != items->size || item.size < sizeof(tierkv_attention_item)) {
      return error(StatusCode::invalid_argument, "items[", i, "].size is ", item.size, "; call tierkv_attention_item_init()");
    }
    if (!item.queries) return null_argument("queries");
    TIERKV_ASSIGN_OR_RETURN(batch[i].queries, view_of(*item.queries, "queries"));
    batch[i].seq = item.seq;
    batch[i].out = item.out;
    batch[i].first_position = item.first_position;
  }
  const Status status = cache.attention(layer, batch, attention_options(o));
  for (size_t i = 0; i < count; ++i) item_at(items, i).status = static_cast<int>(batch[i].status.code());
  return status;
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
    if (report && report->size < sizeof(size_t)) {
      return error(StatusCode::invalid_argument, "report->size is ", report->size, "; set it to sizeof(*report)");
    }
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

tierkv_status tierkv_seq_list(const tierkv_cache* cache, tierkv_seq* out, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(count);
    return list_out(cache->value->sequences(), out, capacity, count);
  });
}

tierkv_rows tierkv_rows_dense(const void* data, int type, uint32_t tokens, uint32_t heads, uint32_t head_dim) {
  return tierkv_rows{data, type, tokens, heads, head_dim, static_cast<int64_t>(heads) * head_dim, head_dim};
}

tierkv_status tierkv_append(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const tierkv_rows* keys,
                            const tierkv_rows* values) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(keys);
    TIERKV_NOT_NULL(values);
    TIERKV_ASSIGN_OR_RETURN(const RowsView k, view_of(*keys, "keys"));
    TIERKV_ASSIGN_OR_RETURN(const RowsView v, view_of(*values, "values"));
    return cache->value->append(seq, layer, k, v);
  });
}

tierkv_status tierkv_append_f32(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const float* keys, const float* values,
                                uint32_t tokens) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    const auto& c = cache->value->config();
    return cache->value->append(seq, layer, RowsView::f32(keys, tokens, c.num_kv_heads, c.head_dim),
                                RowsView::f32(values, tokens, c.num_kv_heads, c.head_dim));
  });
}

void tierkv_attention_options_init(tierkv_attention_options* options) {
  if (!options) return;
  *options = tierkv_attention_options{};
  options->size = sizeof *options;
  options->causal = 1;
  options->observe = 1;
  options->first_position = -1;
}

tierkv_status tierkv_attention(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const tierkv_rows* queries, float* out,
                               const tierkv_attention_options* options) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(queries);
    TIERKV_NOT_NULL(out);
    TIERKV_ASSIGN_OR_RETURN(const RowsView q, view_of(*queries, "queries"));
    TIERKV_ASSIGN_OR_RETURN(const tierkv_attention_options o, options_of(options));
    return attend(*cache->value, seq, layer, q, out, o);
  });
}

tierkv_status tierkv_attention_f32(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const float* queries, uint32_t tokens,
                                   float* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    const auto& c = cache->value->config();
    return cache->value->attention(seq, layer, RowsView::f32(queries, tokens, c.query_heads(), c.head_dim), out);
  });
}

void tierkv_attention_item_init(tierkv_attention_item* item) {
  if (!item) return;
  *item = tierkv_attention_item{};
  item->size = sizeof *item;
  item->first_position = -1;
}

tierkv_status tierkv_attention_batch(tierkv_cache* cache, uint32_t layer, tierkv_attention_item* items, size_t count,
                                     const tierkv_attention_options* options) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (count == 0) return {};
    TIERKV_NOT_NULL(items);
    TIERKV_ASSIGN_OR_RETURN(const tierkv_attention_options o, options_of(options));
    return attend_batch(*cache->value, layer, items, count, o);
  });
}

tierkv_status tierkv_get(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const uint32_t* positions, size_t count,
                         float* keys, float* values) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (count) TIERKV_NOT_NULL(positions);
    return cache->value->get(seq, layer, std::span(positions, count), keys, values);
  });
}

tierkv_status tierkv_truncate(tierkv_cache* cache, tierkv_seq seq, uint32_t length) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->truncate(seq, length);
  });
}

tierkv_status tierkv_evict(tierkv_cache* cache, tierkv_seq seq, uint32_t tokens) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->evict(seq, tokens);
  });
}

tierkv_status tierkv_flush(tierkv_cache* cache) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    return cache->value->flush();
  });
}

tierkv_status tierkv_length(const tierkv_cache* cache, tierkv_seq seq, uint32_t* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->length(seq), out);
  });
}

tierkv_status tierkv_layer_length(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, uint32_t* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->length(seq, layer), out);
  });
}

tierkv_status tierkv_positions(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, uint32_t kv_head, uint32_t* out,
                               size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(count);
    TIERKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> all, cache->value->positions(seq, layer, kv_head));
    return list_out(all, out, capacity, count);
  });
}

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

tierkv_status tierkv_get_thresholds(const tierkv_cache* cache, tierkv_thresholds* out, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(count);
    std::vector<tierkv_thresholds> all;
    for (const tierkv::LayerThresholds& t : cache->value->thresholds()) all.push_back({t.hot, t.warm, t.archive_bits});
    return list_out(all, out, capacity, count);
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

tierkv_status tierkv_save(const tierkv_cache* cache, tierkv_seq seq, const char* path) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    return cache->value->save(seq, path);
  });
}

tierkv_status tierkv_load(tierkv_cache* cache, const char* path, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->load(path), out);
  });
}

tierkv_status tierkv_freeze(const tierkv_cache* cache, tierkv_seq seq, void** out, size_t* size) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    TIERKV_NOT_NULL(size);
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, cache->value->freeze(seq));
    void* copy = copy_out(bytes.data(), bytes.size(), 0);
    if (!copy) throw std::bad_alloc();
    *out = copy;
    *size = bytes.size();
    return {};
  });
}

tierkv_status tierkv_unfreeze(tierkv_cache* cache, const void* bytes, size_t size, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(bytes);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->unfreeze({static_cast<const std::byte*>(bytes), size}), out);
  });
}

}  // extern "C"
