// One decoding step over 32K tokens of `balanced` in a quarter of its bytes, the rest in the cold file, against the same with all
// of it in memory: one layer, in turns, in one process. The file is in the system's page cache as soon as it was written.
#include <algorithm>
#include <filesystem>

#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

Status attend(const FilledCache& filled, std::vector<float>& out) {
  out.resize(filled.queries.size());
  return filled.cache->attention(filled.seq, 0, RowsView::f32(filled.queries.data(), 1, 32, 128), out.data());
}

// Alternating, so that what else the machine does meets both.
Status time_both(const Settings& settings, const FilledCache& a, const FilledCache& b, double& a_ns, double& b_ns) {
  std::vector<double> times[2];
  const FilledCache* both[] = {&a, &b};
  Settings once = settings;
  once.quick = true;
  std::vector<float> out;
  for (int round = 0; round < (settings.quick ? 2 : 12); ++round) {
    for (int i = 0; i < 2; ++i) {
      Status status;
      times[i].push_back(measure(once, [&] { status = attend(*both[i], out); }).median_ns);
      TIERKV_RETURN_IF_ERROR(status);
    }
  }
  for (auto& t : times) std::sort(t.begin(), t.end());
  a_ns = times[0][times[0].size() / 2];
  b_ns = times[1][times[1].size() / 2];
  return {};
}

void add_case(std::vector<Case>& cases, const std::string& label, const std::string& mode) {
  const std::string name = "cache/balanced/spill-" + label + "/32Kx8x128";
  cases.push_back(
      {name, [=](const Settings& settings, const Emit& emit) -> Status {
         const uint32_t tokens = settings.quick ? 8192 : 32768;
         TIERKV_ASSIGN_OR_RETURN(const FilledCache whole, fill_cache("balanced", tokens));
         const MemoryStats all = whole.cache->memory_usage();
         const uint64_t budget = all.total_bytes / (settings.quick ? 2 : 4);
         TIERKV_ASSIGN_OR_RETURN(const FilledCache few,
                                 fill_cache("balanced,cold=" + std::filesystem::temp_directory_path().string() + ",spill=" + mode +
                                                ",budget=" + std::to_string(budget),
                                            tokens));
         if (mode == "exact") TIERKV_RETURN_IF_ERROR(few.check_attention(6e-2));
         double whole_ns = 0, few_ns = 0;
         const ColdStats before = few.cache->cold_usage();
         TIERKV_RETURN_IF_ERROR(time_both(settings, whole, few, whole_ns, few_ns));
         const ColdStats after = few.cache->cold_usage();
         const MemoryStats memory = few.cache->memory_usage();
         const auto loaded = static_cast<double>(after.loaded - before.loaded);
         const auto left_out = static_cast<double>(after.left_out - before.left_out);
         Row row(name);
         row.number("bytes", static_cast<double>(memory.total_bytes)).number("peak_bytes", static_cast<double>(memory.peak_bytes));
         row.number("all_bytes", static_cast<double>(all.total_bytes));
         row.number("spilled_share", static_cast<double>(memory.spilled_tokens) / (8.0 * tokens));
         row.number("left_out_share", left_out / std::max(1.0, left_out + loaded)).number("left_out_mass", after.left_out_mass);
         row.number("ns", few_ns).number("all_ns", whole_ns).number("ratio", whole_ns / few_ns);
         emit(row);
         return {};
       }});
}

}  // namespace

void add_spill_cases(std::vector<Case>& cases) {
  add_case(cases, "exact", "exact");
  add_case(cases, "top32", "top:32");
  add_case(cases, "bounded", "bounded:0.01");
}

}  // namespace tierkv::bench
