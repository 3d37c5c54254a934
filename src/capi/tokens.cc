// tokens.cc — tierkv/c.h: rows in, attention out, and the calls that look at tokens or shorten sequences.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/structs.h"

using tierkv::AttentionOptions;
using tierkv::DType;
using tierkv::Result;
using tierkv::RowsView;
using tierkv::SeqId;
using tierkv::Status;
using tierkv::StatusCode;
using tierkv::capi::guarded;

static_assert(TIERKV_F32 == static_cast<int>(DType::f32) && TIERKV_F16 == static_cast<int>(DType::f16) &&
              TIERKV_BF16 == static_cast<int>(DType::bf16));

namespace tierkv::capi {
namespace {

// The first version's size: nothing of it can be left out.
constexpr size_t kLeastRows = offsetof(tierkv_rows, head_stride) + sizeof(int64_t);

Result<RowsView> view_of(const tierkv_rows* given, const char* what) {
  tierkv_rows rows{};
  TIERKV_RETURN_IF_ERROR(sized_in(given, kLeastRows, what, rows));
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

Result<tierkv_attention_options> options_of(const tierkv_attention_options* given) {
  tierkv_attention_options all;
  tierkv_attention_options_init(&all);
  if (given) TIERKV_RETURN_IF_ERROR(sized_in(given, sizeof(size_t), "options", all));
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
template <class Item>
Item& item_at(Item* items, size_t i) {
  return *reinterpret_cast<Item*>(reinterpret_cast<char*>(items) + i * items->size);
}

Status append_batch(AdaptiveKVCache& cache, uint32_t layer, tierkv_append_item* items, size_t count) {
  std::vector<AppendItem> batch(count);
  for (size_t i = 0; i < count; ++i) {
    const tierkv_append_item& item = item_at(items, i);
    if (item.size != items->size || item.size < sizeof(tierkv_append_item)) {
      return error(StatusCode::invalid_argument, "items[", i, "].size is ", item.size, "; call tierkv_append_item_init()");
    }
    if (!item.keys) return null_argument("keys");
    if (!item.values) return null_argument("values");
    TIERKV_ASSIGN_OR_RETURN(batch[i].keys, view_of(item.keys, "keys"));
    TIERKV_ASSIGN_OR_RETURN(batch[i].values, view_of(item.values, "values"));
    batch[i].seq = item.seq;
  }
  const Status status = cache.append_many(layer, batch);
  for (size_t i = 0; i < count; ++i) item_at(items, i).status = static_cast<int>(batch[i].status.code());
  return status;
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
    TIERKV_ASSIGN_OR_RETURN(batch[i].queries, view_of(item.queries, "queries"));
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

tierkv_status tierkv_append(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const tierkv_rows* keys,
                            const tierkv_rows* values) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(keys);
    TIERKV_NOT_NULL(values);
    TIERKV_ASSIGN_OR_RETURN(const RowsView k, view_of(keys, "keys"));
    TIERKV_ASSIGN_OR_RETURN(const RowsView v, view_of(values, "values"));
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
    TIERKV_ASSIGN_OR_RETURN(const RowsView q, view_of(queries, "queries"));
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

void tierkv_append_item_init(tierkv_append_item* item) {
  if (!item) return;
  *item = tierkv_append_item{};
  item->size = sizeof *item;
}

tierkv_status tierkv_append_batch(tierkv_cache* cache, uint32_t layer, tierkv_append_item* items, size_t count) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (count == 0) return {};
    TIERKV_NOT_NULL(items);
    return append_batch(*cache->value, layer, items, count);
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

}  // extern "C"
