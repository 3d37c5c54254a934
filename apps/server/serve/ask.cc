// ask.cc — OpenAI's fields, and those of llama-server that mean the same.
#include "serve/ask.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/api_error.h"
#include "serve/json_input.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

constexpr size_t kMostStops = 16, kMostMessages = 4096;

// As llama-server has them where a request says nothing.
engine::SamplerOptions parse_sampling(const Fields& fields) {
  engine::SamplerOptions options;
  options.temperature = static_cast<float>(fields.number("temperature", 0.0, 100.0).value_or(0.8));
  options.top_k = static_cast<int>(fields.whole("top_k", 0, 1 << 20).value_or(40));
  options.top_p = static_cast<float>(fields.number("top_p", 0.0, 1.0).value_or(0.95));
  options.min_p = static_cast<float>(fields.number("min_p", 0.0, 1.0).value_or(0.05));
  options.repeat_penalty = static_cast<float>(fields.number("repeat_penalty", 0.1, 10.0).value_or(1.0));
  options.repeat_last = static_cast<int>(fields.whole("repeat_last_n", 0, 1 << 16).value_or(64));
  options.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2.0, 2.0).value_or(0.0));
  options.presence_penalty = static_cast<float>(fields.number("presence_penalty", -2.0, 2.0).value_or(0.0));
  return options;
}

// -1 stands for a seed of nobody's choice.
uint32_t parse_seed(const Fields& fields) {
  const int64_t seed = fields.whole("seed", INT32_MIN, UINT32_MAX).value_or(-1);
  return seed == -1 ? std::random_device()() : static_cast<uint32_t>(seed);
}

uint32_t parse_most_tokens(const Fields& fields) {
  for (const char* name : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    const auto given = fields.whole(name, -1, INT32_MAX);
    if (given && *given >= 0) return static_cast<uint32_t>(*given);
  }
  return UINT32_MAX;  // as much as the context has room for
}

void refuse_what_is_not_there(const Fields& fields) {
  for (const char* name : {"tools", "functions", "grammar", "json_schema", "logprobs", "top_logprobs", "logit_bias", "suffix",
                           "echo", "audio", "n_probs", "lora"}) {
    fields.not_supported(name);
  }
  if (const json* format = fields.find("response_format")) {
    if (!format->is_object() || Fields(*format).text("type", "text") != "text") {
      throw ApiError(400, "response_format other than text is not supported by this server", "response_format");
    }
  }
  if (const auto best = fields.whole("best_of", 1, 1024); best && *best != fields.whole("n", 1, 1024).value_or(1)) {
    throw ApiError(400, "best_of is not supported by this server", "best_of");
  }
}

// Everything but the prompts.
Request parse_settings(const Fields& fields, Ask& ask) {
  refuse_what_is_not_there(fields);
  Request request;
  request.stream = fields.flag("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) throw ApiError(400, "stream_options must be an object", "stream_options");
    request.stream_usage = Fields(*options).flag("include_usage", false);
  }
  request.choices = static_cast<uint32_t>(fields.whole("n", 1, 1024).value_or(1));
  ask.sampling = parse_sampling(fields);
  ask.seed = parse_seed(fields);
  ask.most_tokens = parse_most_tokens(fields);
  ask.stop = fields.texts("stop", kMostStops);
  ask.ignore_end = fields.flag("ignore_eos", false);
  ask.reuse = fields.flag("cache_prompt", true);
  return request;
}

void add_asks(Request& request, const std::vector<Tokens>& prompts, const Ask& pattern, const RequestLimits& limits) {
  if (prompts.size() * request.choices > limits.most_asks) {
    throw ApiError(400, "more than " + std::to_string(limits.most_asks) + " answers at a time are not given", "n");
  }
  for (const Tokens& prompt : prompts) {
    if (prompt.empty()) throw ApiError(400, "the prompt is empty", request.chat ? "messages" : "prompt");
    if (prompt.size() >= limits.context) {
      throw ApiError(400,
                     "the prompt has " + std::to_string(prompt.size()) + " tokens, and the context is " +
                         std::to_string(limits.context) + " tokens long",
                     request.chat ? "messages" : "prompt", "context_length_exceeded");
    }
    for (uint32_t i = 0; i < request.choices; ++i) {
      Ask ask = pattern;
      ask.prompt = prompt;
      ask.seed += i;
      request.asks.push_back(std::move(ask));
    }
  }
}

