// What strangers send to `tierkv serve`, where no model is needed: JSON with its fields, grammars, stop strings, headers.
// Nothing may crash; what is refused must say why in text that can be sent; what is shown of a text with stop strings must be a
// beginning of it that holds none of them.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/error.h"
#include "engine/grammar_check.h"
#include "engine/stop_strings.h"
#include "engine/utf8.h"
#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/json_input.h"

namespace {

using namespace tierkv;

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_json(const std::string& text) {
  try {
    const nlohmann::json body = serve::parse_object(text);
    require(body.is_object() && nlohmann::json::accept(serve::to_text(body)));
    const serve::Fields fields(body);
    for (const auto& [name, value] : body.items()) {
      const auto read = [&](const auto& call) {
        try {
          call();
        } catch (const serve::ApiError& error) {
          require(error.status() == 400 && error.param() == name.c_str());
        }
      };
      read([&] { (void)fields.whole(name.c_str(), -5, 1000); });
      read([&] { (void)fields.number(name.c_str(), 0.0, 1.0); });
      read([&] { (void)fields.flag(name.c_str(), false); });
      read([&] { (void)fields.text(name.c_str()); });
      read([&] { (void)fields.texts(name.c_str(), 4); });
      read([&] { fields.not_supported(name.c_str()); });
    }
  } catch (const serve::ApiError& error) {
    require(error.status() == 400 && nlohmann::json::accept(serve::to_text(serve::error_json(error))));
  }
}

void fuzz_grammar(const std::string& text) {
  try {
    engine::check_grammar(text);
  } catch (const engine::Error& error) {
    require(error.kind() == engine::ErrorKind::bad_input && *error.what() != '\0');
  }
}

// The first line has the stop strings, by '|'; the rest comes in pieces of three bytes.
void fuzz_stops(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return;
  std::vector<std::string> stops;
  for (size_t at = 0; at <= end && stops.size() < 8;) {
    const size_t next = std::min(text.find('|', at), end);
    stops.push_back(text.substr(at, next - at));
    at = next + 1;
  }
  engine::StopStrings stop(stops);
  engine::Utf8Joiner joiner;
  std::string shown;
  const std::string whole = text.substr(end + 1);
  for (size_t at = 0; at < whole.size() && !stop.hit(); at += 3) shown += stop.add(joiner.add(whole.substr(at, 3)));
  if (!stop.hit()) shown += stop.add(joiner.rest());
  if (!stop.hit()) shown += stop.rest();
  require(whole.starts_with(shown));
  require(stop.hit() || shown == whole);
  for (const std::string& one : stops) require(one.empty() || shown.find(one) == std::string::npos);
}

void fuzz_headers(const std::string& text) {
  const size_t half = text.size() / 2;
  const std::string one = text.substr(0, half), other = text.substr(half);
  (void)serve::is_foreign_origin(one, other);
  (void)serve::is_local_name(serve::host_name(one));
  require(!serve::is_origin(one) || one.find('\n') == std::string::npos);
  require(serve::is_known_key(serve::bearer_key("Bearer " + one), {one}));
  require(one == other || !serve::is_known_key(one, {other}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: fuzz_json(text); break;
    case 1: fuzz_grammar(text); break;
    case 2: fuzz_stops(text); break;
    default: fuzz_headers(text); break;
  }
  return 0;
}
