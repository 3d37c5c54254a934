// common.h — what every command of `tierkv` shares: options, errors, Ctrl-C, JSON output.
//
// Errors:   a command throws Failure; main() prints its one sentence on stderr and exits with its code. 2 is for what the user can
//           change (input, files, options), 1 for everything else, 130 for an interruption.
// Output:   results go to stdout, everything else to stderr. `--json` alone sends JSON to stdout in place of the text;
//           `--json FILE` writes FILE as well as the text, under its final name only when complete. Failures too are JSON on stdout
//           then: {"error": ..., "exit_code": ...}, beside the sentence on stderr.
// Threads:  interrupted() may be called from any thread; the rest is the main thread's.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace CLI {
class App;
}

namespace tierkv::cli {

inline constexpr int kRuntimeError = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kInterrupted = 130;

class Failure : public std::runtime_error {
 public:
  Failure(int exit_code, const std::string& sentence) : std::runtime_error(sentence), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Thrown where work stops because of Ctrl-C.
class Interrupted : public Failure {
 public:
  Interrupted() : Failure(kInterrupted, "interrupted") {}
};

[[noreturn]] void bad_input(const std::string& sentence);
// Throws what a failed call of the library means for the user; `what` goes before its message ("cannot read x.tkv").
void check(const Status& status, const std::string& what = "");
template <class T>
T take(Result<T>&& result, const std::string& what = "") {
  check(result.status(), what);
  return std::move(result).value();
}

// --- Ctrl-C: the first sets a flag that commands poll, the second ends the process at once.
void install_interrupt_handler();
bool interrupted();
void clear_interrupt();  // a command that survives the first (chat) starts anew

// --- options
struct Options {
  std::string model = "smollm2";  // a path or a known name
  std::vector<std::string> kv;    // presets, files or inline forms
  bool json = false;
  std::string json_file;  // empty or "-": stdout
  uint32_t threads = 0;   // 0: settle() takes all cores
  uint32_t seed = 42;
  bool quiet = false;

  // JSON takes the place of the text on stdout.
  bool json_only() const { return json && (json_file.empty() || json_file == "-"); }
  // Text for people is wanted on stdout.
  bool text() const { return !json_only(); }
};

// Each adds its options to a command. --kv is checked by parse_kv() before a model is loaded.
void add_output_options(CLI::App& app, Options& options);                                                // --json --quiet
void add_model_option(CLI::App& app, Options& options);                                                  // -m --threads
void add_kv_option(CLI::App& app, Options& options, const std::string& fallback, bool compares = true);  // compares: takes several
void add_seed_option(CLI::App& app, Options& options);

// To be called first: as many threads as the machine has when the user gave no number, and a --json FILE that can be written.
void settle(Options& options);
// Refuses a file that cannot be written, before an hour of work rather than after it. Empty: nothing to write.
void check_writable(const std::string& path);
// Takes the place of what CLI11 cannot know: in `snapshot inspect --json FILE` the file is the one to look into.
void settle_json(Options& options, std::string& positional);
// Refuses a specification that can never work, before time is spent on a model.
void check_kv(const std::vector<std::string>& specs);

void emit_json(const Options& options, const nlohmann::json& value);
// What a script that asked for JSON on stdout gets when there is no result: {"error": sentence, "exit_code": code}. Nothing where
// settle() found that text is wanted there, or when a result has been written.
void emit_failure(int exit_code, const std::string& sentence);
void expect_json_on_stdout();  // settle() does it; main() for options that cannot be parsed
nlohmann::json memory_json(const MemoryStats& stats, uint32_t head_dim);

// What the kernel says this process has in memory: weights (mapped from their file), compute buffers and every session together.
struct ProcessMemory {
  uint64_t rss = 0, peak = 0, anonymous = 0;  // anonymous: without mapped files
};
ProcessMemory process_memory();
// Into a result, beside its resident_bytes: rss_bytes, rss_peak_bytes, rss_anonymous_bytes.
void add_process_memory(nlohmann::json& value, const ProcessMemory& memory);

// --- files
std::string read_file(const std::string& path);
// Writes to a temporary file beside `path`, then renames: a reader sees the old file or the whole new one, and a failure (a full
// disk) leaves nothing behind. `write` gets a function that appends bytes.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::string& path, const std::function<void(const Sink&)>& write);
// Where the program's own files are (docs, scripts): beside the binary, in the installed share folder, or in the source tree.
std::string find_shared(const std::string& relative);

}  // namespace tierkv::cli
