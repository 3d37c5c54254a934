#include "llama/layer_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "base/guarded.h"
#include "base/status_macros.h"

namespace tierkv::llama {
namespace {

RowsView slice(const RowsView& rows, uint32_t first, uint32_t count) {
  RowsView result = rows;
  const ptrdiff_t size = rows.type == DType::f32 ? 4 : 2;
  result.data = static_cast<const char*>(rows.data) + static_cast<ptrdiff_t>(first) * rows.token_stride * size;
  result.tokens = count;
  return result;
}

size_t row_size(const AttentionNode& node) { return static_cast<size_t>(node.queries.heads) * node.queries.head_dim; }

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

LayerServer::LayerServer(const ModelShape& shape, AdaptiveKVCache& cache, AttentionObserver observer, uint32_t chunk)
    : cache_(cache),
      observer_(std::move(observer)),
      pages_(shape.layers),
      crew_executor_([this](uint32_t count, const std::function<void(uint32_t)>& task) { crew_.run(count, task); }) {
  for (uint32_t i = 0; i < shape.layers; ++i) {
    const uint32_t most = chunk_of(cache.config().layer(i));
    chunks_.push_back(chunk == 0 ? most : std::min(chunk, most));
  }
}

// How many rows may be appended before the first of them is served. A windowed layer may have dropped what the first row still
// sees once more than its slack has followed; other layers compress what leaves their hot tail, and prompts should see no less of
// it than single tokens do.
uint32_t LayerServer::chunk_of(const LayerConfig& layer) const {
  uint32_t chunk = layer.hot == kAll ? kAll : std::max<uint32_t>(layer.hot, 32);
  if (layer.window != 0) chunk = std::min(chunk, std::max<uint32_t>(cache_.config().window_slack, 1));
  return chunk;
}

void LayerServer::begin(std::vector<Work> work, uint32_t rows, bool all_or_nothing) {
  work_ = std::move(work);
  rows_ = rows;
  all_or_nothing_ = all_or_nothing;
  failed_ = false;
  status_ = {};
  layers_served_ = 0;
  crew_.begin();
}

void LayerServer::fail(Status reason) noexcept {
  const std::lock_guard lock(status_mutex_);
  if (status_.ok()) status_ = std::move(reason);
  failed_ = true;
}

void LayerServer::serve(uint32_t layer, const ggml_tensor* tensor, const OpParams& params, int ith, int nth) noexcept {
  const bool crew = nth > 1 && nth <= static_cast<int>(Crew::kMaxThreads);
  if (ith != 0) {
    if (crew) crew_.follow(ith);
    return;
  }
  const int64_t start = now_ns(), before = append_ns_ + attention_ns_;
  // The others wait for the leader's word, whatever happened; and nothing may be thrown through ggml.
  const auto work = [&]() noexcept {
    try {
      Status status = serve_node(layer, tensor, params, nth);
      if (!status.ok()) fail(std::move(status));
    } catch (const std::bad_alloc&) {
      fail(out_of_memory("serve a layer"));
    } catch (const std::exception&) {
      fail(Status(StatusCode::internal, "layer: failed"));
    }
  };
  if (crew) {
    crew_.lead(work);
  } else {
    work();
  }
  ++layers_served_;
  own_ns_ += now_ns() - start - (append_ns_ + attention_ns_ - before);
}

Status LayerServer::serve_node(uint32_t layer, const ggml_tensor* tensor, const OpParams& params, int nth) {
  TIERKV_ASSIGN_OR_RETURN(const AttentionNode node, read_node(tensor, params.data()));
  if (node.queries.tokens != rows_ || nth > static_cast<int>(Crew::kMaxThreads)) {
    return error(StatusCode::internal, "libllama computes ", node.queries.tokens, " tokens on ", nth, " threads where ", rows_,
                 " tokens were given");
  }
  pages_.served(layer, tensor->src[1], tensor->src[2], rows_);
  if (!failed_) lead(layer, node, nth > 1);
  return {};
}

// Rounds: a chunk of every sequence that has one left, appended and then attended to.
void LayerServer::lead(uint32_t layer, const AttentionNode& node, bool crew) {
  progress_.assign(work_.size(), {});
  while (next_round(layer)) {
    append(layer, node, crew);
    attend(layer, node, crew);
    if (observer_) observe(layer, node);
    if (all_or_nothing_ && std::any_of(work_.begin(), work_.end(), [](const Work& w) { return !w.status.ok(); })) break;
  }
  settle_failures(node);
}

bool LayerServer::next_round(uint32_t layer) {
  round_.clear();
  for (size_t i = 0; i < work_.size(); ++i) {
    Work& work = work_[i];
    Progress& at = progress_[i];
    if (!work.status.ok() || at.run == work.rows->runs.size()) continue;
    const Run& run = work.rows->runs[at.run];
    const uint32_t count = std::min(chunks_[layer], run.count - at.done);
    round_.push_back({&work, run.row + at.done, count, run.position + at.done});
    at.done += count;
    if (at.done == run.count) at = {at.run + 1, 0};
  }
  return !round_.empty();
}

void LayerServer::append(uint32_t layer, const AttentionNode& node, bool crew) {
  const int64_t start = now_ns();
  const auto one = [&](uint32_t i) {
    const Chunk& chunk = round_[i];
    chunk.work->status = guarded("append", [&] {
      return cache_.append(chunk.work->id, layer, slice(node.keys, chunk.row, chunk.count),
                           slice(node.values, chunk.row, chunk.count));
    });
  };
  const auto count = static_cast<uint32_t>(round_.size());
  if (crew && count > 1) {
    crew_.run(count, one);
  } else {
    for (uint32_t i = 0; i < count; ++i) one(i);
  }
  append_ns_ += now_ns() - start;
}

void LayerServer::attend(uint32_t layer, const AttentionNode& node, bool crew) {
  const int64_t start = now_ns();
  std::erase_if(round_, [](const Chunk& chunk) { return !chunk.work->status.ok(); });
  items_.clear();
  for (const Chunk& chunk : round_) {
    AttentionItem& item = items_.emplace_back();
    item.seq = chunk.work->id;
    item.queries = slice(node.queries, chunk.row, chunk.count);
    item.out = node.out + chunk.row * row_size(node);
    item.first_position = chunk.position;
  }
  AttentionOptions options;
  options.executor = crew ? &crew_executor_ : nullptr;
  options.scale = node.scale;
  options.softcap = node.softcap;
  options.sink_logits = node.sink_logits;
  (void)cache_.attention(layer, items_, options).ok();  // every item has its status
  for (size_t i = 0; i < round_.size(); ++i) round_[i].work->status = std::move(items_[i].status);
  attention_ns_ += now_ns() - start;
}

void LayerServer::observe(uint32_t layer, const AttentionNode& node) {
  for (const Chunk& chunk : round_) {
    if (!chunk.work->status.ok()) continue;
    observer_({layer, chunk.work->rows->seq, chunk.position, slice(node.queries, chunk.row, chunk.count),
               slice(node.keys, chunk.row, chunk.count), slice(node.values, chunk.row, chunk.count),
               node.out + chunk.row * row_size(node), node.scale, node.softcap, node.sink_logits});
  }
}

// The rows of a sequence that failed go through the rest of the graph as zeros: whatever the memory held might not be a number.
void LayerServer::settle_failures(const AttentionNode& node) {
  size_t failures = 0;
  for (const Work& work : work_) {
    if (work.status.ok()) continue;
    ++failures;
    for (const Run& run : work.rows->runs) {
      std::memset(node.out + run.row * row_size(node), 0, run.count * row_size(node) * sizeof(float));
    }
  }
  if (failures == work_.size() || (failures > 0 && all_or_nothing_)) failed_ = true;
}

}  // namespace tierkv::llama
