// host.cc — Host: attaching to a context's params, and decode() over micro-batches.
#include <ggml.h>
#include <llama.h>

#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "calib/rope_fit.h"
#include "llama/graph_hook.h"
#include "llama/kept_logits.h"
#include "llama/layer_server.h"
#include "llama/micro_batches.h"
#include "llama/self_check.h"
#include "llama/slots.h"
#include "tierkv/llama.h"

namespace tierkv::llama {

struct Host::Impl {
  Impl(const ModelShape& s, AdaptiveKVCache& c, const HostOptions& options, uint32_t sequences)
      : shape(s),
        cache(c),
        server(s, c, options.observer, options.chunk),
        hook(s, server),
        slots(c, sequences),
        logits(static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(s.model)))) {
    limits.embedding = llama_model_n_embd_inp(s.model);
    limits.context = s.context;
    limits.together = sequences;
  }

  const ModelShape shape;
  AdaptiveKVCache& cache;
  LayerServer server;
  GraphHook hook;
  Slots slots;
  KeptLogits logits;
  BatchLimits limits;
  std::unique_ptr<ResidualTap> tap;  // while the cache learns the model
  MicroBatches* decoding = nullptr;  // the batch that is being decoded
  int64_t decode_ns = 0, own_ns = 0;
  uint64_t calls = 0;

  Status decode(llama_context* context, const llama_batch& batch, std::vector<SequenceStatus>* sequences);
  Status decode_next(llama_context* context, MicroBatches& plan, bool all_or_nothing);
  Status decode_all(llama_context* context, MicroBatches& plan, std::vector<SequenceStatus>* sequences);
  void note_removed(MicroBatches& plan);
  void give_up(MicroBatches& plan, const Status& reason, bool all) noexcept;
  Status check_idle(int32_t seq) const;

  // While it lives a batch is being decoded.
  class Decoding {
   public:
    Decoding(Impl& impl, MicroBatches& plan) : impl_(impl) { impl_.decoding = &plan; }
    ~Decoding() { impl_.decoding = nullptr; }
    Decoding(const Decoding&) = delete;
    Decoding& operator=(const Decoding&) = delete;

   private:
    Impl& impl_;
  };
};

namespace {

Status check_cache(const CacheConfig& config, const ModelShape& shape) {
  if (config.num_layers != shape.layers || config.query_heads() != shape.heads || config.num_kv_heads != shape.kv_heads ||
      config.head_dim != shape.head_dim) {
    return error(StatusCode::invalid_argument, "the cache is for ", config.num_layers, " layers of ", config.query_heads(), " and ",
                 config.num_kv_heads, " heads of ", config.head_dim, ", but the model has ", shape.layers, " layers of ",
                 shape.heads, " and ", shape.kv_heads, " heads of ", shape.head_dim);
  }
  for (uint32_t i = 0; i < shape.layers; ++i) {
    if (config.layer(i).window == shape.window[i]) continue;
    return error(StatusCode::invalid_argument, "layer ", i, " of the cache has a window of ", config.layer(i).window,
                 " tokens, but the model's is ", shape.window[i], " (0: full attention)");
  }
  return {};
}

// Whether the cache learns the model from here on. That it cannot learn is no reason not to run.
Result<bool> learn(const ModelShape& shape, AdaptiveKVCache& cache, const HostOptions& options) {
  const CacheConfig& config = cache.config();
  if (config.calibrate != "auto" || cache.calibration() || !wants_calibration(config)) return false;
  TIERKV_ASSIGN_OR_RETURN(LearningModel model, learning_model(shape));
  LearningOptions learning;
  if (options.keep_learned) learning.path = calibration_path(shape);
  const Status status = cache.learn(std::move(model), std::move(learning));
  if (status.code() == StatusCode::resource_exhausted) return status;
  return status.ok();
}

// Settings that say the same in other words are the same. Where they differ, the model shows whether its keys do.
Status check_rope(const llama_context_params& params, const ModelShape& shape) {
  const RopeSettings here = RopeSettings::of(params);
  if (here == shape.rope) return {};
  TIERKV_ASSIGN_OR_RETURN(const ModelShape now, inspect(shape.model, here));
  if (calib::compare(shape.ropes, now.ropes) == calib::RopeFit::same) return {};
  const auto words = [](const RopeSettings& rope) { return rope == RopeSettings() ? "the model's own RoPE" : rope.text(); };
  return error(StatusCode::invalid_argument, "the context's params have another RoPE (", words(here),
               ") than the model was looked at with (", words(shape.rope),
               "): ", calib::describe_difference(shape.ropes, now.ropes), "; give inspect() the params that the context gets");
}

// A copy that needs no memory when there is none.
Status copy_of(const Status& status) noexcept {
  try {
    return status;
  } catch (const std::bad_alloc&) {
    return Status(status.code(), "out of memory");
  }
}

}  // namespace

