// config.cc — tierkv/c.h: errors, names, memory and configuration.
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "policy/policy.h"
#include "quant/registry.h"

using tierkv::CacheConfig;
using tierkv::Status;
using tierkv::StatusCode;
using tierkv::capi::guarded;

namespace tierkv::capi {

void* copy_out(const void* data, size_t size, size_t extra) noexcept {
  void* copy = std::calloc(size + extra ? size + extra : 1, 1);
  if (copy && size) std::memcpy(copy, data, size);
  return copy;
}

namespace {

// Names live as long as the program; made once.
const std::vector<std::string>& presets() {
  static const std::vector<std::string> names = preset_names();
  return names;
}

template <class Apply>
int apply_text(tierkv_config* config, const char* text, Apply&& apply) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    TIERKV_NOT_NULL(text);
    CacheConfig next = config->value;  // whatever happens on the way, the caller's is as it was
    TIERKV_RETURN_IF_ERROR(apply(text, next));
    config->value = std::move(next);
    return {};
  });
}

}  // namespace
}  // namespace tierkv::capi

extern "C" {

const char* tierkv_status_name(tierkv_status status) {
  if (status < TIERKV_OK || status > TIERKV_INTERNAL) return "unknown";
  return tierkv::status_code_name(static_cast<StatusCode>(status));
}

const char* tierkv_last_error(void) { return tierkv::capi::last_error(); }
const char* tierkv_version(void) { return TIERKV_VERSION; }
void tierkv_free(void* p) { std::free(p); }

const char* tierkv_codec_name(size_t index) {
  const auto rows = tierkv::quant::codec_rows();
  return index < rows.size() ? rows[index].name : nullptr;
}

const char* tierkv_codec_summary(size_t index) {
  const auto rows = tierkv::quant::codec_rows();
  return index < rows.size() ? rows[index].summary : nullptr;
}

const char* tierkv_policy_name(size_t index) {
  const auto rows = tierkv::policy::policy_rows();
  return index < rows.size() ? rows[index].name : nullptr;
}

const char* tierkv_policy_summary(size_t index) {
  const auto rows = tierkv::policy::policy_rows();
  return index < rows.size() ? rows[index].summary : nullptr;
}

const char* tierkv_preset_name(size_t index) {
  try {
    const auto& names = tierkv::capi::presets();
    return index < names.size() ? names[index].c_str() : nullptr;
  } catch (...) {
    return nullptr;  // no memory for the list; the next call tries again
  }
}

tierkv_status tierkv_config_create(tierkv_config** out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(out);
    *out = new tierkv_config;
    return {};
  });
}

void tierkv_config_destroy(tierkv_config* config) { delete config; }

tierkv_status tierkv_config_set_model(tierkv_config* config, const char* name, uint32_t num_layers, uint32_t num_heads,
                                      uint32_t num_kv_heads, uint32_t head_dim) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    TIERKV_NOT_NULL(name);
    config->value.model = name;
    config->value.num_layers = num_layers;
    config->value.num_heads = num_heads;
    config->value.num_kv_heads = num_kv_heads;
    config->value.head_dim = head_dim;
    return {};
  });
}

tierkv_status tierkv_config_set_max_seq_len(tierkv_config* config, uint32_t tokens) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    config->value.max_seq_len = tokens;
    return {};
  });
}

tierkv_status tierkv_config_set_byte_budget(tierkv_config* config, uint64_t bytes) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    config->value.byte_budget = bytes;
    return {};
  });
}

tierkv_status tierkv_config_set_threads(tierkv_config* config, uint32_t threads) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    config->value.threads = threads;
    return {};
  });
}

tierkv_status tierkv_config_apply_preset(tierkv_config* config, const char* name) {
  return tierkv::capi::apply_text(config, name, [](const char* t, CacheConfig& c) { return tierkv::apply_preset(t, c); });
}

tierkv_status tierkv_config_apply_inline(tierkv_config* config, const char* text) {
  return tierkv::capi::apply_text(config, text, [](const char* t, CacheConfig& c) { return tierkv::apply_inline(t, c); });
}

tierkv_status tierkv_config_apply_toml(tierkv_config* config, const char* text) {
  return tierkv::capi::apply_text(config, text, [](const char* t, CacheConfig& c) { return tierkv::apply_toml(t, c); });
}

tierkv_status tierkv_config_apply_json(tierkv_config* config, const char* text) {
  return tierkv::capi::apply_text(config, text, [](const char* t, CacheConfig& c) { return tierkv::apply_json(t, c); });
}

tierkv_status tierkv_config_apply_file(tierkv_config* config, const char* path) {
  return tierkv::capi::apply_text(config, path, [](const char* t, CacheConfig& c) { return tierkv::apply_file(t, c); });
}

tierkv_status tierkv_config_apply_spec(tierkv_config* config, const char* spec) {
  return tierkv::capi::apply_text(config, spec, [](const char* t, CacheConfig& c) { return tierkv::apply_spec(t, c); });
}

tierkv_status tierkv_config_to_json(const tierkv_config* config, char** out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    TIERKV_NOT_NULL(out);
    const std::string json = tierkv::to_json(config->value);
    void* copy = tierkv::capi::copy_out(json.data(), json.size(), 1);
    if (!copy) throw std::bad_alloc();
    *out = static_cast<char*>(copy);
    return {};
  });
}

tierkv_status tierkv_config_validate(const tierkv_config* config) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(config);
    return tierkv::validate(config->value);
  });
}

}  // extern "C"
