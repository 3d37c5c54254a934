// config.h — what a cache is: the model's shape, the length and codec of each tier, and the limits it lives within.
//
// The same fields are set from code, from TOML or JSON, or from a one-line form for command lines:
//
//     hot=64,warm=448,archive=rot2,sinks=4
//
// One schema (src/config/schema.cc) describes them all: unknown keys, wrong types and impossible combinations are
// refused with the key's name, the allowed values and, for files, the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tierkv/status.h"

namespace tierkv {

// A tier length that never ends ("all" in text).
inline constexpr uint32_t kAll = 0xFFFFFFFFu;

// How the tokens of one layer are kept, from the newest to the oldest:
//   hot      the newest `hot` tokens (and the block being filled) as 16-bit floats,
//   warm     the next `warm` tokens in `warm_codec` (kAll: everything older than hot),
//   archive  everything older, in `archive_codec`,
// and the first `sinks` tokens of the sequence as FP16 for ever.
//
// A codec is named as src/quant/registry.h says: "rot2", "kivi4-g64", "turbo3"; "rot3/rot2" gives keys and values different ones.
// As the archive's, "auto" is the best there is: "klt1.875" with a calibration, "even4/mid2" without one ("auto3": "klt2.5"
// or "even4/mid3"; "auto1": "klt1.5" or "even3/mid2"). As the warm codec it is "kltk4/rot4" where there are tables, or "even4".
struct LayerConfig {
  uint32_t hot = 64;
  uint32_t warm = 448;
  std::string warm_codec = "even4";
  std::string archive_codec = "auto";
  uint32_t sinks = 4;
  // Sliding-window attention: a query at position p sees the keys p-window+1 .. p. 0 is full attention.
  // When hot >= window the layer is one FP16 ring buffer of the window; otherwise blocks are dropped as they leave it.
  uint32_t window = 0;

  bool operator==(const LayerConfig&) const = default;
};

// Different settings for some layers; what is not set is the cache's own.
struct LayerOverride {
  uint32_t first = 0;  // layers first..last, both included
  uint32_t last = 0;
  std::optional<uint32_t> hot, warm, sinks, window;
  std::optional<std::string> warm_codec, archive_codec;

  bool operator==(const LayerOverride&) const = default;
};

// Which tokens go when max_seq_len or the byte budget is reached. "none": nothing is ever dropped, the append is refused.
struct EvictionConfig {
  std::string policy = "none";   // none, h2o, sliding_window, streaming_llm, tova, snapkv, scissorhands, pyramidkv(_linear), akv
  uint32_t protect_recent = 32;  // the newest tokens are never evicted (at most half the budget)
  uint32_t batch = 64;           // tokens dropped at a time (at most an eighth of the budget)
  uint32_t observation = 32;     // queries in SnapKV's window and ScissorHands' history
  uint32_t pool = 7;             // SnapKV's pooling width, odd
  uint32_t window = 0;           // sliding_window and streaming_llm: tokens kept beside the sinks; 0: what the budget allows
  double pyramid_beta = 20.0;    // PyramidKV's steepness

  bool operator==(const EvictionConfig&) const = default;
};

// The target of deep archives (park(), freeze and save with DeepOptions) where a call names none. At most one of the two; neither:
// 20 times.
struct DeepConfig {
  double ratio = 0.0;    // times smaller than FP16
  double quality = 0.0;  // or: share of the energy, as attention sees it, that must survive

  bool operator==(const DeepConfig&) const = default;
};

// The cold store: what leaves the warm tier for the archive is copied into a file first, behind the caller. park() and deep
// snapshots take the rows from there, and promote() brings blocks back. The file is the cache's scratch: nothing in it outlives
// the cache. The keys are `cold`, `cold_codec`, `cold_budget`, `promote` and `spill`.
struct ColdConfig {
  std::string path = "off";    // "off", a file, or a folder in which a file without a name is made
  std::string codec = "int8";  // any codec without tables: fp16, int8, rot4, ...
  uint64_t budget = 0;         // bytes of the file at most; 0: no limit
  // Blocks of each KV head that may lie in memory once more as their copies, while queries look at them: they come and go by
  // themselves, few at a time (attention calls of at most 64 queries look now and then). 0: only promote() brings them back.
  uint32_t promote = 0;
  // Whether archive blocks themselves go to the file when byte_budget is short, and what a decoding step then reads of them:
  //   "off"          they stay in memory,
  //   "exact"        all of them,
  //   "bounded:EPS"  all but those that provably have no more than EPS of the attention together,
  //   "top:K"        the K of each KV head that may have most.
  std::string spill = "off";

