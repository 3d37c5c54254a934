// host.cc — the callbacks that put the cache's attention into libllama's graph, and decode() around them.
//
// Path::overwrite: the scheduler asks about every node; we want the attention nodes, and overwrite each result when it is there.
// Path::patch: when asked about an attention node we turn it into a GGML_OP_CUSTOM and say that we do not want it. The node keeps
// its sources, its place and its memory; only `op` and `op_params` change, the latter copied from a custom node that ggml itself
// made. libllama reuses graphs, so a node may come back already patched. Every layer has one record that a patched node points to.
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "llama/crew.h"
#include "llama/micro_batches.h"
#include "llama/node.h"
#include "llama/pages.h"
#include "llama/self_check.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

constexpr size_t kParams = GGML_MAX_OP_PARAMS / sizeof(int32_t);
using OpParams = std::array<int32_t, kParams>;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RowsView slice(const RowsView& rows, uint32_t first, uint32_t count) {
  RowsView result = rows;
  const ptrdiff_t size = rows.type == DType::f32 ? 4 : 2;
  result.data = static_cast<const char*>(rows.data) + static_cast<ptrdiff_t>(first) * rows.token_stride * size;
  result.tokens = count;
  return result;
}

}  // namespace

struct Host::Impl {
  struct Layer {
    Impl* host = nullptr;
    uint32_t index = 0;
    uint32_t chunk = 0;  // rows to append before their queries are served
    OpParams stock{};    // what a patched node had
    OpParams patched{};
  };
  struct Sequence {
    SeqId id = 0;
    bool live = false;
  };
  // One sequence's part in the micro-batch that libllama is computing.
  struct Work {
    SeqId id = 0;
    const SequenceRows* rows = nullptr;
    Status status;
  };

  Impl(const ModelShape& s, AdaptiveKVCache& c) : shape(s), cache(c), pages(s.layers) {}

  ModelShape shape;
  AdaptiveKVCache& cache;
  AttentionObserver observer;
  Path path = Path::overwrite;
  uint32_t micro_batch = 0;
  bool attached = true;
  std::vector<Layer> layers;                // never resized: patched nodes point into it
  std::map<int32_t, uint32_t> layer_index;  // by libllama's number
  std::vector<Sequence> sequences;
  CellPages pages;

  ggml_abort_callback next_abort = nullptr;
  void* next_abort_data = nullptr;
  ggml_backend_sched_eval_callback next_eval = nullptr;
  void* next_eval_data = nullptr;
  bool next_wants = false;

  // Path::patch: ggml's threads do what the cache shares out.
  Crew crew;
  const Executor crew_executor = [this](uint32_t count, const std::function<void(uint32_t)>& task) { crew.run(count, task); };
  const Executor inline_executor = [](uint32_t count, const std::function<void(uint32_t)>& task) {
    for (uint32_t i = 0; i < count; ++i) task(i);
  };

  // The micro-batch being computed.
  std::vector<Work> work;
  uint32_t rows = 0;
  std::atomic<bool> failed{false};
  std::atomic<uint32_t> layers_served{0};
  std::mutex status_mutex;
  Status status;  // of what is not one sequence's

  std::atomic<int64_t> append_ns{0}, attention_ns{0};
  std::atomic<int64_t> own_ns{0};  // of the calling thread
  int64_t decode_ns = 0;
  uint64_t calls = 0;

  void fail(Status reason) {
    const std::lock_guard lock(status_mutex);
    if (status.ok()) status = std::move(reason);
    failed = true;
  }

  // --- attention

