// attend.cc — queries in, one exact softmax over every tier of a sequence, outputs out.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attn/attention.h"
#include "base/guarded.h"
#include "base/per_thread.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/observe.h"
#include "cache/rows.h"

namespace tierkv {

using cache::StreamObserver;
using tiers::HeadStream;
using tiers::LayerState;
using tiers::Sequence;
using tiers::StreamViews;

namespace {

struct Call {
  const RowsView& queries;
  float* out;
  const AttentionOptions& options;
  attn::AttendParams params;
  uint32_t group;
  std::vector<uint32_t> positions;  // of each query
  std::vector<StreamViews> views;   // of each KV head
};

// Per thread: nothing in it outlives a call.
struct TileScratch {
  attn::Scratch attn;
  std::vector<float> rows, out;
};

// Rows of a view list that one task takes when few queries look at many tokens: the cut depends on the tokens alone, so that
// results do not depend on the number of threads.
constexpr uint32_t kSplitRows = 1024;

constexpr uint32_t kSplitQueryRows = 16;

// From this many rows on the time they take counts for more than the last digits of the products (quant::Workspace::coarse).
constexpr uint32_t kCoarseRows = 8192;

// Rows of queries a task takes at a time. A block is unpacked once for all of them.
constexpr uint32_t kTileRows = 48;

TileScratch& tile_scratch() { return per_thread<TileScratch>(); }

attn::QueryTile describe_tile(const Call& call, uint32_t head, uint32_t first, uint32_t count, const float* rows) {
  return {rows, count, call.group, call.positions.data() + first,
          call.options.sink_logits ? call.options.sink_logits + head * call.group : nullptr};
}

// Queries first..first+count-1 of one KV head as a tile, its rows widened into the scratch.
attn::QueryTile load_tile(const Call& call, uint32_t head, uint32_t first, uint32_t count, TileScratch& scratch) {
  const uint32_t d = call.params.head_dim;
  const size_t rows = static_cast<size_t>(count) * call.group;
  scratch.rows.resize(rows * d);
  scratch.out.resize(rows * d);
  for (uint32_t q = 0; q < count; ++q) {
    for (uint32_t g = 0; g < call.group; ++g) {
      cache::widen_row(call.queries, first + q, head * call.group + g,
                       scratch.rows.data() + (static_cast<size_t>(q) * call.group + g) * d);
    }
  }
  return describe_tile(call, head, first, count, scratch.rows.data());
}

void store_tile(const Call& call, uint32_t head, uint32_t first, uint32_t count, const float* out) {
  const uint32_t d = call.params.head_dim;
  for (uint32_t q = 0; q < count; ++q) {
    float* to = call.out + (static_cast<size_t>(first + q) * call.queries.heads + static_cast<size_t>(head) * call.group) * d;
    std::memcpy(to, out + static_cast<size_t>(q) * call.group * d, static_cast<size_t>(call.group) * d * sizeof(float));
  }
}

void run_tile(const Call& call, uint32_t head, uint32_t first, uint32_t count, StreamObserver* observer) {
  TileScratch& scratch = tile_scratch();
  const attn::QueryTile tile = load_tile(call, head, first, count, scratch);
  if (observer) observer->start_tile(tile.positions);
  attn::attend(call.views[head].views, tile, call.params, scratch.out.data(), scratch.attn, observer);
  store_tile(call, head, first, count, scratch.out.data());
}

// One KV head's views in runs of about kSplitRows rows.
struct SplitTask {
  uint32_t head;
  size_t first_view, views;
};
std::vector<SplitTask> split_views(const Call& call) {
  std::vector<SplitTask> tasks;
  for (uint32_t h = 0; h < call.views.size(); ++h) {
    const auto& views = call.views[h].views;
    size_t first = 0;
    uint32_t rows = 0;
    for (size_t v = 0; v < views.size(); ++v) {
      rows += views[v].rows;
      if (rows >= kSplitRows || v + 1 == views.size()) {
        tasks.push_back({h, first, v + 1 - first});
        first = v + 1;
        rows = 0;
      }
    }
  }
  return tasks;
}

// Few queries: every task takes a run of tokens of one KV head, and the runs of a head are merged.
template <class Run>
void run_split(const Call& call, const Run& run) {
  const std::vector<SplitTask> tasks = split_views(call);
  std::vector<attn::Partial> partials(tasks.size());
  run(static_cast<uint32_t>(tasks.size()), [&](uint32_t i) {
    TileScratch& scratch = tile_scratch();
    const SplitTask& task = tasks[i];
    const attn::QueryTile tile = load_tile(call, task.head, 0, call.queries.tokens, scratch);
    const std::span<const attn::BlockView> views(call.views[task.head].views);
    attn::attend_partial(views.subspan(task.first_view, task.views), tile, call.params, partials[i], scratch.attn);
  });
  TileScratch& scratch = tile_scratch();
  scratch.out.resize(static_cast<size_t>(call.queries.tokens) * call.group * call.params.head_dim);
  for (uint32_t h = 0; h < call.views.size(); ++h) {
    const auto mine = [&](const SplitTask& t) { return t.head == h; };
    const auto first = std::find_if(tasks.begin(), tasks.end(), mine);
    const auto count = static_cast<size_t>(std::count_if(first, tasks.end(), mine));
    const attn::QueryTile tile = describe_tile(call, h, 0, call.queries.tokens, nullptr);  // a merge looks at no query
    attn::merge(std::span(partials).subspan(static_cast<size_t>(first - tasks.begin()), count), tile, call.params,
                scratch.out.data());
    store_tile(call, h, 0, call.queries.tokens, scratch.out.data());
  }
}

Status query_positions(const AttentionOptions& options, uint32_t length, uint32_t count, std::vector<uint32_t>& out) {
  if (options.first_position < 0 && count > length) {
    return error(StatusCode::out_of_range, count, " queries for a sequence of ", length, " tokens; give first_position");
  }
  const int64_t first = options.first_position < 0 ? static_cast<int64_t>(length) - count : options.first_position;
  if (first > static_cast<int64_t>(tiers::kDeadPosition) - count) {
    return error(StatusCode::out_of_range, "first_position ", first, " is out of range: positions end at ",
                 tiers::kDeadPosition - 1);
  }
  for (uint32_t i = 0; i < count; ++i) out.push_back(static_cast<uint32_t>(first) + i);
  return {};
}

Status check_options(const AttentionOptions& o, uint32_t query_heads) {
  if (!std::isfinite(o.scale) || o.scale < 0.0f)
    return error(StatusCode::invalid_argument, "scale must be finite and not negative");
  if (!std::isfinite(o.softcap) || o.softcap < 0.0f)
    return error(StatusCode::invalid_argument, "softcap must be finite and not negative");
  for (uint32_t h = 0; o.sink_logits && h < query_heads; ++h) {
    if (!std::isfinite(o.sink_logits[h]))
      return error(StatusCode::invalid_argument, "sink_logits of query head ", h, " is not finite");
  }
  return {};
}

}  // namespace

Status AdaptiveKVCache::attention(SeqId seq, uint32_t layer, const RowsView& queries, float* out,
                                  const AttentionOptions& options) try {
  const CacheConfig& c = impl_->config;
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  TIERKV_RETURN_IF_ERROR(cache::check_shape(queries, "queries", c.query_heads(), c.head_dim));
  TIERKV_RETURN_IF_ERROR(cache::check_finite(queries, "queries", /*bf16=*/true));
  TIERKV_RETURN_IF_ERROR(check_options(options, c.query_heads()));
  if (queries.tokens == 0) return {};
  if (!out) return error(StatusCode::invalid_argument, "attention needs a place for its output");
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  LayerState& state = sequence->layer(layer);

  Call call{queries, out, options, {}, c.query_heads() / c.num_kv_heads, {}, {}};
  TIERKV_RETURN_IF_ERROR(query_positions(options, state.length, queries.tokens, call.positions));
  call.params.head_dim = c.head_dim;
  call.params.scale = options.scale > 0.0f ? options.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  call.params.softcap = options.softcap;
  call.params.causal = options.causal;
  call.params.window = impl_->plan(layer).window;
  call.views.resize(c.num_kv_heads);
  for (uint32_t h = 0; h < c.num_kv_heads; ++h) {
    tiers::collect_views(impl_->env, sequence->heads(layer)[h], *impl_->hot_codec, call.views[h]);
  }
  call.params.coarse = state.length >= kCoarseRows;

  const auto run = [&](uint32_t count, const std::function<void(uint32_t)>& task) {
    options.executor ? (*options.executor)(count, task) : impl_->pool.run(count, task);
  };
  const bool learn = options.observe && impl_->evicts(layer) && impl_->env.signals;
  if (!learn && !options.mass && queries.tokens * call.group <= kSplitQueryRows) {
    run_split(call, run);
  } else if (!learn && !options.mass) {
    const uint32_t per_tile = std::max(1u, kTileRows / call.group);
    const uint32_t tiles = (queries.tokens + per_tile - 1) / per_tile;
    run(c.num_kv_heads * tiles, [&](uint32_t i) {
      const uint32_t first = i / c.num_kv_heads * per_tile;
      run_tile(call, i % c.num_kv_heads, first, std::min(per_tile, queries.tokens - first), nullptr);
    });
  } else {
    const uint32_t length = state.length;
    if (options.mass) {
      options.mass->blocks.clear();
      options.mass->tokens.assign(options.mass->want_tokens ? static_cast<size_t>(c.num_kv_heads) * length : 0, 0.0f);
    }
    cache::ObserveSettings settings{learn ? impl_->env.signals : 0, impl_->signal_slot, c.eviction.observation,
                                    state.window_queries, call.group};
    std::vector<std::vector<BlockMass>> blocks(c.num_kv_heads);
    const uint32_t per_tile = std::max(1u, 8u / call.group);
    // Statistics of a stream change query by query, so a KV head is one task.
    run(c.num_kv_heads, [&](uint32_t h) {
      StreamObserver observer(settings, sequence->heads(layer)[h], call.views[h], options.mass, length);
      for (uint32_t first = 0; first < queries.tokens; first += per_tile) {
        run_tile(call, h, first, std::min(per_tile, queries.tokens - first), &observer);
      }
      blocks[h] = observer.take_blocks();
    });
    if (options.mass) {
      for (auto& of_head : blocks) options.mass->blocks.insert(options.mass->blocks.end(), of_head.begin(), of_head.end());
    }
    if (learn) state.window_queries = (state.window_queries + queries.tokens) % c.eviction.observation;
  }
  if (options.observe) state.unobserved = 0;
  return {};
}
TIERKV_NO_MEMORY("attend")

}  // namespace tierkv