std::vector<Tokens> parse_prompts(const json& prompt, const engine::Engine& engine) {
  const engine::Tokenizer& tokenizer = engine.tokenizer();
  if (prompt.is_string()) return {tokenizer.encode(prompt.get<std::string>(), true, true)};
  if (!prompt.is_array() || prompt.empty()) {
    throw ApiError(400, "prompt must be a text, a list of tokens, or a list of either", "prompt");
  }
  if (prompt.front().is_number()) return {parse_tokens(prompt, "prompt", engine)};
  std::vector<Tokens> prompts;
  for (const json& one : prompt) {
    if (one.is_string()) prompts.push_back(tokenizer.encode(one.get<std::string>(), true, true));
    else prompts.push_back(parse_tokens(one, "prompt", engine));
  }
  return prompts;
}

// A text, or parts of which each is one.
std::string parse_content(const Fields& message) {
  const json* content = message.find("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) throw ApiError(400, "content must be a text or a list of parts", "messages");
  std::string text;
  for (const json& part : *content) {
    if (!part.is_object() || Fields(part).text("type") != "text") {
      throw ApiError(400, "only parts of type text can be read by this server", "messages");
    }
    text += Fields(part).text("text");
  }
  return text;
}

std::vector<engine::ChatMessage> parse_messages(const Fields& fields) {
  const json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty()) throw ApiError(400, "messages must be a list of messages", "messages");
  if (list->size() > kMostMessages) throw ApiError(400, "there are too many messages", "messages");
  std::vector<engine::ChatMessage> messages;
  for (const json& one : *list) {
    if (!one.is_object()) throw ApiError(400, "a message must be an object", "messages");
    const Fields message(one);
    message.not_supported("tool_calls");
    std::string role = message.text("role");
    if (role.empty()) throw ApiError(400, "a message needs a role", "messages");
    if (role == "developer") role = "system";  // OpenAI's newer word
    messages.push_back({std::move(role), parse_content(message)});
  }
  return messages;
}

}  // namespace

// Each prompt once.
uint64_t Request::prompt_tokens() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < asks.size(); i += choices) sum += asks[i].prompt.size();
  return sum;
}

Tokens parse_tokens(const json& list, const char* name, const engine::Engine& engine) {
  if (!list.is_array()) throw ApiError(400, std::string(name) + " must be a list of tokens", name);
  Tokens tokens;
  for (const json& one : list) {
    const bool whole = one.is_number_integer() || one.is_number_unsigned();
    if (!whole || one.get<double>() < 0 || one.get<double>() >= engine.tokenizer().size()) {
      throw ApiError(400, std::string(name) + " holds something that is no token of the model", name);
    }
    tokens.push_back(one.get<llama_token>());
  }
  return tokens;
}

Request parse_completion(const json& body, const engine::Engine& engine, const RequestLimits& limits) {
  const Fields fields(body);
  Ask pattern;
  Request request = parse_settings(fields, pattern);
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw ApiError(400, "prompt is missing", "prompt");
  add_asks(request, parse_prompts(*prompt, engine), pattern, limits);
  return request;
}

std::string apply_template(const json& body, const engine::Engine& engine) {
  const Fields fields(body);
  return engine.chat_template().apply(parse_messages(fields), fields.flag("add_generation_prompt", true));
}

Request parse_chat(const json& body, const engine::Engine& engine, const RequestLimits& limits) {
  const Fields fields(body);
  Ask pattern;
  Request request = parse_settings(fields, pattern);
  request.chat = true;
  add_asks(request, {engine.tokenizer().encode(apply_template(body, engine), true, true)}, pattern, limits);
  return request;
}

}  // namespace tierkv::serve