  // `in_cache` grows by the time that the cache took.
  Status serve(const Layer& layer, const AttentionNode& node, const Work& item, const Executor* executor, int64_t& in_cache) {
    AttentionOptions options;
    options.executor = executor;
    options.scale = node.scale;
    options.softcap = node.softcap;
    options.sink_logits = node.sink_logits;
    const size_t row_size = static_cast<size_t>(node.queries.heads) * node.queries.head_dim;
    for (const Run& run : item.rows->runs) {
      for (uint32_t done = 0; done < run.count;) {
        const uint32_t count = std::min(layer.chunk, run.count - done);
        const uint32_t row = run.row + done;
        const int64_t start = now_ns();
        TIERKV_RETURN_IF_ERROR(cache.append(item.id, layer.index, slice(node.keys, row, count), slice(node.values, row, count)));
        const int64_t appended = now_ns();
        options.first_position = run.position + done;
        TIERKV_RETURN_IF_ERROR(
            cache.attention(item.id, layer.index, slice(node.queries, row, count), node.out + row * row_size, options));
        const int64_t attended = now_ns();
        append_ns.fetch_add(appended - start, std::memory_order_relaxed);
        attention_ns.fetch_add(attended - appended, std::memory_order_relaxed);
        in_cache += attended - start;
        if (observer) {
          observer({layer.index, item.rows->seq, run.position + done, slice(node.queries, row, count), slice(node.keys, row, count),
                    slice(node.values, row, count), node.out + row * row_size, node.scale, node.softcap, node.sink_logits});
        }
        done += count;
      }
    }
    return {};
  }

  // Serves every `step`th sequence from `first` on.
  void serve_some(const Layer& layer, const AttentionNode& node, size_t first, size_t step, const Executor* executor,
                  int64_t& in_cache) {
    for (size_t i = first; i < work.size() && !failed; i += step) {
      if (Status problem = serve(layer, node, work[i], executor, in_cache); !problem.ok()) {
        work[i].status = std::move(problem);
        failed = true;
      }
    }
  }

  // The part of thread `ith` of `nth`. With a sequence or more for every thread they go their own ways; with fewer, or with an
  // observer, the first thread goes through the sequences and the others help it with each.
  void serve_part(const Layer& layer, const AttentionNode& node, int ith, int nth, int64_t& in_cache) {
    if (nth == 1 || (work.size() >= static_cast<size_t>(nth) && !observer)) {
      serve_some(layer, node, static_cast<size_t>(ith), static_cast<size_t>(nth), nth == 1 ? nullptr : &inline_executor, in_cache);
    } else if (ith == 0) {
      crew.lead([&] { serve_some(layer, node, 0, 1, &crew_executor, in_cache); });
    } else {
      crew.follow(ith);
    }
  }

  void serve_node(const Layer& layer, const ggml_tensor* tensor, const OpParams& params, int ith, int nth) {
    const int64_t start = now_ns();
    int64_t in_cache = 0;
    auto node = read_node(tensor, params.data());
    if (!node.ok()) {
      fail(node.status());
    } else if (node->queries.tokens != rows || nth > static_cast<int>(Crew::kMaxThreads)) {
      fail(error(StatusCode::internal, "libllama computes ", node->queries.tokens, " tokens on ", nth, " threads where ", rows,
                 " tokens were given"));
    } else {
      if (ith == 0) pages.served(layer.index, tensor->src[1], tensor->src[2], rows);
      serve_part(layer, *node, ith, nth, in_cache);
    }
    if (ith != 0) return;
    ++layers_served;
    own_ns += now_ns() - start - in_cache;
  }

  static void custom_op(ggml_tensor* node, int ith, int nth, void* user) {
    const auto& layer = *static_cast<const Layer*>(user);
    layer.host->serve_node(layer, node, layer.stock, ith, nth);
  }

  Layer* find_layer(const ggml_tensor* node) {
    const auto found = layer_index.find(cache_layer(node->src[1]));
    return found == layer_index.end() ? nullptr : &layers[found->second];
  }

  void patch(ggml_tensor* node) {
    Layer* layer = find_layer(node);
    if (layer == nullptr) return fail(error(StatusCode::internal, "attention node ", ggml_get_name(node), " has an unknown layer"));
    std::memcpy(layer->stock.data(), node->op_params, sizeof(OpParams));
    std::memcpy(node->op_params, layer->patched.data(), sizeof(OpParams));
    node->op = GGML_OP_CUSTOM;
  }

  void unpatch(ggml_tensor* node) {
    for (const Layer& layer : layers) {
      if (std::memcmp(node->op_params, layer.patched.data(), sizeof(OpParams)) != 0) continue;
      std::memcpy(node->op_params, layer.stock.data(), sizeof(OpParams));
      node->op = GGML_OP_FLASH_ATTN_EXT;
      return;
    }
  }

