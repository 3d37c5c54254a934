// keys.cc — keys and names, as strangers send them.
#include "serve/access.h"

#include <algorithm>

namespace tierkv::serve {

bool is_known_key(std::string_view key, const std::vector<std::string>& keys) {
  unsigned found = 0;
  for (const std::string& one : keys) {
    unsigned different = key.size() != one.size();
    // All of it, whatever was found.
    for (size_t i = 0; i < one.size(); ++i) {
      const unsigned char theirs = i < key.size() ? static_cast<unsigned char>(key[i]) : 0;
      different |= static_cast<unsigned>(theirs ^ static_cast<unsigned char>(one[i]));
    }
    found |= static_cast<unsigned>(different == 0);
  }
  return found != 0;
}

std::string bearer_key(const std::string& header) {
  constexpr std::string_view kScheme = "Bearer ";
  return header.starts_with(kScheme) ? header.substr(kScheme.size()) : "";
}

std::string host_name(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

bool is_foreign_origin(const std::string& origin, const std::string& host) {
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  return scheme == std::string::npos || origin.substr(scheme + 3) != host;
}

bool is_origin(const std::string& text) {
  if (text == "*") return true;
  const size_t scheme = text.find("://");
  const std::string host = scheme == std::string::npos ? "" : text.substr(scheme + 3);
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '-'; };
  if (host.empty() || scheme == 0 || !std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(scheme), letter))
    return false;
  return host.find_first_of("/?#@ \r\n\t,*") == std::string::npos;
}

bool is_local_name(const std::string& name) { return name == "localhost" || name == "::1" || name.starts_with("127."); }

}  // namespace tierkv::serve
