// tierkv-bench — every benchmark of the project. Each case checks itself against a reference before it is timed.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/harness.h"

namespace {

constexpr const char* kUsage =
    "usage: tierkv-bench [options]\n"
    "  --filter TEXT       only cases whose name contains TEXT (may be given again)\n"
    "  --grid              the large grid as well: every shape and length of docs/use/performance.md (half an hour, 10 GiB)\n"
    "  --list              names of the cases\n"
    "  --json              JSON lines instead of a table (the default when the output is not a terminal)\n"
    "  --json-file FILE    JSON lines into FILE, a table on the output\n"
    "  --quick             a smoke test: small shapes, few repetitions, times not judged\n"
    "  --markdown-errors   the table of docs/build/codec_error.md\n"
    "Ends with 1 when a result is wrong or a required figure is missed.\n";

struct Options {
  tierkv::bench::Settings settings;
  std::vector<std::string> filters;
  bool list = false, grid = false, json = isatty(STDOUT_FILENO) == 0, markdown = false;
  std::string json_file;
};

bool selected(const Options& options, const std::string& name) {
  if (options.filters.empty()) return true;
  for (const std::string& filter : options.filters) {
    if (name.find(filter) != std::string::npos) return true;
  }
  return false;
}

// 0 to go on, otherwise the exit status plus one.
int parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool takes_value = name == "--filter" || name == "--json-file";
    if (takes_value && i + 1 >= argc) {
      std::fprintf(stderr, "%s needs a value\n%s", name.c_str(), kUsage);
      return 3;
    }
    if (name == "--filter") options.filters.push_back(argv[++i]);
    else if (name == "--json-file") options.json_file = argv[++i], options.json = false;
    else if (name == "--grid") options.grid = true;
    else if (name == "--list") options.list = true;
    else if (name == "--json") options.json = true;
    else if (name == "--quick") options.settings.quick = true;
    else if (name == "--markdown-errors") options.markdown = true;
    else if (name == "--help" || name == "-h") return std::fputs(kUsage, stdout), 1;
    else return std::fprintf(stderr, "unknown option %s\n%s", name.c_str(), kUsage), 3;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tierkv::bench;
  Options options;
  if (const int stop = parse(argc, argv, options)) return stop - 1;
  if (options.markdown) {
    const tierkv::Status status = print_error_table();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
  }

  std::vector<Case> cases;
  add_memory_cases(cases);
  add_spill_cases(cases);
  add_skip_cases(cases);
  add_observe_cases(cases);
  add_better_cases(cases);
  add_device_host_cases(cases);
  add_append_cases(cases);
  add_batch_cases(cases);
  add_encode_cases(cases);
  add_prompt_cases(cases);
  add_error_cases(cases);
  add_codec_cases(cases);
  add_peer_cases(cases);  // last: they hold on to large caches

  FILE* file = nullptr;
  if (!options.json_file.empty() && !(file = std::fopen(options.json_file.c_str(), "w"))) {
    std::fprintf(stderr, "cannot write %s: %s\n", options.json_file.c_str(), std::strerror(errno));
    return 1;
  }
  int ran = 0, wrong = 0, missed = 0;
  options.settings.wants = [&](const std::string& name) { return selected(options, name); };
  for (const Case& c : cases) {
    if (c.grid && !options.grid) continue;
    std::vector<std::string> names = c.rows.empty() ? std::vector{c.name} : c.rows;
    std::erase_if(names, [&](const std::string& name) { return !selected(options, name); });
    if (names.empty()) continue;
    ++ran;
    if (options.list) {
      for (const std::string& name : names) std::printf("%s\n", name.c_str());
      continue;
    }
    const tierkv::Status status = c.run(options.settings, [&](const Row& row) {
      std::printf("%s\n", (options.json ? row.json() : row.line()).c_str());
      std::fflush(stdout);
      if (file) std::fprintf(file, "%s\n", row.json().c_str());
      missed += row.met() ? 0 : 1;
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s: WRONG: %s\n", c.name.c_str(), status.to_string().c_str());
      ++wrong;
    }
  }
  if (file && std::fclose(file) != 0) return std::fprintf(stderr, "cannot write %s\n", options.json_file.c_str()), 1;
  if (ran == 0) return std::fprintf(stderr, "no case matches; --list names them, --grid --list those of the grid too\n"), 1;
  if (wrong || missed) std::fprintf(stderr, "%d cases wrong, %d required figures missed\n", wrong, missed);
  return wrong || missed ? 1 : 0;
}
