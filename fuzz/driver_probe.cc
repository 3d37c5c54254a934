// A target with one planted bug, five bytes deep: the standalone driver must find it from its dictionary and keep the input.
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (std::string(reinterpret_cast<const char*>(data), size).find("BUGGY") != std::string::npos) std::abort();
  return 0;
}