  void prepare_patches() {
    ggml_init_params init{};
    init.mem_size = ggml_tensor_overhead() * (layers.size() + 1) + 1024;
    init.no_alloc = true;
    ggml_context* scratch = ggml_init(init);
    for (Layer& layer : layers) {
      const ggml_tensor* node = ggml_custom_4d(scratch, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, custom_op, GGML_N_TASKS_MAX, &layer);
      std::memcpy(layer.patched.data(), node->op_params, sizeof(OpParams));
    }
    ggml_free(scratch);
  }

  bool ask(ggml_tensor* node) {
    if (!attached) {
      if (node->op == GGML_OP_CUSTOM) unpatch(node);
      return false;
    }
    if (node->op != GGML_OP_FLASH_ATTN_EXT) return false;
    if (path == Path::overwrite) return true;
    patch(node);
    return false;
  }

  static bool on_node(ggml_tensor* node, bool asking, void* user) {
    auto& host = *static_cast<Impl*>(user);
    if (asking) {
      const bool wanted = host.ask(node);
      host.next_wants = host.next_eval != nullptr && host.next_eval(node, true, host.next_eval_data);
      return wanted || host.next_wants;
    }
    if (host.attached && host.path == Path::overwrite && node->op == GGML_OP_FLASH_ATTN_EXT) {
      OpParams params;
      std::memcpy(params.data(), node->op_params, sizeof(params));
      if (Layer* layer = host.find_layer(node)) {
        host.serve_node(*layer, node, params, 0, 1);
      } else {
        host.fail(error(StatusCode::internal, "attention node ", ggml_get_name(node), " has an unknown layer"));
      }
      if (host.failed) return false;
    }
    return !host.next_wants || host.next_eval(node, false, host.next_eval_data);
  }

  static bool on_abort(void* user) {
    auto& host = *static_cast<Impl*>(user);
    return host.failed || (host.next_abort != nullptr && host.next_abort(host.next_abort_data));
  }

  // --- decoding

  Status check_cache() const {
    const CacheConfig& config = cache.config();
    if (config.num_layers != shape.layers || config.query_heads() != shape.heads || config.num_kv_heads != shape.kv_heads ||
        config.head_dim != shape.head_dim) {
      return error(StatusCode::invalid_argument, "the cache is for ", config.num_layers, " layers of ", config.query_heads(),
                   " and ", config.num_kv_heads, " heads of ", config.head_dim, ", but the model has ", shape.layers, " layers of ",
                   shape.heads, " and ", shape.kv_heads, " heads of ", shape.head_dim);
    }
    for (uint32_t i = 0; i < shape.layers; ++i) {
      if (config.layer(i).window == shape.window[i]) continue;
      return error(StatusCode::invalid_argument, "layer ", i, " of the cache has a window of ", config.layer(i).window,
                   " tokens, but the model's is ", shape.window[i], " (0: full attention)");
    }
    return {};
  }

  // How many rows may be appended before the first of them is served. A windowed layer may have dropped what the first row still
  // sees once more than its slack has followed; other layers compress what leaves their hot tail, and prompts should see no less
  // of it than single tokens do.
  uint32_t chunk_of(const LayerConfig& layer) const {
    uint32_t chunk = layer.hot == kAll ? kAll : std::max<uint32_t>(layer.hot, 32);
    if (layer.window != 0) chunk = std::min(chunk, std::max<uint32_t>(cache.config().window_slack, 1));
    return chunk;
  }