// A pressure handler may call back while a batch is being decoded. What it may do to sequences of that batch is to take them away
// whole: any other change would put their rows at wrong positions.
Status Host::Impl::check_idle(int32_t seq) const {
  if (decoding == nullptr) return {};
  for (const Part& part : decoding->parts()) {
    if (part.seq != seq) continue;
    return error(StatusCode::failed_precondition, "sequence ", seq,
                 " is being decoded: meanwhile it can be removed or parked, not changed");
  }
  return {};
}

// Sequences that have rows left fail for a reason that is none of theirs, or, with `all`, every one does.
void Host::Impl::give_up(MicroBatches& plan, const Status& reason, bool all) noexcept {
  for (Part& part : plan.parts()) {
    if (part.status.ok() && (all || part.left > 0)) part.status = copy_of(reason);
  }
}

// Those that somebody took away since the batch began have nothing to go on from: a slot that is asked would begin a new one.
void Host::Impl::note_removed(MicroBatches& plan) {
  for (Part& part : plan.parts()) {
    if (!part.status.ok() || part.left == 0 || slots.find(part.seq).ok()) continue;
    part.status = error(StatusCode::not_found, "sequence ", part.seq, " was removed while it was being decoded");
  }
}

// One micro-batch. A sequence that fails has its status in the plan; what is no sequence's is returned.
Status Host::Impl::decode_next(llama_context* context, MicroBatches& plan, bool all_or_nothing) {
  const int64_t start = now_ns();
  std::vector<Work> work;
  for (const SequenceRows& rows : plan.rows()) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId id, slots.sequence(rows.seq));
    work.push_back({id, &rows, {}});
  }
  const llama_batch batch = plan.batch();
  logits.keep();
  server.begin(std::move(work), static_cast<uint32_t>(batch.n_tokens), all_or_nothing);
  if (tap) tap->begin(batch.n_tokens);
  const llama_memory_t memory = llama_get_memory(context);
  llama_memory_clear(memory, false);
  const int64_t called = now_ns();
  const int32_t result = llama_decode(context, batch);
  const int64_t returned = now_ns();
  llama_memory_clear(memory, false);
  server.end();
  ++calls;
  decode_ns += now_ns() - start;
  own_ns += (now_ns() - returned) + (called - start);

  bool any = false;
  for (Work& item : server.work()) {
    any |= item.status.ok();
    if (!item.status.ok()) plan.part(item.rows->seq).status = std::move(item.status);
  }
  TIERKV_RETURN_IF_ERROR(server.status());
  if (!any || server.failed()) return {};  // stopped for what the sequences say
  if (result == 2) return error(StatusCode::failed_precondition, "decoding was aborted");
  if (result != 0) return error(StatusCode::internal, "llama_decode() failed with ", result);
  if (server.layers_served() != shape.layers) {
    return error(StatusCode::failed_precondition, "the context asked for ", server.layers_served(), " of the model's ",
                 shape.layers, " layers: was it made from the params that were attached?");
  }
  if (tap && tap->report(cache)) {
    hook.set_tap(nullptr);
    tap.reset();
  }
  logits.computed(context, plan.indices(), plan.wanted());
  plan.done();
  return {};
}

