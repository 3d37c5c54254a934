// Configuration text of any kind: the first byte picks TOML, JSON or the inline form, the rest is the text.
// What is accepted must survive to_json() -> apply_json() unchanged, must be accepted again on top of itself, and what is refused
// must leave the configuration alone and say why.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tierkv/config.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

tierkv::Status apply(uint8_t kind, std::string_view text, tierkv::CacheConfig& config) {
  switch (kind % 3) {
    case 0: return tierkv::apply_toml(text, config);
    case 1: return tierkv::apply_json(text, config);
    default: return tierkv::apply_inline(text, config);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  const tierkv::CacheConfig base;
  tierkv::CacheConfig config = base;
  const tierkv::Status status = apply(data[0], text, config);
  if (!status.ok()) {
    require(config == base);
    require(!status.message().empty());
    for (const char c : status.message()) require(static_cast<unsigned char>(c) >= 0x20);  // nothing that drives a terminal
    return 0;
  }
  tierkv::CacheConfig back = base;
  require(tierkv::apply_json(tierkv::to_json(config), back).ok());
  require(back == config);
  tierkv::CacheConfig again = config;
  require(apply(data[0], text, again).ok());
  (void)tierkv::validate(config);
  return 0;
}
