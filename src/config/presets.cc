// Presets set the tiers, the blocks, the eviction and the target of deep archives. They leave the model (its sliding windows
// included), hot_type and the limits.
#include "config/presets.h"

#include "base/guarded.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv {
namespace config {
namespace {

// The published KIVI has no sinks; ours do, because without them every low-bit archive collapses on real models.
constexpr Preset kPresets[] = {
    {"fp16", "nothing is compressed: the reference", 64, kAll, "fp16", "fp16", 0, 64, 128},
    {"int8", "everything past the hot rows at 8 bits: near-lossless", 64, kAll, "int8", "int8", 4, 64, 128},
    {"kivi4", "KIVI at 4 bits in groups of 64", 128, kAll, "kivi4-g64", "kivi4-g64", 4, 128, 128},
    {"kivi2", "KIVI at 2 bits in groups of 64 (its paper: `kivi2-g32`, no sinks)", 128, 0, "kivi4-g64", "kivi2-g64", 4, 128, 128},
    {"k4v2", "AKV's split: keys at 4 bits, values at 2", 128, 0, "kivi4-g64", "kivi4-g64/kivi2-g64", 4, 128, 128},
    {"k4v3", "AKV's split: keys at 4 bits, values at 3", 128, 0, "kivi4-g64", "kivi4-g64/kivi3-g64", 4, 128, 128},
    {"balanced", "the default: an archive of 2 bits with a calibration, 3 without, behind 4-bit warm", 64, 448, "even4", "auto", 4,
     64, 128},
    {"quality", "3-bit archive, longer tiers", 128, 896, "even4", "auto3", 8, 64, 128},
    {"compact", "the smallest that still has every tier", 32, 128, "even4", "auto", 4, 64, 128},
    {"deep", "for many sequences that mostly wait: 4 bits while they are read, 32 times smaller than FP16 when idle or saved", 64,
     kAll, "rot4", "rot4", 4, 64, 128, 32.0},
    {"adr004", "AKV's defaults: 1024 hot, 2048 at 4 bits, the rest at 2, groups of 128", 1024, 2048, "kivi4-g128", "kivi2-g128", 4,
     128, 128},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

}  // namespace config

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const config::Preset& preset : config::presets()) names.push_back(preset.name);
  return names;
}

Status apply_preset(std::string_view name, CacheConfig& config) try {
  for (const config::Preset& preset : config::presets()) {
    if (name != preset.name) continue;
    config.tiers.hot = preset.hot;
    config.tiers.warm = preset.warm;
    config.tiers.warm_codec = preset.warm_codec;
    config.tiers.archive_codec = preset.archive_codec;
    config.tiers.sinks = preset.sinks;
    config.warm_block = preset.warm_block;
    config.archive_block = preset.archive_block;
    config.deep = {preset.deep_ratio, 0.0};
    config.eviction = EvictionConfig();  // protects the newest 32, drops 64 at a time (AKV's too), evicts nothing unasked
    // Layers keep their sliding windows, which are the model's, and lose every other difference.
    std::vector<LayerOverride> windows;
    for (const LayerOverride& old : config.overrides) {
      if (!old.window) continue;
      LayerOverride& kept = windows.emplace_back();
      kept.first = old.first, kept.last = old.last, kept.window = old.window;
    }
    config.overrides = std::move(windows);
    return {};
  }
  const auto names = preset_names();
  const int guess = nearest(name, names);
  return error(StatusCode::invalid_argument, "unknown preset ", quote(name),
               guess >= 0 ? "; did you mean '" + names[static_cast<size_t>(guess)] + "'?" : "", "; presets: ", join(names));
}
TIERKV_NO_MEMORY("read a configuration")

}  // namespace tierkv
