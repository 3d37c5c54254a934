// run_record.cc — asks the clock and the kernel.
#include "run_record.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "output.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  char text[32] = "";
  if (gmtime_r(&time, &parts) != nullptr) (void)std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

// What stands behind the key of a file with lines "key : value".
std::string field(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.rfind(key, 0) != 0 || colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string machine() {
  std::string processor = field("/proc/cpuinfo", "model name");
  if (processor.empty()) processor = "unknown processor";
  const unsigned cores = std::thread::hardware_concurrency();
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return processor + format(", %u core%s, ", cores, cores == 1 ? "" : "s") + human_bytes(memory) + " of memory";
}

std::string arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text, word;
  std::getline(in, word, '\0');  // the program, wherever it lies
  text = "tierkv";
  while (std::getline(in, word, '\0')) text += " " + shell_word(word);
  return text;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=,./:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

RunRecord this_run() { return {now(), machine(), TIERKV_VERSION, arguments()}; }

nlohmann::json run_json(const RunRecord& run) {
  return {{"date", run.date}, {"machine", run.machine}, {"version", run.version}, {"arguments", run.arguments}};
}

void emit_results(const Options& options, nlohmann::json values) {
  if (!options.json) return;
  const nlohmann::json run = run_json(this_run());
  for (nlohmann::json& value : values) value["run"] = run;
  emit_json(options, values);
}

}  // namespace tierkv::cli
