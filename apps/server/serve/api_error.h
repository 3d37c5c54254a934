// api_error.h — why a request is refused, in the shape that OpenAI's clients read.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace tierkv::serve {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& sentence, std::string param = "", std::string code = "")
      : std::runtime_error(sentence), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }               // of the HTTP response
  const std::string& param() const { return param_; }  // the field that is wrong; empty: none
  const std::string& code() const { return code_; }    // for programs: "context_length_exceeded"
  // Seconds after which it is worth another try; 0: it is not said.
  uint32_t retry_after = 0;

 private:
  int status_;
  std::string param_, code_;
};

// {"error": {"message": …, "type": "invalid_request_error", "param": …, "code": …}}
nlohmann::json error_json(const ApiError& error);

}  // namespace tierkv::serve
