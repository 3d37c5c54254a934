// tiered_context.cc — a cache, the host that puts it behind libllama, and the context made with both.
#include "engine/tiered_context.h"

#include <algorithm>

#include "engine/engine.h"
#include "engine/error.h"

namespace tierkv::engine {

TieredContext::TieredContext(Engine& engine, const std::string& name, const CacheConfig& config, const SessionOptions& options)
    : name_(name),
      vocabulary_(engine.tokenizer().size()),
      cancel_(options.cancel != nullptr ? options.cancel : engine.cancellation()),
      threads_(engine.step_threads()),
      taken_(std::max(1u, options.slots), false) {
  const llama::ModelShape& shape = engine.shape();
  CacheConfig wanted = config;
  const bool open = wanted.calibrate.empty() && wanted.calibration.empty();
  if (open && options.learning != Learning::none) wanted.calibrate = "auto";
  const bool from_nothing = open && options.learning == Learning::from_nothing;
  cache_ = take(AdaptiveKVCache::create(wanted, from_nothing ? nullptr : engine.calibration(wanted)), "--kv " + name);
  llama_context_params params = engine.context_params(options.micro_batch, cancel_);
  params.n_seq_max = slots();
  // The self-test compares both paths with stock attention; once for each engine is enough.
  Engine::HostPath& known = engine.host_path_;
  llama::HostOptions host;
  host.micro_batch = options.micro_batch;
  host.chunk = options.chunk;
  host.keep_learned = !from_nothing;
  host.self_test = !known.tested;
  host.allow_patch = options.allow_patch && (!known.tested || known.patch_works);
  host_ = take(llama::Host::attach(params, shape, *cache_, host), engine.path());
  if (!known.tested && options.allow_patch) known = {true, host_->path() == llama::Path::patch};
  context_.reset(llama_init_from_model(engine.model(), params));
  if (!context_) fail("libllama could not make a context");
  limit_ = engine.check_context(options.ctx);
}

TieredContext::~TieredContext() { context_.reset(); }  // before the host it calls

std::unique_ptr<TieredSession> TieredContext::open_session() { return std::make_unique<TieredSession>(shared_from_this()); }

int32_t TieredContext::take_slot() {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) {
    throw Error(ErrorKind::no_room, "all " + std::to_string(taken_.size()) + " sequences of the context are in use");
  }
  *free = true;
  return static_cast<int32_t>(free - taken_.begin());
}

// --- a sequence on it

TieredSession::TieredSession(std::shared_ptr<TieredContext> context)
    : Session(context->name(), context->take_slot(), context->cancel_, context->threads_), context_(std::move(context)) {
  limits_ = {context_->limit_, context_->host_->micro_batch(), context_->vocabulary_};
}

TieredSession::~TieredSession() {
  (void)context_->host_->remove(slot_).ok();  // a sequence that was never fed is not there
  context_->taken_[static_cast<size_t>(slot_)] = false;
}

void TieredSession::truncate(uint32_t length) {
  if (length >= length_) return;
  check(length == 0 ? context_->host_->remove(slot_) : context_->host_->truncate(slot_, length));
  length_ = length;
}

uint64_t TieredSession::kv_bytes() const { return context_->cache_->memory_usage().resident_bytes(); }
uint64_t TieredSession::micro_batch_bytes() const { return context_->host_->micro_batch_bytes(); }
MemoryStats TieredSession::memory() const { return context_->cache_->memory_usage(); }
AdaptiveKVCache* TieredSession::cache() { return context_->cache_.get(); }
llama::Host* TieredSession::host() { return context_->host_.get(); }
SeqId TieredSession::sequence() { return take(context_->host_->sequence(slot_)); }
llama_context* TieredSession::context() const { return context_->get(); }

void TieredSession::bind(SeqId id) {
  check(context_->host_->bind(slot_, id));
  length_ = take(context_->cache_->length(id));
}

void TieredSession::decode(const llama_batch& batch) {
  const Status status = context_->host_->decode(context_->get(), batch);
  if (!status.ok() && cancelled()) throw Cancelled();
  check(status);
}

}  // namespace tierkv::engine
