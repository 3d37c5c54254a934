// output.h — results as JSON.
//
// Results go to stdout, everything else to stderr. `--json` alone sends JSON to stdout in place of the text; `--json FILE` writes
// FILE as well as the text, under its final name only when complete. Failures too are JSON on stdout then:
// {"error": ..., "exit_code": ...}, beside the sentence on stderr.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "options.h"
#include "tierkv/stats.h"

namespace tierkv::cli {

void emit_json(const Options& options, const nlohmann::json& value);
// What a script that asked for JSON on stdout gets when there is no result: {"error": sentence, "exit_code": code}. Nothing where
// settle() found that text is wanted there, or when a result has been written.
void emit_failure(int exit_code, const std::string& sentence);
void expect_json_on_stdout();  // settle() does it; main() for options that cannot be parsed
nlohmann::json memory_json(const MemoryStats& stats, uint32_t head_dim);
// What `skip` did, into a result of a setting that has it: read_blocks, skipped_blocks, skipped_mass.
void add_skipped(nlohmann::json& value, uint64_t read, uint64_t skipped, double mass);

// What the kernel says this process has in memory: weights (mapped from their file), compute buffers and every session together.
struct ProcessMemory {
  uint64_t rss = 0, peak = 0, anonymous = 0;  // anonymous: without mapped files
};
ProcessMemory process_memory();
// Into a result, beside its resident_bytes: rss_bytes, rss_peak_bytes, rss_anonymous_bytes.
void add_process_memory(nlohmann::json& value, const ProcessMemory& memory);

}  // namespace tierkv::cli
