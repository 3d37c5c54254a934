#include "bench/harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>

#include "commit.h"
#include "quant/isa.h"

namespace tierkv::bench {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed_ns(Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

std::string formatted(double value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  if (value == std::floor(value) && std::fabs(value) < 1e15) std::snprintf(text, sizeof text, "%.0f", value);
  else std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

std::string readable_time(double ns) {
  char text[64];
  if (ns < 1e3) std::snprintf(text, sizeof text, "%.0f ns", ns);
  else if (ns < 1e6) std::snprintf(text, sizeof text, "%.2f us", ns / 1e3);
  else if (ns < 1e9) std::snprintf(text, sizeof text, "%.2f ms", ns / 1e6);
  else std::snprintf(text, sizeof text, "%.2f s", ns / 1e9);
  return text;
}

}  // namespace

Timing measure(const Settings& settings, const std::function<void()>& work) {
  const int samples = settings.quick ? 3 : 15;
  const double sample_ns = settings.quick ? 1e5 : 2e7;  // long enough that the clock's own cost and grain vanish
  const double total_ns = settings.quick ? 2e7 : 2e9;   // slow work gets fewer samples, three at least

  work();
  auto start = Clock::now();
  work();
  const double once = std::max(1.0, elapsed_ns(start));
  const int calls = static_cast<int>(std::clamp(std::ceil(sample_ns / once), 1.0, 1e6));

  std::vector<double> times;
  const auto begin = Clock::now();
  while (static_cast<int>(times.size()) < samples && (times.size() < 3 || elapsed_ns(begin) < total_ns)) {
    start = Clock::now();
    for (int i = 0; i < calls; ++i) work();
    times.push_back(elapsed_ns(start) / calls);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), static_cast<int>(times.size())};
}

Row& Row::number(const std::string& key, double value) {
  fields_.emplace_back(key, value);
  return *this;
}

Row& Row::text(const std::string& key, std::string value) {
  fields_.emplace_back(key, std::move(value));
  return *this;
}

Row& Row::timing(const Timing& timing) {
  return number("median_ns", timing.median_ns).number("min_ns", timing.min_ns).number("samples", timing.samples);
}

Row& Row::attention(uint32_t threads, const Timing& t) {
  number("threads", threads).text("isa", isa()).number("median_ms", t.median_ns / 1e6).number("min_ms", t.min_ns / 1e6);
  number("waited", t.waited);
  return timing(t);
}

Row& Row::at_least(const std::string& key, double value, double bound) { return bounded(key, value, bound, value >= bound); }

Row& Row::at_most(const std::string& key, double value, double bound) { return bounded(key, value, bound, value <= bound); }

Row& Row::bounded(const std::string& key, double value, double bound, bool met) {
  limited_ = true;
  met_ = met_ && met;
  return number(key, value).number(key + "_required", bound);
}

bool Row::has(const std::string& key) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const auto& field) { return field.first == key; });
}

std::string Row::json() const {
  std::string out = "{\"case\":" + quoted(name_);
  for (const auto& [key, value] : fields_) {
    out += "," + quoted(key) + ":";
    out += std::holds_alternative<double>(value) ? formatted(std::get<double>(value)) : quoted(std::get<std::string>(value));
  }
  if (limited_) out += std::string(",\"met\":") + (met_ ? "true" : "false");
  return out + ",\"hardware\":" + quoted(hardware()) + ",\"version\":\"" TIERKV_VERSION "\",\"commit\":\"" TIERKV_COMMIT "\"}";
}

std::string Row::line() const {
  std::string out = name_;
  out.resize(std::max<size_t>(out.size() + 1, 46), ' ');
  for (const auto& [key, value] : fields_) {
    static const std::set<std::string> kJsonOnly = {"min_ns",         "min_ms",       "samples",     "peer_isa",
                                                    "peer_min_ms",    "peer_samples", "peer_waited", "ceiling_gbps",
                                                    "ceiling_waited", "queries",      "error",       "peer_error"};
    if (kJsonOnly.contains(key) || (key == "median_ns" && has("median_ms"))) continue;
    const bool time = key.ends_with("_ns");
    const std::string shown = std::holds_alternative<std::string>(value) ? std::get<std::string>(value)
                              : time                                     ? readable_time(std::get<double>(value))
                                                                         : formatted(std::get<double>(value));
    out += "  " + (time ? key.substr(0, key.size() - 3) : key) + " " + shown;
  }
  if (limited_) out += met_ ? "  (met)" : "  (MISSED)";
  return out;
}

std::string isa() { return std::string(quant::active_isa()); }

const std::string& hardware() {
  static const std::string name = [] {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
      const size_t colon = line.find(": ");
      if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
    }
    return std::string("unknown");
  }();
  return name;
}

}  // namespace tierkv::bench
