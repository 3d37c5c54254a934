#include "config/validate.h"

#include <algorithm>
#include <set>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "config/schema.h"
#include "config/skip_mode.h"
#include "config/spill_mode.h"
#include "quant/registry.h"
#include "quant/warm_auto.h"

namespace tierkv {
namespace config {
namespace {

template <class... Parts>
std::string text(const Parts&... parts) {
  return error(StatusCode::invalid_argument, parts...).message();
}

std::string layer_path(size_t index, const char* key) { return text("layer[", index, "].", key); }

class Checker {
 public:
  Checker(const CacheConfig& config, bool whole) : c_(config), whole_(whole) {}

  std::vector<ConfigProblem> run() {
    check_fields();
    // Combinations are judged only between values that are possible by themselves.
    if (!problems_.empty()) return std::move(problems_);
    check_model();
    check_blocks();
    check_overrides();
    for (const uint32_t layer : distinct_layers()) check_layer(layer);
    check_budget();
    check_cold();
    check_spill();
    check_promote();
    check_skip();
    if (!c_.calibration.empty() && c_.calibrate == "off") {
      add({"calibrate", "calibration"}, text("'calibrate' is off and 'calibration' names a file: one of them is enough"));
    } else if (!c_.calibration.empty() && c_.calibration_file() != c_.calibration) {
      add({"calibrate", "calibration"}, text("'calibrate' and 'calibration' name different files: one of them is enough"));
    }
    if (c_.deep.ratio != 0.0 && c_.deep.quality != 0.0) {
      add({"deep.ratio", "deep.quality"}, text("'deep.ratio' and 'deep.quality' exclude each other: set one of them to 0"));
    }
    return std::move(problems_);
  }

 private:
  void add(std::vector<std::string> keys, std::string message) { problems_.push_back({std::move(keys), std::move(message)}); }

  void check_fields() {
    for (const auto& field : config_fields()) {
      if (const std::string why = misfit(field.type, *field.get(c_)); !why.empty())
        add({field.path()}, text("'", field.path(), "' ", why));
    }
    for (size_t i = 0; i < c_.overrides.size(); ++i) {
      for (const auto& field : layer_fields()) {
        const auto value = field.get(c_.overrides[i]);
        const std::string why = value ? misfit(field.type, *value) : std::string();
        const std::string path = layer_path(i, field.key);
        if (!why.empty()) add({path}, text("'", path, "' ", why));
      }
    }
  }

  void check_model() {
    if (whole_) {
      const std::pair<const char*, uint32_t> needed[] = {
          {"num_layers", c_.num_layers}, {"num_kv_heads", c_.num_kv_heads}, {"head_dim", c_.head_dim}};
      for (const auto& [key, value] : needed) {
        if (value == 0) add({key}, text("'", key, "' is not set: a cache needs the model's shape"));
      }
    }
    if (c_.num_kv_heads != 0 && c_.query_heads() % c_.num_kv_heads != 0) {
      add({"num_heads", "num_kv_heads"},
          text("'num_heads' must be a multiple of 'num_kv_heads' (", c_.num_kv_heads, "), not ", c_.num_heads));
    }
  }

  void check_blocks() {
    if (c_.archive_block % c_.warm_block != 0) {
      add({"archive_block", "warm_block"},
          text("'archive_block' must be a multiple of 'warm_block' (", c_.warm_block, "), not ", c_.archive_block));
    }
  }

  void check_overrides() {
    for (size_t i = 0; i < c_.overrides.size(); ++i) {
      const LayerOverride& o = c_.overrides[i];
      const std::string path = layer_path(i, "layers");
      if (o.first > o.last) {
        add({path}, text("'", path, "' ends before it starts: ", o.first, "-", o.last));
      } else if (c_.num_layers != 0 && o.last >= c_.num_layers) {
        add({path, "num_layers"},
            text("'", path, "' names layer ", o.last, "; the model has ", c_.num_layers, " (0..", c_.num_layers - 1, ")"));
      } else if (!o.hot && !o.warm && !o.sinks && !o.window && !o.warm_codec && !o.archive_codec) {
        add({path}, text("'", path, "': layers ", layers_text(o), " override nothing"));
      }
    }
  }