  Status decode_one(llama_context* context, const llama_batch& batch, const std::vector<SequenceRows>& of) {
    const int64_t start = now_ns();
    work.clear();
    for (const SequenceRows& item : of) work.push_back({sequences[static_cast<size_t>(item.seq)].id, &item, {}});
    rows = static_cast<uint32_t>(batch.n_tokens);
    failed = false;
    layers_served = 0;
    status = {};
    crew.begin();
    const llama_memory_t memory = llama_get_memory(context);
    llama_memory_clear(memory, false);
    const int64_t called = now_ns();
    const int32_t result = llama_decode(context, batch);
    const int64_t returned = now_ns();
    llama_memory_clear(memory, false);
    pages.flush();
    ++calls;
    decode_ns += now_ns() - start;
    own_ns += (now_ns() - returned) + (called - start);
    for (Work& item : work) TIERKV_RETURN_IF_ERROR(item.status);
    TIERKV_RETURN_IF_ERROR(status);
    if (result == 2) return error(StatusCode::failed_precondition, "decoding was aborted");
    if (result != 0) return error(StatusCode::internal, "llama_decode() failed with ", result);
    if (layers_served != shape.layers) {
      return error(StatusCode::failed_precondition, "the context asked for ", layers_served.load(), " of the model's ",
                   shape.layers, " layers: was it made from the params that were attached?");
    }
    return {};
  }

  // After a failure: every sequence as long as it was. One that cannot go back (a window too short) is removed whole, because a
  // sequence whose layers differ in length would answer wrongly ever after.
  void roll_back(const MicroBatches& plan) {
    for (const MicroBatches::Start& start : plan.starts()) {
      Sequence& sequence = sequences[static_cast<size_t>(start.seq)];
      // Another thread parked it between two micro-batches: nothing of this one is in it.
      if (const auto parked = cache.is_parked(sequence.id); parked.ok() && *parked) continue;
      if (start.length > 0 && cache.truncate(sequence.id, start.length).ok()) continue;
      (void)cache.remove(sequence.id).ok();
      sequence.live = false;
    }
  }

  Status check_seq(int32_t seq) const {
    if (seq >= 0 && static_cast<size_t>(seq) < sequences.size()) return {};
    return error(StatusCode::invalid_argument, "there is no sequence ", seq, ": the context has sequences 0 to ",
                 sequences.size() - 1);
  }
};

Host::Host(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Host::~Host() {
  for (const Impl::Sequence& sequence : impl_->sequences) {
    if (sequence.live) (void)impl_->cache.remove(sequence.id).ok();
  }
}

Result<std::unique_ptr<Host>> Host::attach(llama_context_params& params, const ModelShape& shape, AdaptiveKVCache& cache,
                                           const HostOptions& options) {
  auto impl = std::make_unique<Impl>(shape, cache);
  TIERKV_RETURN_IF_ERROR(impl->check_cache());
  if (const CalibrationPtr calibration = cache.calibration()) {
    TIERKV_RETURN_IF_ERROR(check_fit(*calibration, shape.identity()));
  }
  if (params.embeddings || params.pooling_type > 0) {
    return error(StatusCode::invalid_argument, "the cache serves text generation, not contexts for embeddings");
  }
  const uint32_t asked = options.micro_batch != 0 ? options.micro_batch : params.n_ubatch;
  impl->micro_batch = std::clamp<uint32_t>(asked, 1, 4096);
  impl->observer = options.observer;
  impl->sequences.resize(std::max<uint32_t>(params.n_seq_max, 1));
  impl->layers.resize(shape.layers);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    Impl::Layer& layer = impl->layers[i];
    layer.host = impl.get();
    layer.index = i;
    layer.chunk = impl->chunk_of(cache.config().layer(i));
    impl->layer_index[shape.cache_layers[i]] = i;
  }
  impl->prepare_patches();
  if (options.self_test) {
    TIERKV_ASSIGN_OR_RETURN(impl->path, self_check(params, shape, options.allow_patch));
  } else {
    impl->path = options.allow_patch ? Path::patch : Path::overwrite;
  }

  // One stream of cells in the order of the batch, and as many cells as a micro-batch has rows.
  params.n_ctx = params.n_batch = params.n_ubatch = impl->micro_batch;
  params.kv_unified = true;
  params.swa_full = false;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.offload_kqv = params.op_offload = false;
  impl->next_eval = std::exchange(params.cb_eval, Impl::on_node);
  impl->next_eval_data = std::exchange(params.cb_eval_user_data, impl.get());
  impl->next_abort = std::exchange(params.abort_callback, Impl::on_abort);
  impl->next_abort_data = std::exchange(params.abort_callback_data, impl.get());
  return std::unique_ptr<Host>(new Host(std::move(impl)));
}

