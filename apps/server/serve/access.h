// access.h — who may ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tierkv::serve {

// Whether the key is one of them. The time it takes tells their lengths and nothing else.
bool is_known_key(std::string_view key, const std::vector<std::string>& keys);

// The key of an Authorization header ("Bearer KEY"); empty: there is none.
std::string bearer_key(const std::string& header);

// "name" of "name:port", "[::1]:8080" and "name".
std::string host_name(const std::string& header);

// A page of another origin may not speak to the server behind its user's back. `origin` and `host` are the request's headers;
// programs send no origin.
bool is_foreign_origin(const std::string& origin, const std::string& host);

// "*", or a scheme and a host as browsers send them: https://example.com, http://localhost:3000.
bool is_origin(const std::string& text);

// A name that means this machine.
bool is_local_name(const std::string& name);

}  // namespace tierkv::serve