  // One layer for each set of settings there is. Overrides only change what a layer is where one of them starts or ends.
  std::vector<uint32_t> distinct_layers() const {
    std::set<uint32_t> edges = {0};
    for (const LayerOverride& o : c_.overrides) {
      edges.insert(o.first);
      if (o.last != 0xFFFFFFFFu) edges.insert(o.last + 1);
    }
    std::vector<uint32_t> layers;
    std::vector<LayerConfig> seen;
    for (const uint32_t layer : edges) {
      if (c_.num_layers != 0 && layer >= c_.num_layers) continue;
      const LayerConfig settings = c_.layer(layer);
      if (std::find(seen.begin(), seen.end(), settings) != seen.end()) continue;
      seen.push_back(settings), layers.push_back(layer);
    }
    return layers;
  }

  // The key that decides a setting of this layer.
  template <class T>
  std::string decider(uint32_t layer, std::optional<T> LayerOverride::*member, const char* key) const {
    for (size_t i = c_.overrides.size(); i-- > 0;) {
      const LayerOverride& o = c_.overrides[i];
      if (layer >= o.first && layer <= o.last && o.*member) return layer_path(i, key);
    }
    return key;
  }

  void check_layer(uint32_t layer) {
    const LayerConfig l = c_.layer(layer);
    const std::string sinks = decider(layer, &LayerOverride::sinks, "sinks");
    if (c_.max_seq_len != 0 && l.sinks >= c_.max_seq_len) {
      add({sinks, "max_seq_len"}, text("'", sinks, "' (", l.sinks, ") must be below 'max_seq_len' (", c_.max_seq_len, ")"));
    } else if (c_.max_seq_len != 0 && c_.eviction.policy != "none" && l.window == 0 && l.sinks + 2 > c_.max_seq_len) {
      // Eviction keeps the sinks and the newest token, and the next one needs a place.
      add({sinks, "max_seq_len", "eviction.policy"}, text("'", sinks, "' (", l.sinks, ") must be at least 2 below 'max_seq_len' (",
                                                          c_.max_seq_len, ") for an eviction policy to have a choice"));
    }
    // A layer whose hot rows cover all it can see never encodes anything, so its codecs do not matter.
    const bool ring = l.window != 0 && l.hot >= l.window;
    if (c_.head_dim == 0 || l.hot == kAll || ring) return;
    const std::string warm = decider(layer, &LayerOverride::warm, "warm");
    const std::string hot = decider(layer, &LayerOverride::hot, "hot");
    if (l.warm != 0) {
      check_codec(std::string(quant::resolve_warm(l.warm_codec, /*calibrated=*/false)), c_.warm_block,
                  {decider(layer, &LayerOverride::warm_codec, "warm_codec"), "warm_block", "head_dim", warm, hot});
    }
    if (l.warm != kAll) {
      check_codec(l.archive_codec, c_.archive_block,
                  {decider(layer, &LayerOverride::archive_codec, "archive_codec"), "archive_block", "head_dim", warm, hot});
    }
  }

  void check_codec(const std::string& name, uint32_t tokens, std::vector<std::string> keys) {
    if (name == quant::kAdaptive) {
      for (const quant::AdaptiveStep& step : quant::adaptive_steps()) check_codec(step.plain, tokens, keys);
      return;
    }
    const auto pair = quant::parse_codec_pair(name);
    if (!pair.ok()) return;                  // check_fields() has said so
    if (quant::needs_tables(*pair)) return;  // the calibration has a say; create() asks it
    const quant::BlockShape shape{tokens, c_.head_dim};
    for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
      const auto codec = quant::make_codec(side == quant::Side::key ? pair.value().key : pair.value().value, side, shape);
      if (codec.ok()) continue;
      const std::string message =
          text("'", keys.front(), "' ('", name, "') does not fit the ", side == quant::Side::key ? "keys" : "values",
               " of blocks of ", tokens, " tokens and head_dim ", c_.head_dim, ": ", codec.status().message());
      add(std::move(keys), message);
      return;
    }
  }

  // Every layer holds at least the block it is filling, as 16-bit floats: less than that serves no sequence at all.
  void check_budget() {
    if (c_.byte_budget == 0 || c_.num_layers == 0 || c_.num_kv_heads == 0 || c_.head_dim == 0) return;
    uint64_t rows = 0;
    for (uint32_t i = 0; i < c_.num_layers; ++i) {
      const uint32_t window = c_.layer(i).window;
      uint32_t least = c_.warm_block;
      if (window != 0) least = std::min(least, window);
      if (c_.max_seq_len != 0) least = std::min(least, c_.max_seq_len);
      rows += least;
    }
    const uint64_t need = rows * c_.num_kv_heads * c_.head_dim * 2 /* keys and values */ * 2 /* bytes */;
    if (c_.byte_budget < need) {
      add({"byte_budget", "warm_block", "num_layers", "num_kv_heads", "head_dim"},
          text("'byte_budget' (", c_.byte_budget, ") is too small for one block in every layer; at least ", need,
               " bytes are needed"));
    }
  }

