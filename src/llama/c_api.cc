// c_api.cc — tierkv_llama_*: the host for C programs. Nothing thrown leaves a function.
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>

#include "base/status_macros.h"
#include "tierkv/llama.h"

// Members are destroyed from the last to the first: the host before the cache it uses.
struct tierkv_llama {
  std::unique_ptr<tierkv::AdaptiveKVCache> cache;
  std::unique_ptr<tierkv::llama::Host> host;
  std::vector<tierkv::llama::SequenceStatus> sequences;  // of the last tierkv_llama_decode_each()
  llama_context* context = nullptr;                      // of the last decode
  std::string error;
  std::string origin;           // of the calibration, or why one is not used
  std::recursive_mutex asking;  // held while the pressure handler runs: the cache may ask from several threads, and from inside it
};

namespace {

using tierkv::Result;
using tierkv::Status;
using tierkv::StatusCode;

Result<std::unique_ptr<tierkv_llama>> attach(llama_context_params& params, llama_model* model, const char* kv) {
  auto handle = std::make_unique<tierkv_llama>();
  TIERKV_ASSIGN_OR_RETURN(const tierkv::llama::ModelShape shape, tierkv::llama::inspect(model, params));
  tierkv::CacheConfig config;
  TIERKV_RETURN_IF_ERROR(tierkv::apply_spec(kv != nullptr ? kv : "balanced", config));
  shape.apply(config);
  if (config.calibrate.empty() && config.calibration.empty()) config.calibrate = "auto";
  TIERKV_ASSIGN_OR_RETURN(tierkv::CalibrationPtr calibration, tierkv::llama::find_calibration(shape, config, &handle->origin));
  if (calibration) {
    const auto shipped = tierkv::llama::shipped_calibration(shape);
    const bool is_shipped = shipped.ok() && *shipped == calibration;
    const std::string& file = config.calibration_file();
    if (handle->origin.empty()) {
      handle->origin = is_shipped ? "it ships with tierkv" : file.empty() ? tierkv::llama::calibration_path(shape) : file;
    }
  }
  TIERKV_ASSIGN_OR_RETURN(handle->cache, tierkv::AdaptiveKVCache::create(config, std::move(calibration)));
  TIERKV_ASSIGN_OR_RETURN(handle->host, tierkv::llama::Host::attach(params, shape, *handle->cache));
  return handle;
}

int32_t number_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok: return 0;
    case StatusCode::resource_exhausted:
    case StatusCode::out_of_range: return 1;
    case StatusCode::failed_precondition: return 2;
    default: return -1;
  }
}

// Short enough to need no memory.
constexpr const char* kNoMemory = "out of memory";

// Never throws: without memory for the sentence there is a shorter one.
void remember(tierkv_llama* kv, const char* sentence) noexcept {
  try {
    kv->error = sentence;
  } catch (const std::exception&) {
    kv->error = kNoMemory;
  }
}

template <class Call>
int32_t guarded(tierkv_llama* kv, const Call& call) noexcept {
  if (kv == nullptr) return -1;
  try {
    const Status status = call();
    if (!status.ok()) remember(kv, status.message().c_str());
    return number_of(status);
  } catch (const std::bad_alloc&) {
    remember(kv, kNoMemory);
    return 1;
  } catch (const std::exception& problem) {
    remember(kv, problem.what());
    return -1;
  }
}

int ask(tierkv_llama* kv, tierkv_llama_pressure_handler handler, void* user, const tierkv::MemoryPressure& pressure) {
  const std::lock_guard lock(kv->asking);
  tierkv_llama_pressure out{};
  out.size = sizeof out;
  out.seq = kv->host->number_of(pressure.seq);
  out.attempt = pressure.attempt;
  out.needed_bytes = pressure.needed_bytes;
  out.used_bytes = pressure.used_bytes;
  out.budget_bytes = pressure.budget_bytes;
  return handler(user, &out);
}

Status no(const char* what) { return tierkv::error(StatusCode::invalid_argument, "there is no ", what); }

const Status* find_status(const tierkv_llama* kv, int32_t seq) {
  if (kv == nullptr) return nullptr;
  for (const auto& of : kv->sequences) {
    if (of.seq == seq) return &of.status;
  }
  return nullptr;
}

}  // namespace

tierkv_llama* tierkv_llama_attach(llama_context_params* params, llama_model* model, const char* kv, char* error,
                                  size_t error_size) {
  const auto say = [&](const char* reason) {
    if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", reason);
  };
  try {
    if (params == nullptr) {
      say("there are no params");
      return nullptr;
    }
    auto handle = attach(*params, model, kv);
    if (handle.ok()) return handle.value().release();
    say(handle.status().message().c_str());
  } catch (const std::bad_alloc&) {
    say(kNoMemory);
  } catch (const std::exception& problem) {
    say(problem.what());
  }
  return nullptr;
}

