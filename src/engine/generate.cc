// generate.cc — pick, feed, say.
#include "engine/generate.h"

#include "engine/error.h"
#include "engine/utf8.h"

namespace tierkv::engine {

Generated generate(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options) {
  Generated result;
  Utf8Joiner joiner;
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
    say(joiner.add(engine.tokenizer().piece(token)));
    if (options.on_token) options.on_token(static_cast<uint32_t>(result.tokens.size()));
  }
  say(joiner.rest());
  return result;
}

}  // namespace tierkv::engine
