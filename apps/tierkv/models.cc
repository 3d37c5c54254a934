// models.cc — `tierkv models`: which models are known, what was learned of them, and how to forget it.
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "terminal.h"
#include "tierkv/calibration.h"
#include "tierkv/llama.h"

namespace tierkv::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv models                    what is known of which model\n"
    "  tierkv models remove 1a2b3c      forget one, by its fingerprint or a part of its name\n"
    "\n"
    "A model that has no calibration is learned while it is used. Its tables, and the sums of runs that saw too little for tables, "
    "are kept in calibration/ in $TIERKV_CACHE: numbers over many tokens, never text. `--kv balanced,calibrate=off` learns "
    "nothing.";

struct Request {
  Options options;
  std::string name;
};

// What lies in the folder for one fingerprint.
struct Known {
  std::string fingerprint, name, text, problem;
  uint64_t tokens = 0, bytes = 0, sums_bytes = 0;
  double age_days = 0.0;
  std::vector<std::string> codecs;
  std::vector<fs::path> files;
};

double age_of(const fs::path& path) {
  std::error_code failed;
  const auto written = fs::last_write_time(path, failed);
  if (failed) return 0.0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count() / 86400.0;
}

void add_tables(const fs::path& path, Known& known) {
  std::error_code ignored;
  known.bytes = fs::file_size(path, ignored);
  known.age_days = age_of(path);
  const auto loaded = load_calibration(path.string());
  if (!loaded.ok()) {
    known.problem = loaded.status().message();
    return;
  }
  const CalibrationInfo info = describe(**loaded);
  known.name = info.model;
  known.text = info.text;
  known.tokens = info.tokens;
  known.codecs = info.codecs;
}

std::vector<Known> all_known() {
  std::map<std::string, Known> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(fs::path(llama::cache_folder()) / "calibration", failed)) {
    const std::string file = entry.path().filename().string();
    const size_t end = file.find(".tkc");
    if (end == std::string::npos) continue;
    const bool tables = file.size() == end + 4, sums = file.substr(end) == ".tkc.sums";
    if (!tables && !sums) continue;
    Known& known = found[file.substr(0, end)];
    known.fingerprint = file.substr(0, end);
    known.files.push_back(entry.path());
    if (tables) {
      add_tables(entry.path(), known);
    } else {
      known.sums_bytes = entry.file_size(failed);
      if (known.bytes == 0) known.age_days = age_of(entry.path());
    }
  }
  std::vector<Known> all;
  for (auto& [fingerprint, known] : found) all.push_back(std::move(known));
  return all;
}

std::string age_text(double days) {
  if (days < 2.0 / 24) return "just now";
  if (days < 2.0) return format("%.0f hours", days * 24);
  return format("%.0f days", days);
}

std::string state_of(const Known& known) {
  if (!known.problem.empty()) return red("not usable");
  if (known.bytes == 0) return "being learned";
  return "calibrated from " + human_count(known.tokens) + " tokens";
}

json to_json(const Known& known) {
  return {{"fingerprint", known.fingerprint}, {"model", known.name},        {"text", known.text},
          {"tokens", known.tokens},           {"bytes", known.bytes},       {"codecs", known.codecs},
          {"sums_bytes", known.sums_bytes},   {"age_days", known.age_days}, {"problem", known.problem}};
}

int list(Request& request) {
  const std::vector<Known> all = all_known();
  if (request.options.text()) {
    Table table({"<fingerprint", "<model", "<state", "size", "age"});
    for (const Known& known : all) {
      table.add({known.fingerprint, known.name.empty() ? "-" : known.name.substr(0, known.name.find(" (")), state_of(known),
                 human_bytes(static_cast<double>(known.bytes + known.sums_bytes)), age_text(known.age_days)});
    }
    if (all.empty()) {
      std::printf("nothing was learned or calibrated yet: %s/calibration is empty\n", llama::cache_folder().c_str());
    } else {
      std::printf("%s", table.str().c_str());
    }
    for (const Known& known : all) {
      if (!known.problem.empty()) std::printf("%s\n", known.problem.c_str());
    }
  }
  json models = json::array();
  for (const Known& known : all) models.push_back(to_json(known));
  emit_json(request.options, {{"command", "models"}, {"folder", llama::cache_folder() + "/calibration"}, {"models", models}});
  return 0;
}

int run_list(Request& request) {
  settle(request.options);
  return list(request);
}

int run_remove(Request& request) {
  settle(request.options);
  std::vector<Known> matching;
  for (Known& known : all_known()) {
    const bool named = known.name.find(request.name) != std::string::npos;
    if (known.fingerprint.starts_with(request.name) || named) matching.push_back(std::move(known));
  }
  if (matching.empty()) bad_input("no model " + request.name + " is known: `tierkv models` lists them");
  if (matching.size() > 1) {
    std::string names;
    for (const Known& known : matching) names += (names.empty() ? "" : ", ") + known.fingerprint;
    bad_input(request.name + " is several models: " + names);
  }
  uint64_t bytes = 0;
  for (const fs::path& file : matching[0].files) {
    std::error_code failed;
    if (!fs::remove(file, failed) && failed) fail("cannot remove " + file.string() + ": " + failed.message());
  }
  bytes = matching[0].bytes + matching[0].sums_bytes;
  if (request.options.text()) {
    std::printf("forgot %s %s, %s\n", matching[0].fingerprint.c_str(), matching[0].name.c_str(),
                human_bytes(static_cast<double>(bytes)).c_str());
  }
  emit_json(request.options, {{"command", "models remove"}, {"removed", to_json(matching[0])}});
  return 0;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("models", "What was learned of which model, and how to forget it");
  command->footer(kFooter);
  auto request = std::make_shared<Request>();
  add_output_options(*command, request->options);
  command->callback([request, command, &action] {
    if (command->get_subcommands().empty()) action = [request] { return run_list(*request); };
  });
  CLI::App* remove = command->add_subcommand("remove", "forget what was learned of a model");
  remove->add_option("name", request->name, "its fingerprint, the beginning of it, or a part of the model's name")
      ->required()
      ->type_name("NAME");
  remove->callback([request, &action] { action = [request] { return run_remove(*request); }; });
}

}  // namespace tierkv::cli
