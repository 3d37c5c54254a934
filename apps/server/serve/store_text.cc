#include "serve/store_text.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tierkv::serve {
namespace {

using nlohmann::json;

constexpr std::pair<const char*, size_t> kReasons[] = {{"unreadable", 0}, {"cut", 1}, {"foreign", 2}, {"damaged", 3}};

void add(std::string& out, const char* type, const std::string& name, const char* help,
         const std::vector<std::pair<std::string, uint64_t>>& values) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  for (const auto& [labels, value] : values) out += name + labels + " " + std::to_string(value) + "\n";
}

std::string label(const char* key, const char* value) { return std::string("{") + key + "=\"" + value + "\"}"; }

}  // namespace

std::string store_metrics(const StoreCounts& store) {
  std::string out;
  add(out, "gauge", "tierkv_store_bytes", "Bytes of the prefix store on disk", {{"", store.bytes}});
  add(out, "gauge", "tierkv_store_limit_bytes", "Bytes that it may have", {{"", store.most_bytes}});
  add(out, "gauge", "tierkv_store_chunks", "Files of the prefix store", {{"", store.files}});
  add(out, "gauge", "tierkv_store_waiting_bytes", "Bytes that wait to be written", {{"", store.waiting_bytes}});
  add(out, "counter", "tierkv_store_written_bytes_total", "Bytes written to it", {{"", store.written_bytes}});
  add(out, "counter", "tierkv_store_loaded_bytes_total", "Bytes read from it", {{"", store.loaded_bytes}});
  add(out, "counter", "tierkv_store_evicted_total", "Files removed to make room", {{"", store.evicted_chunks}});
  add(out, "counter", "tierkv_store_skipped_total", "Chunks that were not written: too many waited, or the disk refused",
      {{"", store.skipped_chunks}});
  add(out, "counter", "tierkv_store_write_errors_total", "Writes that the disk refused", {{"", store.failed_writes}});
  add(out, "counter", "tierkv_store_late_total", "Chunks that came too late: their prompt was being read",
      {{"", store.late_loads}});
  std::vector<std::pair<std::string, uint64_t>> rejected;
  for (const auto& [reason, at] : kReasons) rejected.emplace_back(label("reason", reason), store.rejected[at]);
  add(out, "counter", "tierkv_store_rejected_total", "Files that were not what they said, by what was wrong", rejected);
  return out;
}

json store_json(PrefixStore* store) {
  if (store == nullptr) return nullptr;
  const StoreCounts counts = store->counts();
  json rejected;
  for (const auto& [reason, at] : kReasons) rejected[reason] = counts.rejected[at];
  return {{"folder", store->folder()},
          {"bytes", counts.bytes},
          {"limit_bytes", counts.most_bytes},
          {"chunks", counts.files},
          {"waiting_bytes", counts.waiting_bytes},
          {"written_bytes", counts.written_bytes},
          {"loaded_bytes", counts.loaded_bytes},
          {"evicted", counts.evicted_chunks},
          {"skipped", counts.skipped_chunks},
          {"write_errors", counts.failed_writes},
          {"late", counts.late_loads},
          {"rejected", rejected},
          {"last_error", counts.last_error.empty() ? json(nullptr) : json(counts.last_error)}};
}

}  // namespace tierkv::serve
