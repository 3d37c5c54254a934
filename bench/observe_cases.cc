// What it costs a decoding step to tell each token how much attention it got: the same cache and query with and without, in turns,
// in one process, on one thread, in processor time. One layer and one query of 32 heads on 8 KV heads of 128 channels, attention
// alone: a model's other work only makes the share smaller.
#include <algorithm>

#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

// `back`: tokens behind the newest. Of a long sequence a policy may hear every second position (cache/observe.h).
Status attend(const FilledCache& filled, bool observe, uint32_t back, std::vector<float>& out) {
  AttentionOptions options;
  options.observe = observe;
  options.first_position = static_cast<int64_t>(filled.cache->length(filled.seq).value()) - 1 - back;
  out.resize(filled.queries.size());
  return filled.cache->attention(filled.seq, 0, RowsView::f32(filled.queries.data(), 1, 32, 128), out.data(), options);
}

// Processor time of a call, the median of many pairs.
Status time_both(const Settings& settings, const FilledCache& filled, uint32_t tokens, double* ns) {
  std::vector<double> times[2];
  std::vector<float> out;
  const uint32_t rounds = settings.quick ? 3 : std::max(40u, 1000000u / tokens);
  for (uint32_t round = 0; round < 2 * rounds; ++round) {
    const bool observe = round % 2 == 0;
    const double start = processor_seconds();
    for (uint32_t back = 0; back < 2; ++back) TIERKV_RETURN_IF_ERROR(attend(filled, observe, back, out));
    times[observe].push_back((processor_seconds() - start) / 2);
  }
  for (int i = 0; i < 2; ++i) {
    std::sort(times[i].begin(), times[i].end());
    ns[i] = 1e9 * times[i][times[i].size() / 2];
  }
  return {};
}

// What is heard must not change what is answered: the outputs are the same bits.
Status check_same(const FilledCache& filled) {
  std::vector<float> with, without;
  TIERKV_RETURN_IF_ERROR(attend(filled, true, 0, with));
  TIERKV_RETURN_IF_ERROR(attend(filled, false, 0, without));
  return with == without ? Status() : error(StatusCode::internal, "attention is another when a policy listens");
}

// `policy`: of eviction; or an archive that listens by itself, because it keeps rows better that matter (+top).
void add_case(std::vector<Case>& cases, const std::string& tiers, const std::string& policy, uint32_t tokens) {
  const std::string name = "cache/" + tiers + "/observe-" + policy + "/" + std::to_string(tokens / 1024) + "Kx8x128";
  const bool evicts = policy.find('+') == std::string::npos;
  cases.push_back(
      {name, [=](const Settings& settings, const Emit& emit) -> Status {
         // A limit that is never reached: the policy learns and drops nothing. Threads that wait would take time too.
         const std::string spec = tiers + ",threads=1," + (evicts ? "max_seq_len=1000000,evict=" + policy : "archive=" + policy);
         TIERKV_ASSIGN_OR_RETURN(const FilledCache filled, fill_cache(spec, settings.quick ? 2048 : tokens));
         TIERKV_RETURN_IF_ERROR(filled.check_attention(6e-2));
         TIERKV_RETURN_IF_ERROR(check_same(filled));
         double ns[2];
         TIERKV_RETURN_IF_ERROR(time_both(settings, filled, tokens, ns));
         Row row(name);
         row.number("cpu_ns", ns[1]).number("plain_cpu_ns", ns[0]).number("added_percent", 100.0 * (ns[1] / ns[0] - 1.0));
         emit(row);
         return {};
       }});
}

}  // namespace

void add_observe_cases(std::vector<Case>& cases) {
  for (const uint32_t tokens : {4096u, 32768u}) {
    for (const char* policy : {"h2o", "snapkv", "tova", "scissorhands", "akv"}) add_case(cases, "balanced", policy, tokens);
    add_case(cases, "fp16", "h2o", tokens);
    add_case(cases, "balanced", "rot2+top4", tokens);
  }
}

}  // namespace tierkv::bench
