// harness.h — what a benchmark case is, how it is timed and how it reports.
//
// A case is named room/codec/op/shape. It first checks its result against a reference and returns an error when that is wrong: then
// no number is printed and the program ends with 1. A number with a limit that is missed is printed, marked, and ends with 1 as
// well.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tierkv/status.h"

namespace tierkv::bench {

struct Timing {
  double median_ns = 0;
  double min_ns = 0;
  int samples = 0;
  double waited = 0;  // share of its time that work spent ready to run without a core, where it was watched (turns.h)
};

struct Settings {
  bool quick = false;  // a smoke test: small shapes, hardly any repetition, no limits on times
  std::function<bool(const std::string&)> wants = [](const std::string&) {
    return true;
  };  // for cases of several rows: is this one asked for?
};

// Calls `work` once to warm up, then until there are enough samples of enough calls; times are per call.
Timing measure(const Settings& settings, const std::function<void()>& work);

// The figures of one case in the order they were added; becomes one JSON line or one line of the table.
class Row {
 public:
  explicit Row(std::string name) : name_(std::move(name)) {}

  Row& number(const std::string& key, double value);
  Row& text(const std::string& key, std::string value);
  Row& timing(const Timing& timing);
  // threads, isa and the timing in milliseconds as well: what rows that compare with a peer have in common.
  Row& attention(uint32_t threads, const Timing& timing);
  // A figure that must reach a bound: `value` >= `bound`.
  Row& at_least(const std::string& key, double value, double bound);
  // `value` <= `bound`.
  Row& at_most(const std::string& key, double value, double bound);

  bool met() const { return met_; }
  const std::string& name() const { return name_; }
  std::string json() const;
  std::string line() const;

 private:
  bool has(const std::string& key) const;
  Row& bounded(const std::string& key, double value, double bound, bool met);

  std::string name_;
  std::vector<std::pair<std::string, std::variant<double, std::string>>> fields_;
  bool limited_ = false;
  bool met_ = true;
};

using Emit = std::function<void(const Row&)>;

struct Case {
  std::string name;  // a filter selects by substring
  std::function<Status(const Settings&, const Emit&)> run;
  // Names of the rows, where a case measures several against each other: the filter selects among these instead.
  std::vector<std::string> rows = {};
  bool grid = false;  // of the large grid of make bench-report, not of every run
};

// One function per file of cases.
void add_error_cases(std::vector<Case>& cases);
void add_codec_cases(std::vector<Case>& cases);
void add_memory_cases(std::vector<Case>& cases);
void add_append_cases(std::vector<Case>& cases);
void add_batch_cases(std::vector<Case>& cases);
void add_peer_cases(std::vector<Case>& cases);
void add_encode_cases(std::vector<Case>& cases);
void add_prompt_cases(std::vector<Case>& cases);
void add_spill_cases(std::vector<Case>& cases);
void add_skip_cases(std::vector<Case>& cases);
void add_observe_cases(std::vector<Case>& cases);
void add_better_cases(std::vector<Case>& cases);
void add_device_host_cases(std::vector<Case>& cases);

// The table of docs/build/codec_error.md.
Status print_error_table();

// "AMD EPYC ..." from the operating system, once.
const std::string& hardware();

// The instruction set that our kernels use in this process.
std::string isa();

}  // namespace tierkv::bench
