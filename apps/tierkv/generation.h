// generation.h — what generate, chat, demo and snapshot share around the engine's loop (engine/generate.h): bars, options, results.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "options.h"

namespace tierkv::cli {

// Appends the prompt, with a progress bar, and leaves the session with the logits of its last token.
void prefill(Session& session, std::span<const llama_token> tokens, const std::string& label, bool quiet);

// For on_text: to stdout, at once.
void stream_text(const std::string& text);

// --stop and -r: where the text is to end. "\\n" stands for a line end.
void add_stop_option(CLI::App& app, std::vector<std::string>& stop);
void add_sampler_options(CLI::App& app, SamplerOptions& options);
// Options of the commands that write: sampler, seed, model.
void add_writing_options(CLI::App& app, Options& options, SamplerOptions& sampler);

// Speed, memory and path of a session, as every command's JSON has them.
nlohmann::json session_json(Engine& engine, Session& session);
// "6,012 tokens read at 180 tokens/s, 64 written at 21 tokens/s, 23.1 MiB of keys and values (6.1x smaller than FP16)"
std::string session_sentence(Session& session);

}  // namespace tierkv::cli
