// config.cc — CacheConfig and what is beside it (tierkv/config.h), field by field.
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "module.h"
#include "tierkv/c.h"
#include "tierkv/config.h"

namespace tierkv::python {
namespace {

void bind_tiers(nb::module_& m) {
  nb::class_<LayerConfig>(m, "LayerConfig", "How the tokens of one layer are kept, from the newest to the oldest.")
      .def(nb::init<>())
      .def_rw("hot", &LayerConfig::hot)
      .def_rw("warm", &LayerConfig::warm)
      .def_rw("warm_codec", &LayerConfig::warm_codec)
      .def_rw("archive_codec", &LayerConfig::archive_codec)
      .def_rw("sinks", &LayerConfig::sinks)
      .def_rw("window", &LayerConfig::window)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<LayerOverride>(m, "LayerOverride", "Other settings for layers first..last; None: the cache's own.")
      .def(nb::init<>())
      .def_rw("first", &LayerOverride::first)
      .def_rw("last", &LayerOverride::last)
      .def_rw("hot", &LayerOverride::hot, nb::arg().none())
      .def_rw("warm", &LayerOverride::warm, nb::arg().none())
      .def_rw("sinks", &LayerOverride::sinks, nb::arg().none())
      .def_rw("window", &LayerOverride::window, nb::arg().none())
      .def_rw("warm_codec", &LayerOverride::warm_codec, nb::arg().none())
      .def_rw("archive_codec", &LayerOverride::archive_codec, nb::arg().none())
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<EvictionConfig>(m, "EvictionConfig", "Which tokens go when a limit is reached.")
      .def(nb::init<>())
      .def_rw("policy", &EvictionConfig::policy)
      .def_rw("protect_recent", &EvictionConfig::protect_recent)
      .def_rw("batch", &EvictionConfig::batch)
      .def_rw("observation", &EvictionConfig::observation)
      .def_rw("pool", &EvictionConfig::pool)
      .def_rw("window", &EvictionConfig::window)
      .def_rw("pyramid_beta", &EvictionConfig::pyramid_beta)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<DeepConfig>(m, "DeepConfig", "The target of deep archives where a call names none.")
      .def(nb::init<>())
      .def_rw("ratio", &DeepConfig::ratio)
      .def_rw("quality", &DeepConfig::quality)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  nb::class_<ColdConfig>(m, "ColdConfig", "Copies of what is archived, in a file.")
      .def(nb::init<>())
      .def_rw("path", &ColdConfig::path)
      .def_rw("codec", &ColdConfig::codec)
      .def_rw("budget", &ColdConfig::budget)
      .def_rw("promote", &ColdConfig::promote)
      .def_rw("spill", &ColdConfig::spill)
      .def("off", &ColdConfig::off)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
}

void bind_cache_config(nb::module_& m) {
  using Config = CacheConfig;
  nb::class_<Config>(m, "CacheConfig", "What a cache is: the model's shape, the tiers, the limits.")
      .def(nb::init<>())
      .def(nb::init<const Config&>())
      .def_rw("model", &Config::model)
      .def_rw("num_layers", &Config::num_layers)
      .def_rw("num_heads", &Config::num_heads)
      .def_rw("num_kv_heads", &Config::num_kv_heads)
      .def_rw("head_dim", &Config::head_dim)
      .def_rw("tiers", &Config::tiers)
      .def_rw("overrides", &Config::overrides)
      .def_rw("hot_type", &Config::hot_type)
      .def_rw("warm_block", &Config::warm_block)
      .def_rw("archive_block", &Config::archive_block)
      .def_rw("skip", &Config::skip)
      .def_rw("max_seq_len", &Config::max_seq_len)
      .def_rw("byte_budget", &Config::byte_budget)
      .def_rw("eviction", &Config::eviction)
      .def_rw("window_slack", &Config::window_slack)
      .def_rw("deep", &Config::deep)
      .def_rw("cold", &Config::cold)
      .def_rw("calibrate", &Config::calibrate)
      .def_rw("calibration", &Config::calibration)
      .def_rw("quality_target", &Config::quality_target)
      .def_rw("threads", &Config::threads)
      .def("layer", &Config::layer, nb::arg("index"))
      .def("query_heads", &Config::query_heads)
      .def("calibration_file", &Config::calibration_file)
      .def("validate", [](const Config& config) { check(validate(config)); })
      .def("wants_calibration", [](const Config& config) { return wants_calibration(config); })
      .def(
          "apply_preset", [](Config& c, std::string_view name) { check(apply_preset(name, c)); }, nb::arg("name"))
      .def(
          "apply_toml", [](Config& c, std::string_view text, std::string_view origin) { check(apply_toml(text, c, origin)); },
          nb::arg("text"), nb::arg("origin") = "<toml>")
      .def(
          "apply_json", [](Config& c, std::string_view text, std::string_view origin) { check(apply_json(text, c, origin)); },
          nb::arg("text"), nb::arg("origin") = "<json>")
      .def(
          "apply_file", [](Config& c, const std::string& path) { check(apply_file(path, c)); }, nb::arg("path"))
      .def(
          "apply_inline", [](Config& c, std::string_view text) { check(apply_inline(text, c)); }, nb::arg("text"))
      .def(
          "apply_spec", [](Config& c, std::string_view spec) { check(apply_spec(spec, c)); }, nb::arg("spec"))
      .def("to_json", [](const Config& config) { return to_json(config); })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
}

// The names that a table of the C API gives by index.
nb::list names_of(const char* (*name)(size_t), const char* (*summary)(size_t)) {
  nb::list names;
  for (size_t i = 0; name(i) != nullptr; ++i) names.append(nb::make_tuple(name(i), summary ? summary(i) : ""));
  return names;
}

}  // namespace

void bind_config(nb::module_& m) {
  m.attr("ALL") = kAll;
  bind_tiers(m);
  bind_cache_config(m);
  m.def("preset_names", &preset_names);
  m.def("codecs", [] { return names_of(&tierkv_codec_name, &tierkv_codec_summary); });
  m.def("policies", [] { return names_of(&tierkv_policy_name, &tierkv_policy_summary); });
  m.def("version", [] { return std::string(tierkv_version()); });
}

}  // namespace tierkv::python
