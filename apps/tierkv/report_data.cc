// report_data.cc — JSON in, rows out.
#include "report_data.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "files.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const json& value, const char* key, const std::string& where) {
  const auto found = value.find(key);
  if (found == value.end() || !found->is_number()) bad_input(where + " has no number \"" + key + "\"");
  return found->get<double>();
}

double number_or(const json& value, const char* key, double fallback, const std::string& where) {
  const auto found = value.find(key);
  return found == value.end() || found->is_null() ? fallback : number(value, key, where);
}

std::string text(const json& value, const char* key, const std::string& fallback, const std::string& where) {
  const auto found = value.find(key);
  if (found == value.end() || found->is_null()) return fallback;
  if (!found->is_string()) bad_input(where + " has a \"" + key + "\" that is not a text");
  return found->get<std::string>();
}

// The name that people know. Results of before it was recorded have only the file's own.
std::string model_name(const json& value, const std::string& where) {
  return text(value, "title", text(value, "model", "", where), where);
}

void read_name(ResultName& name, const json& value, const std::string& where) {
  name.model = model_name(value, where);
  name.own_label = text(value, "label", "", where);
  name.kv = text(value, "kv", "", where);
  if (name.kv.empty()) bad_input(where + " has no \"kv\"");
  const auto stock = value.find("stock");
  if (stock != value.end() && !stock->is_null() && !stock->is_boolean())
    bad_input(where + " has a \"stock\" that is neither true nor false");
  name.stock = stock != value.end() && stock->is_boolean() && stock->get<bool>();
}

// A number of a result: where it goes, and what stands for it when it is missing or null. Without `optional` it must be there.
template <class R>
struct Field {
  const char* key;
  double R::*member;
  bool optional = true;
  double fallback = kNone;
};

template <class R, size_t kCount>
R read(const json& v, const Field<R> (&fields)[kCount], const std::string& where) {
  R r;
  read_name(r, v, where);
  for (const Field<R>& field : fields) {
    r.*field.member = field.optional ? number_or(v, field.key, field.fallback, where) : number(v, field.key, where);
  }
  return r;
}

constexpr Field<QualityResult> kQuality[] = {
    {"ppl", &QualityResult::ppl, false},
    {"delta", &QualityResult::delta},
    {"delta_se", &QualityResult::delta_se},
    {"kld", &QualityResult::kld},
    {"top1", &QualityResult::top1},
    {"bits_archive", &QualityResult::bits_archive},
    {"bits_total", &QualityResult::bits_total},
    {"resident_bytes", &QualityResult::resident},
    {"tokens", &QualityResult::tokens},
    {"seconds", &QualityResult::seconds},
    {"ctx", &QualityResult::ctx, true, 0.0},
};

constexpr Field<RecallResult> kRecall[] = {
    {"ctx", &RecallResult::ctx, false},
    {"depth", &RecallResult::depth, false},
    {"correct", &RecallResult::correct, false},
    {"total", &RecallResult::total, false},
};

constexpr Field<SpeedResult> kSpeed[] = {
    {"depth", &SpeedResult::depth, false},
    {"p50_ms", &SpeedResult::p50_ms, false},
    {"p99_ms", &SpeedResult::p99_ms},
    {"prefill_tokens_per_second", &SpeedResult::prefill_rate},
    {"prefill_ratio", &SpeedResult::prefill_ratio},
    {"ttft_seconds", &SpeedResult::ttft},
    {"decode_tokens_per_second", &SpeedResult::decode_rate},
    {"decode_ratio", &SpeedResult::decode_ratio},
    {"resident_bytes", &SpeedResult::resident},
    {"host_share", &SpeedResult::host_share},
};

RecallResult recall(const json& v, const std::string& where) {
  RecallResult r = read(v, kRecall, where);
  r.task = text(v, "task", "recall", where);
  if (!(r.total > 0) || r.correct < 0 || r.correct > r.total) bad_input(where + format(" counts %g of %g", r.correct, r.total));
  return r;
}

// "4 windows of 4,096 tokens", or the lengths that were asked for.
std::string windows_of(const json& value, const std::string& where) {
  const double ctx = number_or(value, "ctx", 0.0, where), windows = number_or(value, "windows", 0.0, where);
  if (!(ctx > 0)) return "";
  const std::string tokens = human_count(static_cast<uint64_t>(ctx)) + " tokens";
  return windows > 0 ? format("%.0f window%s of ", windows, windows == 1 ? "" : "s") + tokens : tokens;
}

void note_run(Results& results, const json& value, const std::string& where) {
  RunNote note;
  note.command = text(value, "command", "", where);
  note.model = model_name(value, where);
  note.text = text(value, "text", text(value, "haystack", "", where), where);
  note.windows = windows_of(value, where);
  if (const auto run = value.find("run"); run != value.end() && run->is_object()) {
    note.run = {text(*run, "date", "", where), text(*run, "machine", "", where), text(*run, "version", "", where),
                text(*run, "arguments", "", where)};
  }
  // One run asks at several lengths.
  for (RunNote& known : results.runs) {
    const std::string windows = std::exchange(note.windows, known.windows);
    if (known == note) {
      if (!windows.empty() && (", " + known.windows + ",").find(", " + windows + ",") == std::string::npos)
        known.windows += (known.windows.empty() ? "" : ", ") + windows;
      return;
    }
    note.windows = windows;
  }
  results.runs.push_back(std::move(note));
}

}  // namespace

void add_result(Results& results, const json& value, const std::string& where) {
  if (!value.is_object()) bad_input(where + " is not an object");
  if (value.contains("ppl")) {
    results.quality.push_back(read(value, kQuality, where));
  } else if (value.contains("correct")) {
    results.recall.push_back(recall(value, where));
  } else if (value.contains("p50_ms")) {
    results.speed.push_back(read(value, kSpeed, where));
  } else {
    bad_input(where + " is no result of tierkv ppl, recall or bench");
  }
  note_run(results, value, where);
}

void add_file(Results& results, const std::string& path, json& all) {
  const std::string content = read_file(path);
  json value;
  try {
    value = json::parse(content);
  } catch (const json::parse_error& problem) {
    const size_t at = std::min<size_t>(problem.byte == 0 ? 0 : problem.byte - 1, content.size());
    const auto line = 1 + std::count(content.begin(), content.begin() + static_cast<ptrdiff_t>(at), '\n');
    const char* what = at >= content.size() ? "it ends too early" : "this is not JSON";
    bad_input(format("%s, line %ld: %s", path.c_str(), static_cast<long>(line), what));
  }
  if (!value.is_array()) value = json::array({value});
  if (value.empty()) bad_input(path + " holds no results");
  for (size_t i = 0; i < value.size(); ++i) {
    add_result(results, value[i], path + format(", entry %zu,", i + 1));
    all.push_back(value[i]);
  }
}

}  // namespace tierkv::cli