  bool off() const { return path.empty() || path == "off"; }
  bool operator==(const ColdConfig&) const = default;
};

struct CacheConfig {
  // The model.
  std::string model;  // a name for thresholds and snapshots; may be empty
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;  // query heads; 0: as many as KV heads
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;  // 32..256, a multiple of 16

  // The tiers.
  LayerConfig tiers;
  std::vector<LayerOverride> overrides;  // later ones win
  std::string hot_type = "fp16";         // fp16 or bf16: the rows of the hot tail
  uint32_t warm_block = 64;              // tokens in a warm block: 16..256, a multiple of 16
  uint32_t archive_block = 128;          // tokens in an archive block: a multiple of warm_block, at most 256
  // Which archive blocks in memory a decoding step reads (at most 16 rows of queries for each KV head; prompts read all):
  //   "off"          all of them,
  //   "bounded:EPS"  all but those that provably have no more than EPS of the attention together,
  //   "top:K"        the K of each KV head that probably have most,
  //   "top_p:P"      those that probably have P of the attention, with what is not archived.
  // Each archive block gets a summary for it, 2.25 bytes a channel.
  std::string skip = "off";

  // The limits.
  uint32_t max_seq_len = 0;  // tokens kept per sequence; 0: no limit
  uint64_t byte_budget = 0;  // of all sequences together; 0: no limit
  EvictionConfig eviction;
  uint32_t window_slack = 32;  // tokens a windowed layer keeps beyond its window so that truncate() can roll back

  DeepConfig deep;
  ColdConfig cold;
  // Tables of the model's keys and values (tierkv/calibration.h), which "auto" archives and some codecs work with:
  //   "auto"  those that are there, and where there are none the model is learned in passing (tierkv/learning.h),
  //   "off"   none: nothing is looked for and nothing learned,
  //   FILE    a file of `tierkv calibrate`,
  //   ""      as the program likes: a bare cache has none, tierkv_llama_attach() and the command take it for "auto".
  std::string calibrate;
  std::string calibration;  // another spelling of calibrate = FILE

  // Adaptation (ADR-004).
  double quality_target = 0.97;

  uint32_t threads = 1;  // that attention() and append() may use, the caller's own included

  bool operator==(const CacheConfig&) const = default;

  // The settings of one layer with every override applied.
  LayerConfig layer(uint32_t index) const;
  uint32_t query_heads() const { return num_heads ? num_heads : num_kv_heads; }
  // The file that `calibrate` or `calibration` names; empty: none.
  const std::string& calibration_file() const;
};

// Refuses impossible values and combinations, naming the key and what is allowed.
Status validate(const CacheConfig& config);

// Whether some layer would use a calibration of the model: it archives tokens in a codec that needs one, or in "auto", which is
// better with one.
bool wants_calibration(const CacheConfig& config);

// Presets set tiers, blocks, eviction and the deep archive's target, and leave the model and the limits alone.
std::vector<std::string> preset_names();
Status apply_preset(std::string_view name, CacheConfig& config);

// Apply a file or text on top of `config`. On error `config` is untouched. `origin` names the text in messages.
// A file may start from a preset with the key `preset`.
Status apply_toml(std::string_view text, CacheConfig& config, std::string_view origin = "<toml>");
Status apply_json(std::string_view text, CacheConfig& config, std::string_view origin = "<json>");
Status apply_file(const std::string& path, CacheConfig& config);  // by its ending: .toml or .json
// "preset", "key=value,key=value" or "preset,key=value". Short keys: hot warm archive sinks window evict…
Status apply_inline(std::string_view text, CacheConfig& config);
// What --kv of a command takes: a preset, a file's path, or the inline form.
Status apply_spec(std::string_view spec, CacheConfig& config);

// The whole configuration as JSON; apply_json() of it gives the same configuration back.
std::string to_json(const CacheConfig& config);

}  // namespace tierkv
