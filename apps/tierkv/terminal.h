// terminal.h — how things look: colours, tables, tier bars, a progress bar.
//
// Colours are used when stdout is a terminal, TERM is not "dumb" and NO_COLOR is not set. The progress bar lives on stderr and only
// on a terminal; it removes itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine_names.h"
#include "tierkv/stats.h"

namespace tierkv::cli {

bool stdout_is_terminal();
bool stderr_is_terminal();
int terminal_width();  // of stdout; 100 when it is none

// Text as it is, or wrapped in the escape codes of a style.
std::string bold(const std::string& text);
std::string dim(const std::string& text);
std::string green(const std::string& text);
std::string red(const std::string& text);
std::string tier_colour(Tier tier, const std::string& text);

// Says something to the user on stderr, without colours where that is no terminal.
void remark(const std::string& text);

// "12.3 MiB", "640 B".
std::string human_bytes(double bytes);
// "850 ms", "12.3 s", "2 min 5 s"
std::string human_seconds(double seconds);

// "5.9x smaller than FP16"; short sequences may take more.
std::string versus_fp16(const MemoryStats& stats);

// Columns aligned to their widest cell; escape codes and multi-byte characters count as what they show.
class Table {
 public:
  // A header that starts with '<' aligns its column to the left, others to the right.
  explicit Table(std::vector<std::string> headers);
  void add(std::vector<std::string> cells);
  std::string str() const;

 private:
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

// The tiers as a bar whose `width` characters stand for `full` bytes: S first tokens, H newest, W recent, A archive, · the books.
std::string tier_bar(const MemoryStats& stats, uint64_t full, int width);
// One line for each tier that holds something: letter, name, tokens (per layer and head, `streams` of them), bytes, bits.
std::string tier_lines(const MemoryStats& stats, uint32_t streams, uint32_t head_dim, const std::string& indent);
// "hot 64 · warm 448 · archive 5,632 tokens, 12.3 MiB, 5.9x smaller than FP16"
std::string tier_summary(const MemoryStats& stats, uint32_t streams);

class Progress {
 public:
  Progress(std::string label, uint64_t total, bool quiet = false);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(uint64_t done);
  void label(const std::string& text);
  void finish();  // removes the bar

 private:
  void draw();
  std::string label_;
  uint64_t total_, done_ = 0;
  bool shown_ = false, on_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace tierkv::cli
