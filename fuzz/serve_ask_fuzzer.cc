// The bodies of /v1/completions and /v1/chat/completions, and grammars, on a tiny model: the first byte picks which.
// What is accepted keeps its bounds; what is refused is an ApiError 400 that names a reason. A grammar that check_grammar() takes
// is one that libllama takes or refuses without a word on stderr, and its sampler can be started.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"
#include "engine/error.h"
#include "serve/api_error.h"
#include "serve/ask.h"
#include "serve/json_input.h"

namespace {

using namespace tierkv;

void require(bool condition) {
  if (!condition) std::abort();
}

const engine::Engine& tiny_engine() {
  static const engine::Engine* const made = [] {
    engine::EngineOptions options;
    options.model = TIERKV_TINY_MODELS "/llama.gguf";
    return new engine::Engine(options);
  }();
  return *made;
}

void fuzz_request(bool chat, const std::string& text) {
  serve::RequestLimits limits;
  limits.context = 512;
  limits.most_asks = 8;
  try {
    const nlohmann::json body = serve::parse_object(text);
    const serve::Request request =
        chat ? serve::parse_chat(body, tiny_engine(), limits) : serve::parse_completion(body, tiny_engine(), limits);
    require(!request.asks.empty() && request.asks.size() <= limits.most_asks);
    for (const serve::Ask& ask : request.asks) {
      require(!ask.prompt.empty() && ask.prompt.size() < limits.context && ask.stop.size() <= 16);
      require(ask.sampling.temperature >= 0 && ask.sampling.top_k >= 0 && ask.most_likely <= 20);
      for (const llama_token token : ask.prompt)
        require(token >= 0 && static_cast<uint32_t>(token) < tiny_engine().tokenizer().size());
    }
  } catch (const serve::ApiError& error) {
    require(error.status() == 400 && *error.what() != '\0');
  } catch (const engine::Error& error) {
    require(error.kind() == engine::ErrorKind::bad_input);
  }
}

void fuzz_grammar(const std::string& text) {
  try {
    const engine::Grammar grammar(text, llama_model_get_vocab(tiny_engine().model()));
    require(grammar.start() != nullptr);
  } catch (const engine::Error& error) {
    require(error.kind() == engine::ErrorKind::bad_input);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 2) fuzz_grammar(text);
  else fuzz_request(data[0] % 3 == 1, text);
  return 0;
}
