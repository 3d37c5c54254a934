// openai_reply.h — answers as OpenAI's clients read them, whole and in pieces. `timings` are llama-server's.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serve/ask.h"
#include "serve/job.h"

namespace tierkv::serve {

// Gathers the events of one request's jobs.
class OpenAiReply {
 public:
  // `model` is the name that the answer carries.
  OpenAiReply(const Request& request, std::string model);

  // The next event, as server-sent events where the answer is streamed; otherwise it is kept for whole().
  std::string add(const Event& event);
  // Before the first event of a stream: every choice's role.
  std::string opening() const;
  // Behind the last event of a stream.
  std::string closing() const;
  // All jobs have their outcome.
  bool complete() const { return open_ == 0; }
  // The answer in one piece. REQUIRES: complete().
  nlohmann::json whole() const;

 private:
  struct Choice {
    std::string text;
    std::vector<TokenProbability> tokens;
    Outcome outcome;
    bool ended = false;
  };
  nlohmann::json frame() const;
  nlohmann::json chunk(uint32_t index, const Event& event, const Outcome* outcome) const;
  nlohmann::json logprobs(const std::vector<TokenProbability>& tokens, size_t offset) const;
  nlohmann::json usage() const;

  const bool chat_, stream_, stream_usage_, probabilities_;
  const uint32_t per_prompt_;
  const uint64_t prompt_tokens_;
  const std::string model_, id_;
  const int64_t created_;
  std::vector<Choice> choices_;
  size_t open_;
};

nlohmann::json timings_json(const Outcome& outcome);
// An error in the midst of a stream: the status has been sent, so it comes as an event.
std::string error_event(const ApiError& error);

}  // namespace tierkv::serve