Status Host::Impl::decode(llama_context* context, const llama_batch& batch, std::vector<SequenceStatus>* sequences) {
  if (context == nullptr) return error(StatusCode::invalid_argument, "there is no context");
  if (decoding != nullptr) return error(StatusCode::failed_precondition, "a batch is being decoded");
  if (!hook.attached()) return error(StatusCode::failed_precondition, "the host is detached: call llama_decode() itself");
  const bool all_or_nothing = sequences == nullptr;
  const int64_t start = now_ns();
  limits.sequences = slots.size();
  auto plan = MicroBatches::make(batch, limits, [this](int32_t seq) { return slots.length(seq); });
  if (!plan.ok()) return plan.status();
  if (all_or_nothing) {
    for (const Part& part : plan->parts()) TIERKV_RETURN_IF_ERROR(part.status);
  }
  logits.begin(plan->size(), plan->last_wanted());
  own_ns += now_ns() - start;
  decode_ns += now_ns() - start;
  return decode_all(context, *plan, sequences);
}

// What needs memory comes before the first token, or inside guarded(): a sequence that fails must go back.
Status Host::Impl::decode_all(llama_context* context, MicroBatches& plan, std::vector<SequenceStatus>* sequences) {
  const bool all_or_nothing = sequences == nullptr;
  if (sequences != nullptr) sequences->reserve(plan.parts().size());
  // Those that never began have nothing to go back from.
  std::vector<bool> settled;
  for (const Part& part : plan.parts()) settled.push_back(!part.status.ok());
  const Decoding mark(*this, plan);
  for (bool more = true; more;) {
    const Status whole = guarded("decode", [&]() -> Status {
      note_removed(plan);
      more = plan.next();
      return more ? decode_next(context, plan, all_or_nothing) : Status();
    });
    if (!whole.ok()) give_up(plan, whole, all_or_nothing);
    const auto first = std::find_if(plan.parts().begin(), plan.parts().end(), [](const Part& p) { return !p.status.ok(); });
    const bool nothing = all_or_nothing && first != plan.parts().end();
    if (nothing) give_up(plan, copy_of(first->status), true);  // the first that failed speaks for all
    // At once, so that the others find the room.
    for (size_t i = 0; i < plan.parts().size(); ++i) {
      const Part& part = plan.parts()[i];
      if (part.status.ok() || settled[i]) continue;
      slots.roll_back(part.seq, part.start);
      settled[i] = true;
    }
    if (!whole.ok() || nothing) break;
  }

  Status first;
  for (uint32_t i = 0; i < plan.size(); ++i) {
    if (!plan.part_of_row(i).status.ok()) logits.forget(i);
  }
  for (Part& part : plan.parts()) {
    if (first.ok()) first = copy_of(part.status);
    if (sequences != nullptr) sequences->push_back({part.seq, std::move(part.status)});
  }
  return first;
}

