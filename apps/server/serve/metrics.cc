// metrics.cc — Prometheus' text format 0.0.4.
#include "serve/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/text.h"

namespace tierkv::serve {
namespace {

using engine::format;

std::string number(double value) { return format("%.9g", value); }

// One metric without labels.
void add(std::string& out, const char* type, const std::string& name, const char* help, double value) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n" + name + " " + number(value) + "\n";
}

double rate(uint64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; }

// One metric with a label, and its values.
void add_labelled(std::string& out, const char* type, const std::string& name, const char* help, const char* label,
                  const std::vector<std::pair<const char*, uint64_t>>& values) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  for (const auto& [value, count] : values) out += name + "{" + label + "=\"" + value + "\"} " + std::to_string(count) + "\n";
}

void add_memory(std::string& out, const Gauges& gauges) {
  const MemoryStats& memory = gauges.memory;
  std::vector<std::pair<const char*, uint64_t>> bytes, tokens;
  for (int i = 0; i < kNumTiers; ++i) {
    const char* tier = tier_name(static_cast<Tier>(i));
    bytes.emplace_back(tier, memory.tier[i].bytes());
    tokens.emplace_back(tier, memory.tier[i].tokens / std::max(1u, gauges.streams));
  }
  bytes.insert(bytes.end(),
               {{"parked", memory.parked_bytes}, {"bookkeeping", memory.bookkeeping_bytes}, {"free", memory.free_bytes}});
  tokens.emplace_back("parked", memory.parked_tokens / std::max(1u, gauges.streams));
  add_labelled(out, "gauge", "tierkv_kv_bytes", "Bytes that keys and values take, by tier", "tier", bytes);
  std::vector<std::pair<const char*, uint64_t>> moved;
  for (const Tier tier : {Tier::sink, Tier::warm, Tier::archive}) {
    moved.emplace_back(tier_name(tier), memory.graduated[static_cast<int>(tier)] / std::max(1u, gauges.streams));
  }
  add_labelled(out, "counter", "tierkv_kv_graduated_tokens_total", "Tokens that moved into a tier", "tier", moved);
  add(out, "counter", "tierkv_kv_evicted_tokens_total", "Tokens that an eviction policy let go",
      static_cast<double>(memory.evicted / std::max(1u, gauges.streams)));
  add_labelled(out, "gauge", "tierkv_kv_tokens", "Tokens in the cache, by tier", "tier", tokens);
  const auto gauge = [&out](const char* name, const char* help, double value) { add(out, "gauge", name, help, value); };
  gauge("tierkv_kv_resident_bytes", "Everything the cache has in memory, calibrated tables too",
        static_cast<double>(memory.resident_bytes()));
  gauge("tierkv_kv_fp16_bytes", "What the same tokens would take as FP16", static_cast<double>(memory.fp16_bytes));
  gauge("tierkv_kv_budget_bytes", "The budget; 0: none", static_cast<double>(memory.budget_bytes));
  gauge("tierkv_kv_peak_bytes", "The most that the cache had so far", static_cast<double>(memory.peak_bytes));
}

void add_quality(std::string& out, const QualityMetrics& quality) {
  add(out, "counter", "tierkv_quality_samples_total", "Measurements of quality", static_cast<double>(quality.samples));
  add(out, "counter", "tierkv_quality_adaptations_total", "Times that a threshold was moved",
      static_cast<double>(quality.adaptations));
  add(out, "gauge", "tierkv_quality_score", "Mean of the last 100 measurements; 1 is as good as FP16", quality.recent_mean);
  add(out, "gauge", "tierkv_quality_target", "What it shall be", quality.target);
}

// Of the whole process, by the name that Prometheus' own libraries have for it.
void add_process(std::string& out) {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  if (!(file >> pages >> resident)) return;
  add(out, "gauge", "process_resident_memory_bytes", "Resident memory of the process",
      static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)));
}

