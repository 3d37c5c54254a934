// generation.h — a prompt goes in, tokens come out: the loop that generate, chat, demo and snapshot share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine.h"
#include "sampler.h"

namespace tierkv::cli {

// Appends the prompt, with a progress bar, and leaves the session with the logits of its last token.
void prefill(Session& session, std::span<const llama_token> tokens, const std::string& label, bool quiet);

struct Generated {
  Tokens tokens;
  std::string text;
  std::string stop;  // "length", "end", "context" or "interrupted"
};

struct GenerateOptions {
  uint32_t tokens = 128;
  bool ignore_end = false;
  std::function<void(const std::string& text)> on_text;  // whole characters, as they come
  std::function<void(uint32_t tokens)> on_token;
};

// Every token in the result has been appended to the session. Ctrl-C ends it early without an error.
// REQUIRES: session.last_logits() are those of the session's last token.
Generated generate(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options);

// For on_text: to stdout, at once.
void stream_text(const std::string& text);

// Options of the commands that write: sampler, seed, model.
void add_writing_options(CLI::App& app, Options& options, SamplerOptions& sampler);

// Speed, memory and path of a session, as every command's JSON has them.
nlohmann::json session_json(Engine& engine, Session& session);
// "6,012 tokens read at 180 tokens/s, 64 written at 21 tokens/s, 23.1 MiB of keys and values (6.1x smaller than FP16)"
std::string session_sentence(Session& session);

}  // namespace tierkv::cli
