// terminal.cc — colours, tables, bars.
#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tierkv::cli {
namespace {

bool colours() {
  static const bool on = [] {
    const char* none = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    return stdout_is_terminal() && (none == nullptr || *none == '\0') && (term == nullptr || std::strcmp(term, "dumb") != 0);
  }();
  return on;
}

std::string painted(const char* code, const std::string& text) { return colours() ? code + text + "\033[0m" : text; }

// Characters a terminal shows: no escape codes, no continuation bytes.
size_t shown_width(const std::string& text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else {
      width += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    }
  }
  return width;
}

}  // namespace

bool stdout_is_terminal() {
  static const bool is = isatty(STDOUT_FILENO) == 1;
  return is;
}

bool stderr_is_terminal() {
  static const bool is = isatty(STDERR_FILENO) == 1;
  return is;
}

int terminal_width() {
  winsize size{};
  if (stdout_is_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) return size.ws_col;
  return 100;
}

std::string bold(const std::string& text) { return painted("\033[1m", text); }
std::string dim(const std::string& text) { return painted("\033[2m", text); }
std::string green(const std::string& text) { return painted("\033[32m", text); }
std::string red(const std::string& text) { return painted("\033[31m", text); }

std::string tier_colour(Tier tier, const std::string& text) {
  static const char* const codes[] = {"\033[35m", "\033[31m", "\033[33m", "\033[34m"};
  return painted(codes[static_cast<int>(tier)], text);
}

void remark(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033' && !stderr_is_terminal()) {
      while (i < text.size() && text[i] != 'm') ++i;
    } else {
      plain += text[i];
    }
  }
  std::fflush(stdout);
  std::fputs(plain.c_str(), stderr);
  std::fflush(stderr);
}

std::string human_bytes(double bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::fabs(bytes) >= 1024.0 && unit < 5) bytes /= 1024.0, ++unit;
  return unit == 0 ? format("%.0f B", bytes) : format(std::fabs(bytes) < 10 ? "%.2f %s" : "%.1f %s", bytes, units[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 1.0) return format("%.0f ms", seconds * 1e3);
  if (seconds < 120.0) return format("%.1f s", seconds);
  return format("%d min %d s", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
}

std::string versus_fp16(const MemoryStats& stats) {
  if (stats.compression() >= 1.0) return format("%.1fx smaller than FP16", stats.compression());
  return "FP16 alone " + human_bytes(static_cast<double>(stats.fp16_bytes));
}

Table::Table(std::vector<std::string> headers) {
  for (std::string& header : headers) {
    left_.push_back(!header.empty() && header[0] == '<');
    header = bold(left_.back() ? header.substr(1) : header);
  }
  rows_.push_back(std::move(headers));
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(left_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  std::vector<size_t> widths(left_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], shown_width(row[c]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - shown_width(row[c]), ' ');
      line += (c != 0 ? "  " : "") + (left_[c] ? row[c] + padding : padding + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string tier_bar(const MemoryStats& stats, uint64_t full, int width) {
  std::string bar;
  int used = 0;
  double sum = 0.0;
  auto grow = [&](uint64_t bytes, auto paint) {
    sum += full != 0 ? static_cast<double>(bytes) / static_cast<double>(full) * width : 0.0;
    const int until = std::min(width, static_cast<int>(std::ceil(sum - 1e-9)));
    if (until > used) bar += paint(until - used);
    used = std::max(used, until);
  };
  for (int t = 0; t < kNumTiers; ++t) {
    grow(stats.tier[t].bytes(),
         [&](int n) { return tier_colour(static_cast<Tier>(t), std::string(static_cast<size_t>(n), "SHWA"[t])); });
  }
  uint64_t tiers = 0;
  for (const TierMemory& tier : stats.tier) tiers += tier.bytes();
  grow(stats.resident_bytes() > tiers ? stats.resident_bytes() - tiers : 0, [&](int n) {
    std::string dots;
    for (int i = 0; i < n; ++i) dots += "·";
    return dim(dots);
  });
  return bar + std::string(static_cast<size_t>(width - used), ' ');
}

std::string tier_lines(const MemoryStats& stats, uint32_t streams, uint32_t head_dim, const std::string& indent) {
  std::string text;
  for (int t = 0; t < kNumTiers; ++t) {
    const TierMemory& tier = stats.tier[t];
    if (tier.tokens == 0) continue;
    const Tier which = static_cast<Tier>(t);
    text += indent + tier_colour(which, format("%c %-7s", "SHWA"[t], tier_name(which)));
    text += format(" %7.0f tokens %10s  %5.2f bits a value\n", static_cast<double>(tier.tokens) / std::max(1u, streams),
                   human_bytes(static_cast<double>(tier.bytes())).c_str(), tier.bits_per_value(head_dim));
  }
  return text;
}

std::string tier_summary(const MemoryStats& stats, uint32_t streams) {
  std::string text;
  for (int t = 0; t < kNumTiers; ++t) {
    if (stats.tier[t].tokens == 0) continue;
    const Tier which = static_cast<Tier>(t);
    const uint64_t tokens = stats.tier[t].tokens / std::max(1u, streams);
    text += (text.empty() ? "" : " · ") + tier_colour(which, std::string(tier_name(which)) + " " + human_count(tokens));
  }
  if (text.empty()) return "the cache is empty";
  return text + " tokens, " + human_bytes(static_cast<double>(stats.resident_bytes())) + ", " + versus_fp16(stats);
}

Progress::Progress(std::string label, uint64_t total, bool quiet)
    : label_(std::move(label)),
      total_(std::max<uint64_t>(total, 1)),
      on_(stderr_is_terminal() && !quiet),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_ - std::chrono::seconds(1)) {}

void Progress::update(uint64_t done) {
  done_ = std::min(done, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!on_ || (now - drawn_ < std::chrono::milliseconds(80) && done_ < total_)) return;
  drawn_ = now;
  draw();
}

void Progress::label(const std::string& text) {
  label_ = text;
  if (on_) draw();
}

void Progress::draw() {
  const int filled = static_cast<int>(25 * done_ / total_);
  std::string bar;
  for (int i = 0; i < 25; ++i) bar += i < filled ? "█" : "░";
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string left;
  if (done_ > 0 && done_ < total_ && elapsed > 1.0) {
    left = ", " + human_seconds(elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_)) + " left";
  }
  std::fprintf(stderr, "\r\033[K  %s %s %3d%%%s", label_.c_str(), bar.c_str(), static_cast<int>(100 * done_ / total_),
               left.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::finish() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace tierkv::cli
