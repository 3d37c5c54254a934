#include "base/text.h"

#include <algorithm>
#include <array>

namespace tierkv {
namespace {

constexpr size_t kQuotedBytes = 80;
constexpr size_t kDistanceBytes = 64;

// Bytes of the well-formed UTF-8 character at text[i], or 0. Overlong forms, surrogates and values past U+10FFFF are not
// well-formed.
size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> unsigned { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
  const auto tail = [&](size_t k, unsigned low = 0x80, unsigned high = 0xBF) { return byte(k) >= low && byte(k) <= high; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    return tail(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    return tail(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    if (n == 0) return false;
    i += n;
  }
  return true;
}

std::string printable(std::string_view text, size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (i >= limit) {
      out += "…";
      break;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t n = utf8_length(text, i);
    // U+0080..U+009F are control characters too.
    const bool control = byte < 0x20 || byte == 0x7F || (n == 2 && byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0);
    if (n == 0 || control) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
      i += 1;
    } else {
      out.append(text.substr(i, n));
      i += n;
    }
  }
  return out;
}

std::string quote(std::string_view text) { return "'" + printable(text, kQuotedBytes) + "'"; }

int edit_distance(std::string_view a, std::string_view b) {
  if (a.size() > kDistanceBytes || b.size() > kDistanceBytes) return static_cast<int>(kDistanceBytes);
  std::array<std::array<int, kDistanceBytes + 1>, kDistanceBytes + 1> d;
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

int nearest(std::string_view text, std::span<const std::string> candidates) {
  int best = -1;
  int best_distance = std::max(1, static_cast<int>(text.size()) / 3) + 1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int distance = edit_distance(text, candidates[i]);
    // A one-letter name is one edit from every other: something must be shared.
    if (distance < best_distance && distance < static_cast<int>(std::max(text.size(), candidates[i].size()))) {
      best = static_cast<int>(i), best_distance = distance;
    }
  }
  return best;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out.append(separator);
    out.append(part);
  }
  return out;
}

}  // namespace tierkv