  void check_cold() {
    const auto pair = quant::parse_codec_pair(c_.cold.codec);
    if (pair.ok() && quant::needs_tables(*pair)) {
      add({"cold_codec"}, text("'cold_codec' must be a codec without tables (fp16, int8, rot4, ...), not '", c_.cold.codec, "'"));
    } else if (c_.head_dim != 0 && !c_.cold.off()) {
      check_codec(c_.cold.codec, c_.archive_block, {"cold_codec", "archive_block", "head_dim"});
    }
  }

  void check_spill() {
    const auto mode = parse_spill_mode(c_.cold.spill);
    if (!mode.ok()) return add({"spill"}, text("'spill' ", mode.status().message()));
    if (mode->kind == SpillMode::Kind::off) return;
    if (c_.cold.off()) return add({"spill", "cold"}, text("'spill' needs a file: set 'cold' to one, or to a folder"));
    if (c_.byte_budget == 0) {
      add({"spill", "byte_budget"}, text("'spill' does nothing without 'byte_budget': blocks go to the file when that is short"));
    }
    if (c_.eviction.policy != "none") {
      add({"spill", "eviction.policy"}, text("'spill' and 'eviction.policy' exclude each other: tokens move, or go"));
    }
  }

  void check_promote() {
    if (c_.cold.promote == 0) return;
    if (c_.cold.off()) return add({"promote", "cold"}, text("'promote' needs a file: set 'cold' to one, or to a folder"));
    if (!c_.cold.spill.empty() && c_.cold.spill != "off") {
      add({"promote", "spill"}, text("'promote' and 'spill' exclude each other: one takes memory, the other has none to give"));
    }
  }

  void check_skip() {
    const auto mode = parse_skip_mode(c_.skip);
    if (!mode.ok()) add({"skip"}, text("'skip' ", mode.status().message()));
  }

  const CacheConfig& c_;
  bool whole_;
  std::vector<ConfigProblem> problems_;
};

}  // namespace

std::vector<ConfigProblem> find_problems(const CacheConfig& config, bool whole) { return Checker(config, whole).run(); }

}  // namespace config

LayerConfig CacheConfig::layer(uint32_t index) const {
  LayerConfig out = tiers;
  for (const LayerOverride& o : overrides) {
    if (index < o.first || index > o.last) continue;
    if (o.hot) out.hot = *o.hot;
    if (o.warm) out.warm = *o.warm;
    if (o.sinks) out.sinks = *o.sinks;
    if (o.window) out.window = *o.window;
    if (o.warm_codec) out.warm_codec = *o.warm_codec;
    if (o.archive_codec) out.archive_codec = *o.archive_codec;
  }
  return out;
}

const std::string& CacheConfig::calibration_file() const {
  return calibrate.empty() || calibrate == "auto" || calibrate == "off" ? calibration : calibrate;
}

bool wants_calibration(const CacheConfig& config) {
  const auto needs = [](std::string_view name) {
    const auto pair = quant::parse_codec_pair(name);
    return pair.ok() && quant::needs_tables(*pair);
  };
  const auto warm_wants = [&](const std::string& name) { return needs(quant::resolve_warm(name, /*calibrated=*/true)); };
  const auto archive_wants = [&](const std::string& name) {
    return name == quant::kAdaptive || needs(quant::resolve_auto(name, /*calibrated=*/true));
  };
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const LayerConfig l = config.layer(i);
    if (l.hot == kAll || (l.window != 0 && l.hot >= l.window)) continue;  // nothing ever leaves the hot tail
    if ((l.warm != 0 && warm_wants(l.warm_codec)) || (l.warm != kAll && archive_wants(l.archive_codec))) return true;
  }
  return false;
}

Status validate(const CacheConfig& config) try {
  const auto problems = config::find_problems(config, true);
  if (problems.empty()) return {};
  return Status(StatusCode::invalid_argument, problems.front().message);
}
TIERKV_NO_MEMORY("check a configuration")

}  // namespace tierkv