int32_t tierkv_llama_decode(tierkv_llama* kv, llama_context* ctx, llama_batch batch) {
  return guarded(kv, [&] {
    kv->context = ctx;
    return kv->host->decode(ctx, batch);
  });
}

int32_t tierkv_llama_decode_each(tierkv_llama* kv, llama_context* ctx, llama_batch batch) {
  return guarded(kv, [&] {
    kv->context = ctx;
    return kv->host->decode(ctx, batch, kv->sequences);
  });
}

int32_t tierkv_llama_seq_status(const tierkv_llama* kv, int32_t seq) {
  const Status* status = find_status(kv, seq);
  return status != nullptr ? number_of(*status) : 0;
}

const char* tierkv_llama_seq_error(const tierkv_llama* kv, int32_t seq) {
  const Status* status = find_status(kv, seq);
  return status != nullptr ? status->message().c_str() : "";
}

const float* tierkv_llama_logits(tierkv_llama* kv, llama_context* ctx, int32_t i) {
  const float* logits = nullptr;
  (void)guarded(kv, [&]() -> Status {
    if (ctx == nullptr) return no("context");
    if (ctx != kv->context) return tierkv::error(StatusCode::failed_precondition, "the last decode was of another context");
    TIERKV_ASSIGN_OR_RETURN(const std::span<const float> row, kv->host->logits(i));
    logits = row.data();
    return {};
  });
  return logits;
}

int32_t tierkv_llama_add_seq(tierkv_llama* kv) {
  int32_t number = -1;
  (void)guarded(kv, [&]() -> Status {
    TIERKV_ASSIGN_OR_RETURN(number, kv->host->add_slot());
    return {};
  });
  return number;
}

int32_t tierkv_llama_seq_rm(tierkv_llama* kv, int32_t seq, int32_t from) {
  return guarded(kv, [&] { return from <= 0 ? kv->host->remove(seq) : kv->host->truncate(seq, static_cast<uint32_t>(from)); });
}

int32_t tierkv_llama_seq_cp(tierkv_llama* kv, int32_t from, int32_t to) {
  return guarded(kv, [&] { return kv->host->fork(from, to); });
}

int32_t tierkv_llama_seq_park(tierkv_llama* kv, int32_t seq) {
  return guarded(kv, [&] { return kv->host->park(seq); });
}

int32_t tierkv_llama_seq_wake(tierkv_llama* kv, int32_t seq) {
  return guarded(kv, [&] { return kv->host->wake(seq); });
}

int32_t tierkv_llama_set_pressure_handler(tierkv_llama* kv, tierkv_llama_pressure_handler handler, void* user) {
  return guarded(kv, [&]() -> Status {
    if (handler == nullptr) return kv->cache->set_pressure_handler(nullptr);
    return kv->cache->set_pressure_handler(
        [kv, handler, user](const tierkv::MemoryPressure& pressure) { return ask(kv, handler, user, pressure) != 0; });
  });
}

int32_t tierkv_llama_save(tierkv_llama* kv, int32_t seq, const char* path) {
  return guarded(kv, [&]() -> Status {
    if (path == nullptr) return no("path");
    TIERKV_ASSIGN_OR_RETURN(const tierkv::SeqId id, kv->host->sequence(seq));
    return kv->cache->save(id, path);
  });
}

int32_t tierkv_llama_load(tierkv_llama* kv, int32_t seq, const char* path) {
  return guarded(kv, [&]() -> Status {
    if (path == nullptr) return no("path");
    TIERKV_ASSIGN_OR_RETURN(const tierkv::SeqId id, kv->cache->load(path));
    Status bound = kv->host->bind(seq, id);
    if (!bound.ok()) (void)kv->cache->remove(id).ok();
    return bound;
  });
}

uint64_t tierkv_llama_bytes(const tierkv_llama* kv) {
  return kv != nullptr ? kv->cache->memory_usage().resident_bytes() + kv->host->micro_batch_bytes() : 0;
}

size_t tierkv_llama_describe(const tierkv_llama* kv, char* buffer, size_t size) {
  if (buffer == nullptr) size = 0;
  if (size > 0) buffer[0] = 0;
  if (kv == nullptr) return 0;
  try {
    std::string text = kv->cache->learning().sentence;
    if (!kv->origin.empty()) text += " (" + kv->origin + ")";
    if (size > 0) std::snprintf(buffer, size, "%s", text.c_str());
    return text.size();
  } catch (const std::exception&) {
    return 0;
  }
}

const char* tierkv_llama_error(const tierkv_llama* kv) { return kv != nullptr ? kv->error.c_str() : "there is no handle"; }

void tierkv_llama_detach(tierkv_llama* kv) {
  if (kv != nullptr) kv->host->detach();
}

void tierkv_llama_free(tierkv_llama* kv) { delete kv; }
