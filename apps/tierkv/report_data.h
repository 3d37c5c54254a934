// report_data.h — results of ppl, recall and bench as they come back from their JSON files.
//
// Errors: Error, bad_input, that names the file and the line (bad JSON) or the entry (a field that is missing or not what it
//         should be). Fields that a plot can do without may be missing or null.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "run_record.h"

namespace tierkv::cli {

struct ResultName {
  std::string model;  // as people know it
  std::string kv, own_label;
  bool stock = false;
  std::string label() const { return !own_label.empty() ? own_label : stock ? "stock " + kv : kv; }
};

struct QualityResult : ResultName {
  double ppl = 0, delta = 0, delta_se = 0, kld = 0, top1 = 0, bits_archive = 0, bits_total = 0, resident = 0, tokens = 0,
         seconds = 0, ctx = 0;
};
struct RecallResult : ResultName {
  std::string task;
  double ctx = 0, depth = 0, correct = 0, total = 0;
};
struct SpeedResult : ResultName {
  double depth = 0, prefill_rate = 0, prefill_ratio = 0, ttft = 0, decode_rate = 0, decode_ratio = 0, p50_ms = 0, p99_ms = 0,
         resident = 0;
  double host_share = 0;  // NaN for stock
};

// What one run of a command was about. Anything may be empty: older files say less.
struct RunNote {
  std::string command, model, text, windows;
  RunRecord run;
  bool operator==(const RunNote&) const = default;
};

struct Results {
  std::vector<QualityResult> quality;
  std::vector<RecallResult> recall;
  std::vector<SpeedResult> speed;
  std::vector<RunNote> runs;  // each once, in order of appearance
  bool empty() const { return quality.empty() && recall.empty() && speed.empty(); }
};

// Sorts one object in by its fields: "ppl", "correct" or "p50_ms" tell the command it came from. `where` names it in messages.
void add_result(Results& results, const nlohmann::json& value, const std::string& where);
// Reads a file that holds a list of such objects, or one of them. `all` gets the objects as they are.
void add_file(Results& results, const std::string& path, nlohmann::json& all);

}  // namespace tierkv::cli
