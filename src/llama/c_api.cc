// c_api.cc — tierkv_llama_*: the host for C programs. Nothing thrown leaves a function.
#include <llama.h>

#include <cstdio>
#include <exception>

#include "base/status_macros.h"
#include "tierkv/llama.h"

// Members are destroyed from the last to the first: the host before the cache it uses.
struct tierkv_llama {
  std::unique_ptr<tierkv::AdaptiveKVCache> cache;
  std::unique_ptr<tierkv::llama::Host> host;
  std::string error;
};

namespace {

using tierkv::Result;
using tierkv::Status;
using tierkv::StatusCode;

Result<std::unique_ptr<tierkv_llama>> attach(llama_context_params& params, llama_model* model, const char* kv) {
  auto handle = std::make_unique<tierkv_llama>();
  TIERKV_ASSIGN_OR_RETURN(const tierkv::llama::ModelShape shape, tierkv::llama::inspect(model));
  tierkv::CacheConfig config;
  TIERKV_RETURN_IF_ERROR(tierkv::apply_spec(kv != nullptr ? kv : "balanced", config));
  shape.apply(config);
  TIERKV_ASSIGN_OR_RETURN(tierkv::CalibrationPtr calibration, tierkv::llama::find_calibration(shape, config));
  TIERKV_ASSIGN_OR_RETURN(handle->cache, tierkv::AdaptiveKVCache::create(config, std::move(calibration)));
  TIERKV_ASSIGN_OR_RETURN(handle->host, tierkv::llama::Host::attach(params, shape, *handle->cache));
  return handle;
}

template <class Call>
int32_t guarded(tierkv_llama* kv, const Call& call) {
  if (kv == nullptr) return -1;
  Status status;
  try {
    status = call();
  } catch (const std::exception& problem) {
    status = Status(StatusCode::internal, problem.what());
  }
  if (status.ok()) return 0;
  kv->error = status.message();
  if (status.code() == StatusCode::resource_exhausted || status.code() == StatusCode::out_of_range) return 1;
  if (status.code() == StatusCode::failed_precondition) return 2;
  return -1;
}

}  // namespace

tierkv_llama* tierkv_llama_attach(llama_context_params* params, llama_model* model, const char* kv, char* error,
                                  size_t error_size) {
  std::string reason = "there are no params";
  try {
    if (params != nullptr) {
      auto handle = attach(*params, model, kv);
      if (handle.ok()) return handle.value().release();
      reason = handle.status().message();
    }
  } catch (const std::exception& problem) {
    reason = problem.what();
  }
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", reason.c_str());
  return nullptr;
}

int32_t tierkv_llama_decode(tierkv_llama* kv, llama_context* ctx, llama_batch batch) {
  return guarded(kv, [&] { return kv->host->decode(ctx, batch); });
}

int32_t tierkv_llama_seq_rm(tierkv_llama* kv, int32_t seq, int32_t from) {
  return guarded(kv, [&] { return from <= 0 ? kv->host->remove(seq) : kv->host->truncate(seq, static_cast<uint32_t>(from)); });
}

int32_t tierkv_llama_seq_cp(tierkv_llama* kv, int32_t from, int32_t to) {
  return guarded(kv, [&] { return kv->host->fork(from, to); });
}

int32_t tierkv_llama_save(tierkv_llama* kv, int32_t seq, const char* path) {
  return guarded(kv, [&]() -> Status {
    TIERKV_ASSIGN_OR_RETURN(const tierkv::SeqId id, kv->host->sequence(seq));
    return kv->cache->save(id, path);
  });
}

int32_t tierkv_llama_load(tierkv_llama* kv, int32_t seq, const char* path) {
  return guarded(kv, [&]() -> Status {
    TIERKV_ASSIGN_OR_RETURN(const tierkv::SeqId id, kv->cache->load(path));
    Status bound = kv->host->bind(seq, id);
    if (!bound.ok()) (void)kv->cache->remove(id).ok();
    return bound;
  });
}

uint64_t tierkv_llama_bytes(const tierkv_llama* kv) {
  return kv != nullptr ? kv->cache->memory_usage().resident_bytes() + kv->host->micro_batch_bytes() : 0;
}

const char* tierkv_llama_error(const tierkv_llama* kv) { return kv != nullptr ? kv->error.c_str() : "there is no handle"; }

void tierkv_llama_detach(tierkv_llama* kv) {
  if (kv != nullptr) kv->host->detach();
}

void tierkv_llama_free(tierkv_llama* kv) { delete kv; }