Status Host::decode(llama_context* context, const llama_batch& batch) {
  if (!impl_->attached) return error(StatusCode::failed_precondition, "the host is detached: call llama_decode() itself");
  const int64_t start = now_ns();
  auto length = [this](int32_t seq) -> Result<uint32_t> {
    TIERKV_ASSIGN_OR_RETURN(const SeqId id, sequence(seq));
    TIERKV_ASSIGN_OR_RETURN(const bool parked, impl_->cache.is_parked(id));
    if (parked)
      return error(StatusCode::failed_precondition, "sequence ", seq, " is parked: AdaptiveKVCache::wake(", id, ") comes first");
    return impl_->cache.length(id);
  };
  auto plan = MicroBatches::make(batch, llama_model_n_embd_inp(impl_->shape.model), impl_->micro_batch,
                                 static_cast<uint32_t>(impl_->sequences.size()), impl_->shape.context, length);
  if (!plan.ok()) return plan.status();
  impl_->own_ns += now_ns() - start;
  impl_->decode_ns += now_ns() - start;
  for (uint32_t i = 0; i < plan->micro_batches(); ++i) {
    if (Status status = impl_->decode_one(context, plan->batch(i), plan->rows(i)); !status.ok()) {
      impl_->roll_back(*plan);
      return status;
    }
  }
  return {};
}

Result<SeqId> Host::sequence(int32_t seq) {
  TIERKV_RETURN_IF_ERROR(impl_->check_seq(seq));
  Impl::Sequence& sequence = impl_->sequences[static_cast<size_t>(seq)];
  if (!sequence.live) {
    TIERKV_ASSIGN_OR_RETURN(sequence.id, impl_->cache.add_sequence());
    sequence.live = true;
  }
  return sequence.id;
}

Status Host::bind(int32_t seq, SeqId id) {
  TIERKV_RETURN_IF_ERROR(impl_->check_seq(seq));
  if (auto length = impl_->cache.length(id); !length.ok()) return length.status();
  Impl::Sequence& sequence = impl_->sequences[static_cast<size_t>(seq)];
  if (sequence.live && sequence.id == id) return {};
  if (sequence.live) TIERKV_RETURN_IF_ERROR(impl_->cache.remove(sequence.id));
  sequence = {id, true};
  return {};
}

Status Host::fork(int32_t from, int32_t to) {
  TIERKV_RETURN_IF_ERROR(impl_->check_seq(from));
  TIERKV_RETURN_IF_ERROR(impl_->check_seq(to));
  if (from == to) return {};
  TIERKV_ASSIGN_OR_RETURN(const SeqId source, sequence(from));
  TIERKV_ASSIGN_OR_RETURN(const SeqId copy, impl_->cache.fork(source));
  return bind(to, copy);
}

Status Host::truncate(int32_t seq, uint32_t length) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId id, sequence(seq));
  return impl_->cache.truncate(id, length);
}

Status Host::remove(int32_t seq) {
  TIERKV_RETURN_IF_ERROR(impl_->check_seq(seq));
  Impl::Sequence& sequence = impl_->sequences[static_cast<size_t>(seq)];
  if (!sequence.live) return {};
  sequence.live = false;
  return impl_->cache.remove(sequence.id);
}

void Host::detach() { impl_->attached = false; }
bool Host::attached() const { return impl_->attached; }
Path Host::path() const { return impl_->path; }
uint32_t Host::micro_batch() const { return impl_->micro_batch; }
size_t Host::micro_batch_bytes() const { return impl_->pages.resident_bytes(); }
AdaptiveKVCache& Host::cache() { return impl_->cache; }

HostTimes Host::times() const {
  HostTimes times;
  times.decode = 1e-9 * static_cast<double>(impl_->decode_ns);
  times.append = 1e-9 * static_cast<double>(impl_->append_ns);
  times.attention = 1e-9 * static_cast<double>(impl_->attention_ns);
  times.own = 1e-9 * static_cast<double>(impl_->own_ns);
  times.calls = impl_->calls;
  return times;
}

}  // namespace tierkv::llama
