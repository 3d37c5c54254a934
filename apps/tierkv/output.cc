// output.cc — JSON on stdout or in a file, and the memory in it.
#include "output.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/files.h"

namespace tierkv::cli {
namespace {

bool json_expected = false;  // on stdout, and not there yet

}  // namespace

void emit_json(const Options& options, const nlohmann::json& value) {
  if (!options.json) return;
  const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (options.json_only()) {
    json_expected = false;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return;
  }
  write_file(options.json_file, [&](const Sink& sink) { sink(text.data(), text.size()); });
}

void expect_json_on_stdout() { json_expected = true; }

void emit_failure(int exit_code, const std::string& sentence) {
  if (!json_expected) return;
  Options options;
  options.json = true;
  emit_json(options, {{"error", sentence}, {"exit_code", exit_code}});
}

nlohmann::json memory_json(const MemoryStats& stats, uint32_t head_dim) {
  nlohmann::json tiers = nlohmann::json::object();
  for (int t = 0; t < kNumTiers; ++t) {
    const TierMemory& tier = stats.tier[t];
    tiers[tier_name(static_cast<Tier>(t))] = {{"rows", tier.tokens},
                                              {"payload_bytes", tier.payload_bytes},
                                              {"overhead_bytes", tier.overhead_bytes},
                                              {"bits_per_value", tier.bits_per_value(head_dim)}};
  }
  return {{"tiers", tiers},
          {"bookkeeping_bytes", stats.bookkeeping_bytes},
          {"parked_bytes", stats.parked_bytes},
          {"free_bytes", stats.free_bytes},
          {"table_bytes", stats.table_bytes},
          {"total_bytes", stats.total_bytes},
          {"resident_bytes", stats.resident_bytes()},
          {"peak_bytes", stats.peak_bytes},
          {"fp16_bytes", stats.fp16_bytes},
          {"compression", stats.compression()}};
}

void add_skipped(nlohmann::json& value, uint64_t read, uint64_t skipped, double mass) {
  value["read_blocks"] = read;
  value["skipped_blocks"] = skipped;
  value["skipped_mass"] = mass;
}

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    auto take = [&](const char* key, uint64_t& value) {
      if (line.rfind(key, 0) == 0) value = 1024 * std::strtoull(line.c_str() + std::strlen(key), nullptr, 10);
    };
    take("VmRSS:", memory.rss);
    take("VmHWM:", memory.peak);
    take("RssAnon:", memory.anonymous);
  }
  return memory;
}

void add_process_memory(nlohmann::json& value, const ProcessMemory& memory) {
  value["rss_bytes"] = memory.rss;
  value["rss_peak_bytes"] = memory.peak;
  value["rss_anonymous_bytes"] = memory.anonymous;
}

}  // namespace tierkv::cli
