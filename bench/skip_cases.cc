// One decoding step that leaves archive blocks unread (`skip`) against the same that reads all: one layer, in turns, in one
// process. With random rows every block has about as much of the attention as every other, which is the worst there is for leaving
// any out. With topics a few blocks have nearly all of it, and which they are can be seen in their summaries: the best there is.
#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

Status attend(const FilledCache& filled, std::vector<float>& out) {
  out.resize(filled.queries.size());
  return filled.cache->attention(filled.seq, 0, RowsView::f32(filled.queries.data(), 1, 32, 128), out.data());
}

// Processor time of one thread, alternating, so that what else the machine does meets all of them. Medians in ns.
Status time_all(const Settings& settings, std::span<const FilledCache* const> caches, std::vector<double>& ns) {
  std::vector<std::vector<double>> times(caches.size());
  std::vector<float> out;
  for (int round = 0; round < (settings.quick ? 2 : 25); ++round) {
    for (size_t i = 0; i < caches.size(); ++i) {
      const double start = processor_seconds();
      TIERKV_RETURN_IF_ERROR(attend(*caches[i], out));
      times[i].push_back(1e9 * (processor_seconds() - start));
    }
  }
  ns.clear();
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    ns.push_back(t[t.size() / 2]);
  }
  return {};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), energy += std::pow(a[i], 2);
  return std::sqrt(error / energy);
}

void add_case(std::vector<Case>& cases, uint32_t tokens, Contents contents) {
  const bool topics = contents == Contents::topics;
  const std::string name =
      "cache/balanced/skip" + std::string(topics ? "-topics/" : "/") + std::to_string(tokens / 1024) + "Kx8x128";
  cases.push_back(
      {name, [=](const Settings& settings, const Emit& emit) -> Status {
         if (settings.quick && tokens > 8192) return {};
         const std::string eighth = "top:" + std::to_string(tokens / 128 / 8);
         const std::string modes[] = {"off", "bounded:0.01", eighth, "top_p:0.9", "top_p:0.98"};
         std::vector<FilledCache> caches;
         std::vector<const FilledCache*> all;
         for (const std::string& mode : modes) {
           TIERKV_ASSIGN_OR_RETURN(FilledCache filled, fill_cache("balanced,threads=1,skip=" + mode, tokens, contents));
           caches.push_back(std::move(filled));
         }
         for (const FilledCache& filled : caches) all.push_back(&filled);
         std::vector<double> ns;
         std::vector<float> whole, some;
         TIERKV_RETURN_IF_ERROR(attend(caches[0], whole));
         TIERKV_RETURN_IF_ERROR(time_all(settings, all, ns));
         for (size_t i = 0; i < caches.size(); ++i) {
           const MemoryStats m = caches[i].cache->memory_usage();
           TIERKV_RETURN_IF_ERROR(attend(caches[i], some));
           Row row(name + "/" + modes[i]);
           row.number("cpu_ns", ns[i]).number("ratio", ns[0] / ns[i]).number("bytes", static_cast<double>(m.total_bytes));
           row.number("skipped_share",
                      static_cast<double>(m.skipped_blocks) / std::max(1.0, static_cast<double>(m.skipped_blocks + m.read_blocks)));
           row.number("skipped_mass", m.skipped_mass).number("error", distance(whole, some));
           emit(row);
         }
         return {};
       }});
}

}  // namespace

void add_skip_cases(std::vector<Case>& cases) {
  for (const Contents contents : {Contents::noise, Contents::topics}) {
    for (const uint32_t tokens : {8192u, 32768u, 131072u}) add_case(cases, tokens, contents);
  }
}

}  // namespace tierkv::bench
