// text.h — numbers in sentences.
#pragma once

#include <cstdint>
#include <string>

namespace tierkv::engine {

// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
// "1,234,567"
std::string human_count(uint64_t count);

}  // namespace tierkv::engine
