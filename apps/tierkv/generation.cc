// generation.cc — prefill and the token loop.
#include "generation.h"

#include <nlohmann/json.hpp>

#include "terminal.h"

namespace tierkv::cli {

void prefill(Session& session, std::span<const llama_token> tokens, const std::string& label, bool quiet) {
  Progress progress(label, tokens.size(), quiet);
  session.feed(tokens, Want::last, {}, 0, [&](uint32_t done) { progress.update(done); });
}

Generated generate(const Engine& engine, Session& session, Sampler& sampler, const GenerateOptions& options) {
  Generated result;
  Utf8Joiner joiner;
  auto say = [&](const std::string& text) {
    result.text += text;
    if (options.on_text && !text.empty()) options.on_text(text);
  };
  result.stop = "length";
  while (result.tokens.size() < options.tokens) {
    if (interrupted()) {
      result.stop = "interrupted";
      break;
    }
    if (session.length() >= session.limit()) {
      result.stop = "context";
      break;
    }
    const llama_token token = sampler.pick(session.last_logits());
    if (!options.ignore_end && engine.is_end(token)) {
      result.stop = "end";
      break;
    }
    try {
      session.feed(std::span(&token, 1), Want::last);
    } catch (const Interrupted&) {
      result.stop = "interrupted";
      break;
    }
    result.tokens.push_back(token);
    say(joiner.add(engine.piece(token)));
    if (options.on_token) options.on_token(static_cast<uint32_t>(result.tokens.size()));
  }
  say(joiner.rest());
  return result;
}

void stream_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void add_writing_options(CLI::App& app, Options& options, SamplerOptions& sampler) {
  add_sampler_options(app, sampler);
  add_seed_option(app, options);
  add_model_option(app, options);
}

nlohmann::json session_json(Engine& engine, Session& session) {
  const SessionTimes& times = session.times();
  nlohmann::json json = {{"kv", session.name()},
                         {"stock", session.stock()},
                         {"length", session.length()},
                         {"prefill_tokens", times.prefill_tokens},
                         {"prefill_seconds", times.prefill_s},
                         {"prefill_tokens_per_second", times.prefill_rate()},
                         {"decode_tokens", times.decode_tokens},
                         {"decode_seconds", times.decode_s},
                         {"decode_tokens_per_second", times.decode_rate()},
                         {"resident_bytes", session.kv_bytes()},
                         {"micro_batch_bytes", session.micro_batch_bytes()},
                         {"memory", memory_json(session.memory(), engine.shape().head_dim)}};
  add_process_memory(json, process_memory());
  if (llama::Host* host = session.host()) {
    const llama::HostTimes host_times = host->times();
    json["path"] = host->path() == llama::Path::patch ? "patch" : "overwrite";
    json["host"] = {{"decode_seconds", host_times.decode},
                    {"append_seconds", host_times.append},
                    {"attention_seconds", host_times.attention},
                    {"own_seconds", host_times.own},
                    {"micro_batches", host_times.calls}};
  }
  return json;
}

std::string session_sentence(Session& session) {
  const SessionTimes& times = session.times();
  std::string text;
  if (times.prefill_tokens > 0)
    text += format("%s tokens read at %.0f tokens/s, ", human_count(times.prefill_tokens).c_str(), times.prefill_rate());
  if (times.decode_tokens > 0)
    text += format("%s written at %.1f tokens/s, ", human_count(times.decode_tokens).c_str(), times.decode_rate());
  const MemoryStats memory = session.memory();
  return text + human_bytes(static_cast<double>(session.kv_bytes())) + " of keys and values" +
         (session.stock() ? "" : " (" + versus_fp16(memory) + ")");
}

}  // namespace tierkv::cli
