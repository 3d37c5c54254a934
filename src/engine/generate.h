// generate.h — tokens come out of a session: the loop that every command which writes has, and a server too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace tierkv::engine {

struct Generated {
  Tokens tokens;
  std::string text;
  std::string stop;  // "length", "end", "stop", "context" or "interrupted"
};

struct GenerateOptions {
  uint32_t tokens = 128;
  bool ignore_end = false;
  std::vector<std::string> stop;                         // the text ends before any of these
  std::function<void(const std::string& text)> on_text;  // whole characters, as they come
  std::function<void(uint32_t tokens)> on_token;
};

// Every token in the result has been appended to the session. A cancellation ends it early without an error.
// REQUIRES: session.last_logits() are those of the session's last token.
Generated generate(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options);

}  // namespace tierkv::engine
