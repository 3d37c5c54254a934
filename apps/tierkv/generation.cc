// generation.cc — reading with a bar, and what a session was like.
#include "generation.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "learning.h"
#include "number_range.h"
#include "output.h"
#include "terminal.h"

namespace tierkv::cli {

void prefill(Session& session, std::span<const llama_token> tokens, const std::string& label, bool quiet) {
  Progress progress(label, tokens.size(), quiet);
  session.feed(tokens, Want::last, {}, 0, [&](uint32_t done) { progress.update(done); });
}

void stream_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void add_stop_option(CLI::App& app, std::vector<std::string>& stop) {
  app.add_option_function<std::vector<std::string>>(
         "-r,--stop",
         [&stop](const std::vector<std::string>& given) {
           stop = given;
           for (std::string& text : stop) {
             for (size_t at = 0; (at = text.find("\\n", at)) != std::string::npos; ++at) text.replace(at, 2, "\n");
           }
         },
         "stop before this text would be written; may be repeated; \\n is a line end")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_sampler_options(CLI::App& app, SamplerOptions& options) {
  app.add_option("--temp", options.temperature, "temperature; 0 takes the likeliest token")
      ->check(number_range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", options.top_k, "only the K likeliest; 0: all")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  app.add_option("--top-p", options.top_p, "only the likeliest that make up P together")
      ->check(number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--min-p", options.min_p, "only those at least P times as likely as the likeliest")
      ->check(number_range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--repeat-penalty", options.repeat_penalty, "make recent tokens less likely; 1: do not")
      ->check(number_range(0.1, 10.0))
      ->capture_default_str();
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
  json["learning"] = learning_json(session);
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
