// calibration.cc — calibrations and snapshots as objects of their own (tierkv/calibration.h, tierkv/snapshot.h).
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "calibration.h"
#include "errors.h"
#include "module.h"
#include "tierkv/snapshot.h"

namespace tierkv::python {
namespace {

void bind_calibration_class(nb::module_& m) {
  nb::class_<CalibrationInfo>(m, "CalibrationInfo", "What a calibration is of.")
      .def(nb::init<>())
      .def_rw("id", &CalibrationInfo::id)
      .def_rw("model", &CalibrationInfo::model)
      .def_rw("fingerprint", &CalibrationInfo::fingerprint)
      .def_rw("num_layers", &CalibrationInfo::num_layers)
      .def_rw("num_heads", &CalibrationInfo::num_heads)
      .def_rw("num_kv_heads", &CalibrationInfo::num_kv_heads)
      .def_rw("head_dim", &CalibrationInfo::head_dim)
      .def_rw("block", &CalibrationInfo::block)
      .def_rw("text", &CalibrationInfo::text)
      .def_rw("tokens", &CalibrationInfo::tokens)
      .def_rw("codecs", &CalibrationInfo::codecs)
      .def_prop_rw(
          "ropes", [](const CalibrationInfo& info) { return triples_of(info.ropes); },
          [](CalibrationInfo& info, const std::vector<RopeTriples>& ropes) { info.ropes = ropes_of(ropes); });
  nb::class_<Calibration>(m, "Calibration", "What was learned of one model's keys and values.")
      .def("describe", [](const Calibration& c) { return describe(*c.tables); })
      .def(
          "check_fit", [](const Calibration& c, const CalibrationInfo& model) { check(check_fit(*c.tables, model)); },
          nb::arg("model"))
      .def(
          "with_ropes",
          [](const Calibration& c, const std::vector<RopeTriples>& layers) {
            const std::vector<calib::Rope> ropes = ropes_of(layers);
            return Calibration{take(without_gil([&] { return with_ropes(c.tables, ropes); }))};
          },
          nb::arg("ropes"));
  m.def(
      "load_calibration",
      [](const std::string& path) { return Calibration{take(without_gil([&] { return load_calibration(path); }))}; },
      nb::arg("path"));
  m.def(
      "parse_calibration",
      [](nb::handle bytes, const std::string& name) {
        const Bytes held(bytes);
        return Calibration{take(without_gil([&] { return parse_calibration(held.span(), name); }))};
      },
      nb::arg("bytes"), nb::arg("name"));
}

nb::list tiers_of(const SnapshotInfo& info) {
  nb::list tiers;
  for (const SnapshotTier& tier : info.tier) tiers.append(nb::make_tuple(tier.tokens, tier.bytes));
  return tiers;
}

CalibrationPtr tables_of(const Calibration* calibration) { return calibration ? calibration->tables : nullptr; }

void bind_snapshots(nb::module_& m) {
  nb::class_<SnapshotInfo>(m, "SnapshotInfo", "What a snapshot holds, read without a cache.")
      .def_ro("version", &SnapshotInfo::version)
      .def_ro("min_reader", &SnapshotInfo::min_reader)
      .def_ro("model", &SnapshotInfo::model)
      .def_ro("calibration", &SnapshotInfo::calibration)
      .def_ro("lacks_tables", &SnapshotInfo::lacks_tables)
      .def_ro("num_layers", &SnapshotInfo::num_layers)
      .def_ro("num_kv_heads", &SnapshotInfo::num_kv_heads)
      .def_ro("head_dim", &SnapshotInfo::head_dim)
      .def_ro("hot_type", &SnapshotInfo::hot_type)
      .def_ro("length", &SnapshotInfo::length)
      .def_ro("eviction_signals", &SnapshotInfo::eviction_signals)
      .def_ro("file_bytes", &SnapshotInfo::file_bytes)
      .def_ro("blocks", &SnapshotInfo::blocks)
      .def_prop_ro("tier", &tiers_of, "(tokens, bytes) of sinks, hot, warm and archive")
      .def_ro("deep_tokens", &SnapshotInfo::deep_tokens)
      .def_ro("deep_first_position", &SnapshotInfo::deep_first_position)
      .def_ro("deep_layers", &SnapshotInfo::deep_layers)
      .def_ro("deep_bytes", &SnapshotInfo::deep_bytes)
      .def_ro("codecs", &SnapshotInfo::codecs);
  m.def(
      "inspect_snapshot_file",
      [](const std::string& path, const Calibration* calibration) {
        const CalibrationPtr tables = tables_of(calibration);
        return take(without_gil([&] { return inspect_snapshot(path, tables); }));
      },
      nb::arg("path"), nb::arg("calibration").none());
  m.def(
      "inspect_snapshot_bytes",
      [](nb::handle bytes, const Calibration* calibration) {
        const Bytes held(bytes);
        const CalibrationPtr tables = tables_of(calibration);
        return take(without_gil([&] { return inspect_snapshot(held.span(), tables); }));
      },
      nb::arg("bytes"), nb::arg("calibration").none());
}

}  // namespace

void bind_calibration(nb::module_& m) {
  bind_calibration_class(m);
  bind_snapshots(m);
}

}  // namespace tierkv::python
