// The bytes of `balanced` without tables at 32K tokens, and with an archive of 2 bits: the whole cache and its archive against
// plain FP16, from memory_usage() as it stands.
#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

void add_case(std::vector<Case>& cases, const std::string& label, const std::string& kv, double whole, double archived) {
  const std::string name = "cache/" + label + "/memory/32Kx8x128";
  cases.push_back(
      {name, [=](const Settings& settings, const Emit& emit) -> Status {
         const uint32_t tokens = settings.quick ? 4096 : 32768;
         TIERKV_ASSIGN_OR_RETURN(const FilledCache filled, fill_cache(kv, tokens));
         const MemoryStats memory = filled.cache->memory_usage();  // before the check, whose scratch is not the cache's to count
         TIERKV_RETURN_IF_ERROR(filled.check_attention(6e-2));     // long contexts are read coarsely: src/quant/codec.h

         const double plain = 2.0 * 2.0 * tokens * 8 * 128;
         if (static_cast<double>(memory.fp16_bytes) != plain) {
           return error(StatusCode::internal, "fp16_bytes is ", memory.fp16_bytes, ", the same tokens take ", plain);
         }
         const TierMemory& archive = memory[Tier::archive];
         const double archived_plain = 2.0 * 2.0 * 128 * static_cast<double>(archive.tokens);
         Row row(name);
         row.number("bits", 16.0 * static_cast<double>(memory.total_bytes) / plain);
         row.number("bytes", static_cast<double>(memory.total_bytes)).number("fp16_bytes", plain);
         const double ratio = plain / static_cast<double>(memory.total_bytes);
         if (settings.quick) row.number("ratio", ratio);  // the hot and warm tiers weigh more the shorter the sequence is
         else row.at_least("ratio", ratio, whole);
         row.number("archive_tokens", static_cast<double>(archive.tokens) / 8).number("archive_bits", archive.bits_per_value(128));
         row.at_least("archive_ratio", archived_plain / static_cast<double>(archive.bytes()), archived);
         row.number("append_ns_per_token", filled.append_ns / tokens).text("peer", "fp16");
         emit(row);
         return {};
       }});
}

}  // namespace

void add_memory_cases(std::vector<Case>& cases) {
  add_case(cases, "balanced", "balanced", 4.5, 4.9);
  add_case(cases, "rot2", "balanced,archive=rot2/mid2", 6.0, 6.9);
}

}  // namespace tierkv::bench
