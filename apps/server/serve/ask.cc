// ask.cc — OpenAI's fields, and those of llama-server that mean the same.
#include "serve/ask.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/error.h"
#include "engine/grammar_check.h"
#include "serve/api_error.h"
#include "serve/json_input.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

constexpr size_t kMostStops = 16, kMostMessages = 4096, kMostBiases = 1024;
constexpr int64_t kMostLikely = 20;

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
  for (const char* name : {"tools", "functions", "json_schema", "suffix", "audio", "n_probs", "lora"}) fields.not_supported(name);
  if (const auto best = fields.whole("best_of", 1, 1024); best && *best != fields.whole("n", 1, 1024).value_or(1)) {
    throw ApiError(400, "best_of is not supported by this server", "best_of");
  }
}

// {"token": bias} as OpenAI has it, or [[token, bias], …] as llama-server does.
std::vector<llama_logit_bias> parse_bias(const Fields& fields, const engine::Engine& engine) {
  const json* given = fields.find("logit_bias");
  if (given == nullptr) return {};
  const auto wrong = [] {
    return ApiError(400, "logit_bias must be {\"token\": from -100 to 100}, of tokens of the model", "logit_bias");
  };
  if (!given->is_structured() || given->size() > kMostBiases) throw wrong();
  std::vector<llama_logit_bias> out;
  const auto add = [&](int64_t token, const json& bias) {
    if (token < 0 || token >= engine.tokenizer().size() || !bias.is_number() || std::abs(bias.get<double>()) > 100.0) throw wrong();
    out.push_back({static_cast<llama_token>(token), bias.get<float>()});
  };
  if (given->is_object()) {
    for (const auto& [name, bias] : given->items()) {
      if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != std::string::npos) throw wrong();
      add(std::stol(name), bias);
    }
    return out;
  }
  for (const json& pair : *given) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer()) throw wrong();
    add(pair[0].get<int64_t>(), pair[1]);
  }
  return out;
}

// `grammar`, or what response_format asks for; null: any text.
std::shared_ptr<const engine::Grammar> parse_grammar(const Fields& fields, const engine::Engine& engine) {
  std::string text = fields.text("grammar");
  const char* blamed = "grammar";
  if (const json* format = fields.find("response_format")) {
    const std::string type = format->is_object() ? Fields(*format).text("type", "text") : "";
    if (type != "text" && type != "json_object") {
      throw ApiError(400, "response_format other than text and json_object is not supported by this server", "response_format");
    }
    if (type == "json_object" && !text.empty()) {
      throw ApiError(400, "grammar and response_format cannot both say what the text looks like", "grammar");
    }
    if (type == "json_object") text = engine::kJsonGrammar, blamed = "response_format";
  }
  if (text.empty()) return nullptr;
  try {
    return std::make_shared<const engine::Grammar>(text, llama_model_get_vocab(engine.model()));
  } catch (const engine::Error& error) {
    throw ApiError(400, error.what(), blamed);
  }
}

// Everything but the prompts, and what the two requests say each in their way.
Request parse_settings(const Fields& fields, const engine::Engine& engine, Ask& ask) {
  refuse_what_is_not_there(fields);
  Request request;
  request.stream = fields.flag("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) throw ApiError(400, "stream_options must be an object", "stream_options");
    request.stream_usage = Fields(*options).flag("include_usage", false);
  }
  request.choices = static_cast<uint32_t>(fields.whole("n", 1, 1024).value_or(1));
  ask.sampling = parse_sampling(fields);
  ask.sampling.bias = parse_bias(fields, engine);
  ask.sampling.grammar = parse_grammar(fields, engine);
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

// A prompt that came as a text is given back as it came.
void add_echoes(Request& request, const json& prompt, const engine::Engine& engine) {
  for (size_t i = 0; i < request.asks.size(); ++i) {
    Ask& ask = request.asks[i];
    if (ask.probabilities) throw ApiError(400, "logprobs of an echoed prompt are not supported by this server", "echo");
    const json& one = prompt.is_array() && !prompt.front().is_number() ? prompt[i / request.choices] : prompt;
    ask.echo = one.is_string() ? one.get<std::string>() : engine.tokenizer().decode(ask.prompt);
  }
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
  Request request = parse_settings(fields, engine, pattern);
  fields.not_supported("top_logprobs");
  if (const auto most = fields.whole("logprobs", 0, kMostLikely)) {
    pattern.probabilities = true;
    pattern.most_likely = static_cast<uint32_t>(*most);
  }
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw ApiError(400, "prompt is missing", "prompt");
  add_asks(request, parse_prompts(*prompt, engine), pattern, limits);
  if (fields.flag("echo", false)) add_echoes(request, *prompt, engine);
  return request;
}

std::string apply_template(const json& body, const engine::Engine& engine) {
  const Fields fields(body);
  return engine.chat_template().apply(parse_messages(fields), fields.flag("add_generation_prompt", true));
}

Request parse_chat(const json& body, const engine::Engine& engine, const RequestLimits& limits) {
  const Fields fields(body);
  Ask pattern;
  Request request = parse_settings(fields, engine, pattern);
  request.chat = true;
  pattern.probabilities = fields.flag("logprobs", false);
  pattern.most_likely = static_cast<uint32_t>(fields.whole("top_logprobs", 0, kMostLikely).value_or(0));
  if (pattern.most_likely > 0 && !pattern.probabilities) {
    throw ApiError(400, "top_logprobs is given without logprobs: true", "top_logprobs");
  }
  fields.not_supported("echo");
  add_asks(request, {engine.tokenizer().encode(apply_template(body, engine), true, true)}, pattern, limits);
  return request;
}

}  // namespace tierkv::serve