Host::Host(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Host::~Host() = default;

Result<std::unique_ptr<Host>> Host::attach(llama_context_params& params, const ModelShape& shape, AdaptiveKVCache& cache,
                                           const HostOptions& options) try {
  if (shape.model == nullptr) return error(StatusCode::invalid_argument, "there is no model: inspect() tells its shape");
  TIERKV_RETURN_IF_ERROR(check_cache(cache.config(), shape));
  TIERKV_RETURN_IF_ERROR(check_rope(params, shape));
  if (const CalibrationPtr calibration = cache.calibration()) {
    TIERKV_RETURN_IF_ERROR(check_fit(*calibration, shape.identity()));
  }
  if (params.embeddings || params.pooling_type > 0) {
    return error(StatusCode::invalid_argument, "the cache serves text generation, not contexts for embeddings");
  }
  const uint32_t asked = options.micro_batch != 0 ? options.micro_batch : params.n_ubatch;
  auto impl = std::make_unique<Impl>(shape, cache, options, std::max<uint32_t>(params.n_seq_max, 1));
  impl->limits.micro_batch = std::clamp<uint32_t>(asked, 1, 4096);
  Path path = options.allow_patch ? Path::patch : Path::overwrite;
  if (options.self_test) {
    TIERKV_ASSIGN_OR_RETURN(path, self_check(params, shape, options.allow_patch));
  }

  Impl& of = *impl;
  auto tap = std::make_unique<ResidualTap>(shape);
  std::unique_ptr<Host> host(new Host(std::move(impl)));
  TIERKV_ASSIGN_OR_RETURN(const bool learns, learn(shape, cache, options));
  // From here on nothing can fail: `params` change all or not at all.
  // One stream of cells in the order of the batch, and as many cells as a micro-batch has rows.
  params.n_ctx = params.n_batch = params.n_ubatch = of.limits.micro_batch;
  params.kv_unified = true;
  params.swa_full = false;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.offload_kqv = params.op_offload = false;
  if (learns) {
    of.tap = std::move(tap);
    of.hook.set_tap(of.tap.get());
  }
  of.hook.install(params, path);
  return host;
}
TIERKV_NO_MEMORY("attach a cache")

Status Host::decode(llama_context* context, const llama_batch& batch) {
  return guarded("decode", [&] { return impl_->decode(context, batch, nullptr); });
}

Status Host::decode(llama_context* context, const llama_batch& batch, std::vector<SequenceStatus>& sequences) {
  sequences.clear();
  return guarded("decode", [&] { return impl_->decode(context, batch, &sequences); });
}

Result<std::span<const float>> Host::logits(int32_t index) const {
  return guarded("say why there are no logits", [&] { return impl_->logits.get(index); });
}

Result<int32_t> Host::add_slot() {
  return guarded("add a slot", [&]() -> Result<int32_t> { return impl_->slots.add(); });
}

uint32_t Host::slots() const { return impl_->slots.size(); }

Result<SeqId> Host::sequence(int32_t seq) {
  return guarded("find a sequence", [&]() -> Result<SeqId> {
    if (impl_->decoding != nullptr) return impl_->slots.find(seq);
    TIERKV_RETURN_IF_ERROR(impl_->slots.settle(seq));
    return impl_->slots.sequence(seq);
  });
}

Status Host::bind(int32_t seq, SeqId id) {
  return guarded("bind a sequence", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl_->check_idle(seq));
    return impl_->slots.bind(seq, id);
  });
}

Status Host::fork(int32_t from, int32_t to) {
  return guarded("copy a sequence", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl_->check_idle(from));
    TIERKV_RETURN_IF_ERROR(impl_->check_idle(to));
    return impl_->slots.fork(from, to);
  });
}

Status Host::truncate(int32_t seq, uint32_t length) {
  return guarded("shorten a sequence", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl_->check_idle(seq));
    return impl_->slots.truncate(seq, length);
  });
}

Status Host::remove(int32_t seq) {
  return guarded("remove a sequence", [&] { return impl_->slots.remove(seq); });
}

Status Host::park(int32_t seq, const DeepOptions& options, DeepReport* report) {
  return guarded("park a sequence", [&] { return impl_->slots.park(seq, options, report); });
}

Status Host::wake(int32_t seq) {
  return guarded("wake a sequence", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl_->check_idle(seq));
    return impl_->slots.wake(seq);
  });
}

int32_t Host::number_of(SeqId id) const { return impl_->slots.number_of(id); }

void Host::detach() { impl_->hook.detach(); }
bool Host::attached() const { return impl_->hook.attached(); }
Path Host::path() const { return impl_->hook.path(); }
uint32_t Host::micro_batch() const { return impl_->limits.micro_batch; }
size_t Host::micro_batch_bytes() const { return impl_->server.resident_bytes(); }
AdaptiveKVCache& Host::cache() { return impl_->cache; }

HostTimes Host::times() const {
  HostTimes times;
  times.decode = 1e-9 * static_cast<double>(impl_->decode_ns);
  times.append = 1e-9 * static_cast<double>(impl_->server.append_ns());
  times.attention = 1e-9 * static_cast<double>(impl_->server.attention_ns());
  times.own = 1e-9 * static_cast<double>(impl_->own_ns + impl_->server.own_ns());
  times.calls = impl_->calls;
  return times;
}

}  // namespace tierkv::llama
