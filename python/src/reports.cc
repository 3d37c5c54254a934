// reports.cc — what a cache says about itself (tierkv/stats.h, tierkv/learning.h), and the options and reports of single calls.
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"
#include "tierkv/cache.h"

namespace tierkv::python {
namespace {

nb::list tiers_of(const MemoryStats& stats) {
  nb::list tiers;
  for (const TierMemory& tier : stats.tier) tiers.append(nb::cast(tier));
  return tiers;
}

nb::list graduated_of(const MemoryStats& stats) {
  nb::list rows;
  for (const uint64_t count : stats.graduated) rows.append(count);
  return rows;
}

void bind_memory(nb::module_& m) {
  nb::list names;
  for (int t = 0; t < kNumTiers; ++t) names.append(tier_name(static_cast<Tier>(t)));
  m.attr("TIER_NAMES") = nb::tuple(names);
  nb::class_<TierMemory>(m, "TierMemory", "What one tier holds.")
      .def_ro("tokens", &TierMemory::tokens)
      .def_ro("payload_bytes", &TierMemory::payload_bytes)
      .def_ro("overhead_bytes", &TierMemory::overhead_bytes)
      .def("bytes", &TierMemory::bytes)
      .def("bits_per_value", &TierMemory::bits_per_value, nb::arg("head_dim"));
  nb::class_<MemoryStats>(m, "MemoryStats", "Resident bytes, by tier and in all.")
      .def_prop_ro("tier", &tiers_of, "sinks, hot, warm and archive")
      .def_ro("bookkeeping_bytes", &MemoryStats::bookkeeping_bytes)
      .def_ro("parked_tokens", &MemoryStats::parked_tokens)
      .def_ro("parked_bytes", &MemoryStats::parked_bytes)
      .def_ro("promoted_tokens", &MemoryStats::promoted_tokens)
      .def_ro("promoted_bytes", &MemoryStats::promoted_bytes)
      .def_ro("spilled_tokens", &MemoryStats::spilled_tokens)
      .def_ro("device_tokens", &MemoryStats::device_tokens)
      .def_ro("device_bytes", &MemoryStats::device_bytes)
      .def_ro("read_blocks", &MemoryStats::read_blocks)
      .def_ro("skipped_blocks", &MemoryStats::skipped_blocks)
      .def_ro("skipped_mass", &MemoryStats::skipped_mass)
      .def_ro("free_bytes", &MemoryStats::free_bytes)
      .def_ro("total_bytes", &MemoryStats::total_bytes)
      .def_ro("peak_bytes", &MemoryStats::peak_bytes)
      .def_ro("budget_bytes", &MemoryStats::budget_bytes)
      .def_ro("fp16_bytes", &MemoryStats::fp16_bytes)
      .def_ro("table_bytes", &MemoryStats::table_bytes)
      .def_ro("scratch_bytes", &MemoryStats::scratch_bytes)
      .def_ro("cold_bytes", &MemoryStats::cold_bytes)
      .def_prop_ro("graduated", &graduated_of, "rows that became part of a block, by tier")
      .def_ro("evicted", &MemoryStats::evicted)
      .def("resident_bytes", &MemoryStats::resident_bytes)
      .def("compression", &MemoryStats::compression);
}

void bind_cold(nb::module_& m) {
  nb::class_<ColdStats>(m, "ColdStats", "The cold file, its queue, and what was read from it.")
      .def_ro("copies", &ColdStats::copies)
      .def_ro("used_bytes", &ColdStats::used_bytes)
      .def_ro("file_bytes", &ColdStats::file_bytes)
      .def_ro("queue_bytes", &ColdStats::queue_bytes)
      .def_ro("written", &ColdStats::written)
      .def_ro("skipped", &ColdStats::skipped)
      .def_ro("failed", &ColdStats::failed)
      .def_ro("damaged", &ColdStats::damaged)
      .def_ro("loaded", &ColdStats::loaded)
      .def_ro("left_out", &ColdStats::left_out)
      .def_ro("left_out_mass", &ColdStats::left_out_mass)
      .def_ro("problem", &ColdStats::problem);
  nb::class_<PromotionReport>(m, "PromotionReport", "What came back from the cold file.")
      .def_ro("blocks", &PromotionReport::blocks)
      .def_ro("tokens", &PromotionReport::tokens)
      .def_ro("without_copy", &PromotionReport::without_copy);
}

void bind_quality(nb::module_& m) {
  nb::class_<QualityMetrics>(m, "QualityMetrics", "Quality as fed back by the caller.")
      .def_ro("samples", &QualityMetrics::samples)
      .def_ro("mean", &QualityMetrics::mean)
      .def_ro("recent_mean", &QualityMetrics::recent_mean)
      .def_ro("target", &QualityMetrics::target)
      .def_ro("adaptations", &QualityMetrics::adaptations);
  nb::class_<LayerThresholds>(m, "LayerThresholds", "What adaptation moves, one for each layer.")
      .def(nb::init<uint32_t, uint32_t, uint32_t>(), nb::arg("hot"), nb::arg("warm"), nb::arg("archive_bits"))
      .def_ro("hot", &LayerThresholds::hot)
      .def_ro("warm", &LayerThresholds::warm)
      .def_ro("archive_bits", &LayerThresholds::archive_bits)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<BlockMass>(m, "BlockMass", "The attention mass of one block.")
      .def_ro("kv_head", &BlockMass::kv_head)
      .def_prop_ro("tier", [](const BlockMass& mass) { return tier_name(mass.tier); })
      .def_ro("first_position", &BlockMass::first_position)
      .def_ro("rows", &BlockMass::rows)
      .def_ro("mass", &BlockMass::mass);
  nb::class_<MassReport>(m, "MassReport", "Softmax weight, summed over a call's queries and the query heads of a KV head.")
      .def(
          "__init__",
          [](MassReport* self, bool want_tokens) {
            new (self) MassReport{want_tokens, {}, {}};
          },
          nb::arg("want_tokens") = false)
      .def_rw("want_tokens", &MassReport::want_tokens)
      .def_ro("blocks", &MassReport::blocks)
      .def_ro("tokens", &MassReport::tokens);
}

void bind_learning(nb::module_& m) {
  nb::class_<LearningReport>(m, "LearningReport", "How far learning in passing is.")
      .def_prop_ro("phase",
                   [](const LearningReport& report) {
                     static constexpr const char* kNames[] = {"off", "gathering", "solving", "done", "refused"};
                     return kNames[static_cast<int>(report.phase)];
                   })
      .def_ro("tokens", &LearningReport::tokens)
      .def_ro("wanted", &LearningReport::wanted)
      .def_ro("sentence", &LearningReport::sentence)
      .def_ro("bytes", &LearningReport::bytes)
      .def_ro("seconds", &LearningReport::seconds)
      .def_ro("waiting", &LearningReport::waiting);
}

void bind_deep(nb::module_& m) {
  nb::class_<DeepOptions>(m, "DeepOptions", "How the archived part of a sequence is packed.")
      .def(
          "__init__",
          [](DeepOptions* self, double ratio, double quality, uint32_t keep_recent, uint32_t first_position) {
            new (self) DeepOptions{ratio, quality, keep_recent, first_position};
          },
          nb::arg("ratio") = 0.0, nb::arg("quality") = 0.0, nb::arg("keep_recent") = DeepOptions::kTiers,
          nb::arg("first_position") = 0)
      .def_rw("ratio", &DeepOptions::ratio)
      .def_rw("quality", &DeepOptions::quality)
      .def_rw("keep_recent", &DeepOptions::keep_recent)
      .def_rw("first_position", &DeepOptions::first_position);
  nb::class_<DeepReport>(m, "DeepReport", "What was packed.")
      .def(nb::init<>())
      .def_ro("tokens", &DeepReport::tokens)
      .def_ro("first_position", &DeepReport::first_position)
      .def_ro("bytes", &DeepReport::bytes)
      .def_ro("ratio", &DeepReport::ratio)
      .def_ro("quality", &DeepReport::quality)
      .def_ro("note", &DeepReport::note);
  nb::class_<MemoryPressure>(m, "MemoryPressure", "A call lacks memory under byte_budget.")
      .def_ro("seq", &MemoryPressure::seq)
      .def_ro("needed_bytes", &MemoryPressure::needed_bytes)
      .def_ro("used_bytes", &MemoryPressure::used_bytes)
      .def_ro("budget_bytes", &MemoryPressure::budget_bytes)
      .def_ro("attempt", &MemoryPressure::attempt);
}

}  // namespace

void bind_reports(nb::module_& m) {
  bind_memory(m);
  bind_cold(m);
  bind_quality(m);
  bind_learning(m);
  bind_deep(m);
}

}  // namespace tierkv::python
