// run_record.h — when, where and how results were made: what a report says beside them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "options.h"

namespace tierkv::cli {

struct RunRecord {
  std::string date;       // "2026-03-01 14:05 UTC"
  std::string machine;    // processor, cores and memory; no name of a host
  std::string version;    // of tierkv
  std::string arguments;  // the command line as a shell would take it, beginning with "tierkv"
  bool operator==(const RunRecord&) const = default;
};
// Of this process, now.
RunRecord this_run();
nlohmann::json run_json(const RunRecord& run);

// emit_json() of a list of results, each with this run as its "run".
void emit_results(const Options& options, nlohmann::json values);

// A word as a shell would take it: as it is, or in single quotes.
std::string shell_word(const std::string& word);

}  // namespace tierkv::cli
