#include "serve/openai_reply.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/text.h"
#include "serve/json_input.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

std::string new_id(bool chat) {
  static thread_local std::mt19937_64 random{std::random_device()()};
  return (chat ? "chatcmpl-" : "cmpl-") + engine::format("%016llx", static_cast<unsigned long long>(random()));
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string sse(const json& value) { return "data: " + to_text(value) + "\n\n"; }

json bytes_of(const std::string& piece) {
  json list = json::array();
  for (const char c : piece) list.push_back(static_cast<unsigned char>(c));
  return list;
}

json chat_logprobs(const std::vector<TokenProbability>& tokens) {
  const auto one = [](const std::string& piece, double logprob) {
    return json{{"token", piece}, {"logprob", logprob}, {"bytes", bytes_of(piece)}};
  };
  json list = json::array();
  for (const TokenProbability& token : tokens) {
    json entry = one(token.piece, token.logprob);
    entry["top_logprobs"] = json::array();
    for (const auto& [piece, logprob] : token.likely) entry["top_logprobs"].push_back(one(piece, logprob));
    list.push_back(std::move(entry));
  }
  return {{"content", std::move(list)}, {"refusal", nullptr}};
}

// Where texts begin is counted in characters.
size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

json text_logprobs(const std::vector<TokenProbability>& tokens, size_t offset) {
  json out = {{"tokens", json::array()},
              {"token_logprobs", json::array()},
              {"top_logprobs", json::array()},
              {"text_offset", json::array()}};
  for (const TokenProbability& token : tokens) {
    json likely = json::object();
    for (const auto& [piece, logprob] : token.likely) likely[piece] = logprob;
    out["tokens"].push_back(token.piece);
    out["token_logprobs"].push_back(token.logprob);
    out["top_logprobs"].push_back(std::move(likely));
    out["text_offset"].push_back(offset);
    offset += characters(token.piece);
  }
  return out;
}

double per_second(uint32_t count, double seconds) { return seconds > 0 ? count / seconds : 0.0; }

}  // namespace

json timings_json(const Outcome& outcome) {
  const uint32_t read = outcome.prompt_tokens - std::min(outcome.prompt_tokens, outcome.cached_tokens);
  return {{"cache_n", outcome.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", 1e3 * outcome.prompt_s},
          {"prompt_per_token_ms", read ? 1e3 * outcome.prompt_s / read : 0.0},
          {"prompt_per_second", per_second(read, outcome.prompt_s)},
          {"predicted_n", outcome.written_tokens},
          {"predicted_ms", 1e3 * outcome.write_s},
          {"predicted_per_token_ms", outcome.written_tokens ? 1e3 * outcome.write_s / outcome.written_tokens : 0.0},
          {"predicted_per_second", per_second(outcome.written_tokens, outcome.write_s)}};
}

std::string error_event(const ApiError& error) { return sse(error_json(error)); }

OpenAiReply::OpenAiReply(const Request& request, std::string model)
    : chat_(request.chat),
      stream_(request.stream),
      stream_usage_(request.stream_usage),
      probabilities_(request.asks.front().probabilities),
      per_prompt_(request.choices),
      prompt_tokens_(request.prompt_tokens()),
      model_(std::move(model)),
      id_(new_id(request.chat)),
      created_(seconds_now()),
      choices_(request.asks.size()),
      open_(request.asks.size()) {
  for (size_t i = 0; i < choices_.size(); ++i) choices_[i].text = request.asks[i].echo;
}

json OpenAiReply::frame() const {
  const char* object = chat_ ? (stream_ ? "chat.completion.chunk" : "chat.completion") : "text_completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"system_fingerprint", "tierkv"}};
}

// Tokens as the two requests have them. `offset` is where the text of these begins.
json OpenAiReply::logprobs(const std::vector<TokenProbability>& tokens, size_t offset) const {
  if (!probabilities_) return nullptr;
  return chat_ ? chat_logprobs(tokens) : text_logprobs(tokens, offset);
}

json OpenAiReply::chunk(uint32_t index, const Event& event, const Outcome* outcome) const {
  json choice = {{"index", index}, {"finish_reason", nullptr}, {"logprobs", nullptr}};
  if (!event.tokens.empty()) choice["logprobs"] = logprobs(event.tokens, characters(choices_[index].text));
  if (chat_) choice["delta"] = event.text.empty() ? json::object() : json{{"content", event.text}};
  else choice["text"] = event.text;
  json value = frame();
  if (outcome != nullptr) {
    choice["finish_reason"] = finish_name(outcome->finish);
    value["timings"] = timings_json(*outcome);
  }
  value["choices"] = json::array({std::move(choice)});
  return value;
}

std::string OpenAiReply::opening() const {
  std::string text;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const auto index = static_cast<uint32_t>(i);
    if (chat_) {
      json value = chunk(index, {}, nullptr);
      value["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
      text += sse(value);
    } else if (!choices_[i].text.empty()) {  // the prompt again
      text += sse(chunk(index, {index, choices_[i].text, std::nullopt, {}}, nullptr));
    }
  }
  return text;
}

std::string OpenAiReply::add(const Event& event) {
  Choice& choice = choices_[event.index];
  std::string text;
  if (stream_ && (!event.text.empty() || !event.tokens.empty())) text = sse(chunk(event.index, event, nullptr));
  choice.text += event.text;
  if (!stream_) choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  if (event.outcome && !choice.ended) {
    choice.outcome = *event.outcome;
    choice.ended = true;
    --open_;
    if (stream_ && !event.outcome->error) text += sse(chunk(event.index, {}, &choice.outcome));
  }
  return text;
}

json OpenAiReply::usage() const {
  uint64_t cached = 0, written = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % per_prompt_ == 0) cached += choices_[i].outcome.cached_tokens;
    written += choices_[i].outcome.written_tokens;
  }
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", written},
          {"total_tokens", prompt_tokens_ + written},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

std::string OpenAiReply::closing() const {
  std::string text;
  if (stream_usage_) {
    json value = frame();
    value["choices"] = json::array();
    value["usage"] = usage();
    text = sse(value);
  }
  return text + "data: [DONE]\n\n";
}

json OpenAiReply::whole() const {
  json value = frame();
  value["choices"] = json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    json one = {{"index", i}, {"finish_reason", finish_name(choice.outcome.finish)}, {"logprobs", logprobs(choice.tokens, 0)}};
    if (chat_) one["message"] = {{"role", "assistant"}, {"content", choice.text}};
    else one["text"] = choice.text;
    value["choices"].push_back(std::move(one));
  }
  value["usage"] = usage();
  value["timings"] = timings_json(choices_.front().outcome);
  return value;
}

}  // namespace tierkv::serve
