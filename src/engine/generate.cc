// generate.cc — pick, feed, say.
#include "engine/generate.h"

#include "engine/error.h"
#include "engine/stop_strings.h"
#include "engine/utf8.h"

namespace tierkv::engine {

Generated generate(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options) {
  Generated result;
  Utf8Joiner joiner;
  StopStrings stops(options.stop);
  auto say = [&](const std::string& text) {
    result.text += text;
    if (options.on_text && !text.empty()) options.on_text(text);
  };
  result.stop = "length";
  while (result.tokens.size() < options.tokens) {
    if (session.cancelled()) {
      result.stop = "interrupted";
      break;
    }
    if (session.length() >= session.limit()) {
      result.stop = "context";
      break;
    }
    const llama_token token = sampler.pick(session.last_logits());
    if (!options.ignore_end && engine.tokenizer().is_end(token)) {
      result.stop = "end";
      break;
    }
    try {
      session.feed(std::span(&token, 1), Want::last);
    } catch (const Cancelled&) {
      result.stop = "interrupted";
      break;
    }
    result.tokens.push_back(token);
    say(stops.add(joiner.add(engine.tokenizer().piece(token))));
    if (options.on_token) options.on_token(static_cast<uint32_t>(result.tokens.size()));
    if (stops.hit()) {
      result.stop = "stop";
      break;
    }
  }
  say(stops.add(joiner.rest()));
  say(stops.rest());
  return result;
}

}  // namespace tierkv::engine
