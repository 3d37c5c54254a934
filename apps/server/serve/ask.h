// ask.h — what a client wants written: OpenAI's two requests as prompts, samplers and limits.
//
// Errors:  ApiError, 400. What would change an answer and is not known here (tools, schemas, suffix) is refused by name; other
//          unknown fields are ignored, as clients expect.
// Threads: any number at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace tierkv::serve {

using engine::Tokens;

// One text to be written.
struct Ask {
  Tokens prompt;
  engine::SamplerOptions sampling;
  uint32_t seed = 0;
  uint32_t most_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_end = false;
  bool reuse = true;           // what is known of the prompt need not be read again
  bool probabilities = false;  // of the tokens that are written
  uint32_t most_likely = 0;    // of the tokens that might have been, how many are named with theirs
  std::string echo;            // the text that the answer begins with: the prompt, where that is wanted
};

struct Request {
  bool chat = false;
  bool stream = false;
  bool stream_usage = false;
  uint32_t choices = 1;            // of each prompt
  std::vector<Ask> asks;           // those of one prompt stand together
  uint64_t prompt_tokens() const;  // each prompt once
};

struct RequestLimits {
  uint32_t context = 0;  // tokens of prompt and answer together
  uint32_t most_asks = 16;
};

// The body of /v1/completions.
Request parse_completion(const nlohmann::json& body, const engine::Engine& engine, const RequestLimits& limits);
// The body of /v1/chat/completions.
Request parse_chat(const nlohmann::json& body, const engine::Engine& engine, const RequestLimits& limits);
// {"messages": […]} as text; `content` may be a text or a list of parts of type "text".
std::string apply_template(const nlohmann::json& body, const engine::Engine& engine);
// A list of token numbers of the model; `name` is the field's.
Tokens parse_tokens(const nlohmann::json& list, const char* name, const engine::Engine& engine);

}  // namespace tierkv::serve