void add_ours(std::string& out, const Counts& counts, const Gauges& gauges) {
  const auto counter = [&out](const char* name, const char* help, uint64_t value) {
    add(out, "counter", std::string("tierkv_") + name, help, static_cast<double>(value));
  };
  counter("requests_total", "Answers that were asked for", counts.requests);
  counter("requests_refused_total", "Requests that found the queue full or the budget used up", counts.refused);
  counter("requests_abandoned_total", "Answers whose client left", counts.abandoned);
  counter("requests_timed_out_total", "Answers that took too long", counts.timed_out);
  counter("requests_failed_total", "Answers that failed", counts.failed);
  counter("requests_suspended_total", "Answers that waited for memory", counts.suspended);
  add_labelled(out, "counter", "tierkv_prefix_hits_total", "Prompts whose beginning was known", "source",
               {{"memory", counts.prefix_hits}, {"disk", counts.prefix_hits_disk}});
  add_labelled(out, "counter", "tierkv_prefix_tokens_total", "Tokens of prompts that were known", "source",
               {{"memory", counts.prefix_tokens}, {"disk", counts.prefix_tokens_disk}});
  counter("prefix_misses_total", "Prompts that were read from their beginning", counts.prefix_misses);
  counter("conversations_forked_total", "Conversations that began as a copy of another", counts.forked);
  counter("conversations_parked_total", "Idle conversations that were packed", counts.parked);
  counter("conversations_woken_total", "Packed conversations that came back", counts.woken);
  counter("conversations_dropped_total", "Idle conversations that were forgotten", counts.dropped);
  counter("prompt_tokens_total", "Tokens of prompts that were read", counts.prompt_tokens);
  counter("written_tokens_total", "Tokens that were written", counts.written_tokens);
  add(out, "gauge", "tierkv_slots", "Answers that can be written at a time", gauges.slots);
  add(out, "gauge", "tierkv_requests_running", "Answers under way", gauges.busy);
  add(out, "gauge", "tierkv_requests_waiting", "Answers that wait for their turn", gauges.waiting);
  add(out, "gauge", "tierkv_conversations", "Conversations in memory", gauges.conversations);
  add(out, "gauge", "tierkv_conversations_parked", "Those of them that are packed", gauges.parked);
  for (const auto& [name, help, histogram] :
       {std::tuple("tierkv_time_to_first_token_seconds", "From a request to its first token", &counts.first_token),
        std::tuple("tierkv_inter_token_seconds", "From one token of an answer to the next", &counts.between_tokens)}) {
    out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " histogram\n" + histogram->text(name);
  }
}

void add_llama_server_s(std::string& out, const Counts& counts, const Gauges& gauges) {
  const auto line = [&out](const char* type, const char* name, const char* help, double value) {
    add(out, type, std::string("llamacpp:") + name, help, value);
  };
  line("counter", "prompt_tokens_total", "Prompt tokens read", static_cast<double>(counts.prompt_tokens));
  line("counter", "prompt_tokens_cached_total", "Prompt tokens that were in memory", static_cast<double>(counts.cached_tokens));
  line("counter", "prompt_seconds_total", "Time spent on prompts", counts.prompt_s);
  line("counter", "tokens_predicted_total", "Tokens written", static_cast<double>(counts.written_tokens));
  line("counter", "tokens_predicted_seconds_total", "Time spent on writing", counts.written_s);
  line("counter", "n_decode_total", "Steps", static_cast<double>(counts.steps));
  line("counter", "n_tokens_max", "The longest sequence so far", static_cast<double>(counts.longest));
  line("gauge", "prompt_tokens_seconds", "Prompt tokens a second", rate(counts.prompt_tokens, counts.prompt_s));
  line("gauge", "predicted_tokens_seconds", "Tokens written a second", rate(counts.written_tokens, counts.written_s));
  line("gauge", "requests_processing", "Answers under way", gauges.busy);
  line("gauge", "requests_deferred", "Answers that wait for their turn", gauges.waiting);
  line("gauge", "n_busy_slots_per_decode", "Answers under way in a step, on average",
       counts.steps ? static_cast<double>(counts.busy_slots) / static_cast<double>(counts.steps) : 0.0);
}

}  // namespace

void Histogram::add(double seconds) {
  for (size_t i = 0; i < kBounds.size(); ++i) at_most_[i] += seconds <= kBounds[i];
  sum_ += seconds;
  ++count_;
}

std::string Histogram::text(const std::string& name) const {
  std::string out;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    out += name + "_bucket{le=\"" + number(kBounds[i]) + "\"} " + std::to_string(at_most_[i]) + "\n";
  }
  out += name + "_bucket{le=\"+Inf\"} " + std::to_string(count_) + "\n";
  return out + name + "_sum " + number(sum_) + "\n" + name + "_count " + std::to_string(count_) + "\n";
}

std::string prometheus_text(const Counts& counts, const Gauges& gauges) {
  std::string out;
  add_llama_server_s(out, counts, gauges);
  add_ours(out, counts, gauges);
  add_memory(out, gauges);
  add_quality(out, gauges.quality);
  add_process(out);
  add_labelled(out, "gauge", "tierkv_build_info", "The version that runs", "version", {{gauges.version.c_str(), 1}});
  return out;
}

}  // namespace tierkv::serve
