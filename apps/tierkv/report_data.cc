// report_data.cc — JSON in, rows out.
#include "report_data.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "common.h"
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

void read_name(ResultName& name, const json& value, const std::string& where) {
  name.model = text(value, "model", "", where);
  name.kv = text(value, "kv", "", where);
  if (name.kv.empty()) bad_input(where + " has no \"kv\"");
  const auto stock = value.find("stock");
  if (stock != value.end() && !stock->is_null() && !stock->is_boolean()) bad_input(where + " has a \"stock\" that is neither true nor false");
  name.stock = stock != value.end() && stock->is_boolean() && stock->get<bool>();
}

QualityResult quality(const json& v, const std::string& where) {
  QualityResult r;
  read_name(r, v, where);
  r.ppl = number(v, "ppl", where);
  r.delta = number_or(v, "delta", kNone, where);
  r.delta_se = number_or(v, "delta_se", kNone, where);
  r.kld = number_or(v, "kld", kNone, where);
  r.top1 = number_or(v, "top1", kNone, where);
  r.bits_archive = number_or(v, "bits_archive", kNone, where);
  r.bits_total = number_or(v, "bits_total", kNone, where);
  r.resident = number_or(v, "resident_bytes", kNone, where);
  r.tokens = number_or(v, "tokens", kNone, where);
  r.seconds = number_or(v, "seconds", kNone, where);
  r.ctx = number_or(v, "ctx", 0, where);
  return r;
}

RecallResult recall(const json& v, const std::string& where) {
  RecallResult r;
  read_name(r, v, where);
  r.task = text(v, "task", "recall", where);
  r.ctx = number(v, "ctx", where);
  r.depth = number(v, "depth", where);
  r.correct = number(v, "correct", where);
  r.total = number(v, "total", where);
  if (!(r.total > 0) || r.correct < 0 || r.correct > r.total) bad_input(where + format(" counts %g of %g", r.correct, r.total));
  return r;
}

SpeedResult speed(const json& v, const std::string& where) {
  SpeedResult r;
  read_name(r, v, where);
  r.depth = number(v, "depth", where);
  r.p50_ms = number(v, "p50_ms", where);
  r.p99_ms = number_or(v, "p99_ms", kNone, where);
  r.prefill_rate = number_or(v, "prefill_tokens_per_second", kNone, where);
  r.prefill_ratio = number_or(v, "prefill_ratio", kNone, where);
  r.ttft = number_or(v, "ttft_seconds", kNone, where);
  r.decode_rate = number_or(v, "decode_tokens_per_second", kNone, where);
  r.decode_ratio = number_or(v, "decode_ratio", kNone, where);
  r.resident = number_or(v, "resident_bytes", kNone, where);
  r.host_share = number_or(v, "host_share", kNone, where);
  return r;
}

}  // namespace

void add_result(Results& results, const json& value, const std::string& where) {
  if (!value.is_object()) bad_input(where + " is not an object");
  if (value.contains("ppl")) {
    results.quality.push_back(quality(value, where));
  } else if (value.contains("correct")) {
    results.recall.push_back(recall(value, where));
  } else if (value.contains("p50_ms")) {
    results.speed.push_back(speed(value, where));
  } else {
    bad_input(where + " is no result of tierkv ppl, recall or bench");
  }
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
