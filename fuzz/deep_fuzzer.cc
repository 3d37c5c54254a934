// Deep archives of any kind. The first byte says how the rest is taken: bit 0, its length and checksum are made right, so that the
// decoder behind them is reached; bit 1, the rest is put over the bytes of a real archive instead of being one.
//
// Whatever the bytes, decoding ends, stays within what the header says, and either gives finite rows or says why not.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "deep/testing.h"

namespace {

using namespace tierkv::deep;

void require(bool condition) {
  if (!condition) std::abort();
}

const std::vector<std::byte>& real() {
  static const std::vector<std::byte> bytes = [] {
    const testing::Text text = testing::model().text(100);
    EncodeOptions options;
    options.ratio = 16.0;
    return encode(testing::model().model_tables(), text.first, text.tokens, text.reader(), options).value();
  }();
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] & 2) {
    // Where to, then what.
    std::vector<std::byte> over = real();
    size_t at = size > 3 ? (data[1] | static_cast<size_t>(data[2]) << 8) % over.size() : 0;
    for (size_t i = 3; i < size; ++i, ++at) over[at % over.size()] = static_cast<std::byte>(data[i]);
    bytes = std::move(over);
  }
  if ((data[0] & 1) && bytes.size() >= 96) {
    const uint64_t length = bytes.size();
    std::memcpy(bytes.data() + 16, &length, sizeof length);
    const uint64_t sum = tierkv::checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
  }
  const auto info = inspect(bytes);
  const tierkv::Status status =
      decode(bytes, testing::model().model_tables(), 1,
             [&](uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
               require(info.ok() && layer < testing::kLayers && first < info->tokens && count <= info->tokens - first);
               for (size_t i = 0; i < static_cast<size_t>(count) * testing::kHeads * testing::kDim; ++i)
                 require(std::isfinite(keys[i]) && std::isfinite(values[i]));
             });
  if (!info.ok()) require(!status.ok());
  return 0;
}
