#include "serve/reuse.h"

#include <algorithm>

namespace tierkv::serve {

uint32_t common_prefix(std::span<const llama_token> a, std::span<const llama_token> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first -
                               a.begin());
}

uint32_t reusable(uint32_t match, uint32_t length, const TierBounds& bounds) {
  const auto back = [match](uint64_t tokens) { return match > tokens ? match - static_cast<uint32_t>(tokens) : 0u; };
  if (match >= length) return length;
  if (match >= bounds.tail_start + uint64_t{bounds.hot} * 3 / 4 || bounds.tail_start == 0) return match;
  if (match >= bounds.archive_end) return back(bounds.hot);
  return back(uint64_t{bounds.hot} + bounds.warm);
}

}  // namespace tierkv::serve
