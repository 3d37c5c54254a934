// metrics.cc — Prometheus' text format 0.0.4.
#include "serve/metrics.h"

#include <tuple>

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

void add_memory(std::string& out, const MemoryStats& memory) {
  out += "# HELP tierkv_kv_bytes Bytes that keys and values take, by tier\n# TYPE tierkv_kv_bytes gauge\n";
  const auto line = [&out](const char* tier, uint64_t bytes) {
    out += std::string("tierkv_kv_bytes{tier=\"") + tier + "\"} " + std::to_string(bytes) + "\n";
  };
  for (int i = 0; i < kNumTiers; ++i) line(tier_name(static_cast<Tier>(i)), memory.tier[i].bytes());
  line("parked", memory.parked_bytes);
  line("bookkeeping", memory.bookkeeping_bytes);
  line("free", memory.free_bytes);
  add(out, "gauge", "tierkv_kv_resident_bytes", "Everything the cache has in memory, calibrated tables too",
      static_cast<double>(memory.resident_bytes()));
  add(out, "gauge", "tierkv_kv_fp16_bytes", "What the same tokens would take as FP16", static_cast<double>(memory.fp16_bytes));
  add(out, "gauge", "tierkv_kv_budget_bytes", "The budget; 0: none", static_cast<double>(memory.budget_bytes));
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
  counter("prefix_misses_total", "Prompts that were read from their beginning", counts.prefix_misses);
  counter("conversations_forked_total", "Conversations that began as a copy of another", counts.forked);
  counter("conversations_parked_total", "Idle conversations that were packed", counts.parked);
  counter("conversations_woken_total", "Packed conversations that came back", counts.woken);
  counter("conversations_dropped_total", "Idle conversations that were forgotten", counts.dropped);
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
  add_memory(out, gauges.memory);
  return out;
}

}  // namespace tierkv::serve
