#include "config/schema.h"

#include "policy/policy.h"

namespace tierkv::config {
namespace {

template <auto... Path>
auto& at(auto& object) {
  return (object.*....*Path);
}

std::optional<Value> to_value(uint32_t v) { return Value(static_cast<uint64_t>(v)); }
std::optional<Value> to_value(uint64_t v) { return Value(v); }
std::optional<Value> to_value(double v) { return Value(v); }
std::optional<Value> to_value(const std::string& v) { return Value(v); }
template <class T>
std::optional<Value> to_value(const std::optional<T>& v) {
  return v ? to_value(*v) : std::nullopt;
}

void store(const Value& v, uint32_t& out) { out = static_cast<uint32_t>(std::get<uint64_t>(v)); }
void store(const Value& v, uint64_t& out) { out = std::get<uint64_t>(v); }
void store(const Value& v, double& out) { out = std::get<double>(v); }
void store(const Value& v, std::string& out) { out = std::get<std::string>(v); }
template <class T>
void store(const Value& v, std::optional<T>& out) {
  store(v, out.emplace());
}

template <class Target, auto... Path>
Field<Target> row(const char* section, const char* key, const char* alias, FieldType type, const char* help) {
  return {section,
          key,
          alias,
          type,
          help,
          [](const Target& t) { return to_value(at<Path...>(t)); },
          [](Target& t, const Value& v) { store(v, at<Path...>(t)); }};
}

FieldType count(uint64_t min, uint64_t max, uint64_t multiple = 1) {
  FieldType type;
  type.min = min, type.max = max, type.multiple = multiple;
  return type;
}
FieldType or_zero(FieldType type) {
  type.or_zero = true;
  return type;
}
FieldType odd(uint64_t min, uint64_t max) {
  FieldType type = count(min, max);
  type.odd = true;
  return type;
}
FieldType tokens() {
  FieldType type = count(0, kMaxTokens);
  type.kind = FieldType::Kind::tokens;
  return type;
}
FieldType bytes() {
  FieldType type = count(0, uint64_t{1} << 60);
  type.kind = FieldType::Kind::bytes;
  return type;
}
FieldType real(double min, double max, bool min_included) {
  FieldType type;
  type.kind = FieldType::Kind::real;
  type.min_real = min, type.max_real = max, type.min_included = min_included;
  return type;
}
FieldType text(uint64_t max_bytes) {
  FieldType type;
  type.kind = FieldType::Kind::text, type.max = max_bytes;
  return type;
}
FieldType choice(std::vector<std::string> (*choices)()) {
  FieldType type;
  type.kind = FieldType::Kind::choice, type.choices = choices;
  return type;
}
FieldType codec() {
  FieldType type;
  type.kind = FieldType::Kind::codec;
  return type;
}

FieldType archive_codec() {
  FieldType type = codec();
  type.or_adaptive = true;
  return type;
}

std::vector<std::string> hot_types() { return {"fp16", "bf16"}; }
std::vector<std::string> policy_names() {
  std::vector<std::string> names = {"none"};
  for (const policy::PolicyRow& row : policy::policy_rows()) names.push_back(row.name);
  return names;
}

// Shared by the keys that a layer may override.
constexpr const char* kHotHelp = "newest tokens kept as 16-bit floats (the block being filled comes on top)";
constexpr const char* kWarmHelp = "tokens after the hot ones kept in `warm_codec`; `all`: there is no archive";
constexpr const char* kWarmCodecHelp = "codec of the warm tier; `key/value` gives the two sides different ones";
constexpr const char* kArchiveCodecHelp = "codec of everything older; `auto`: the best there is with and without a calibration";
constexpr const char* kSinksHelp = "first tokens of a sequence kept as FP16 for ever";
constexpr const char* kWindowHelp = "sliding-window attention: a query sees this many newest keys; 0 is full attention";

using C = CacheConfig;
using L = LayerConfig;
using O = LayerOverride;
using E = EvictionConfig;
using D = DeepConfig;
using Z = ColdConfig;

}  // namespace

std::span<const Field<CacheConfig>> config_fields() {
  static const std::vector<Field<CacheConfig>> fields = {
      row<C, &C::model>("", "model", "", text(256), "a name for thresholds and snapshots"),
      row<C, &C::num_layers>("", "num_layers", "", count(0, 4096), "layers of the model; 0: set by the program"),
      row<C, &C::num_heads>("", "num_heads", "heads", count(0, 4096), "query heads; 0: as many as KV heads"),
      row<C, &C::num_kv_heads>("", "num_kv_heads", "kv_heads", count(0, 4096), "KV heads; 0: set by the program"),
      row<C, &C::head_dim>("", "head_dim", "", or_zero(count(32, 256, 16)), "channels of a head; 0: set by the program"),
      row<C, &C::tiers, &L::hot>("", "hot", "", tokens(), kHotHelp),
      row<C, &C::tiers, &L::warm>("", "warm", "", tokens(), kWarmHelp),
      row<C, &C::tiers, &L::warm_codec>("", "warm_codec", "", codec(), kWarmCodecHelp),
      row<C, &C::tiers, &L::archive_codec>("", "archive_codec", "archive", archive_codec(), kArchiveCodecHelp),
      row<C, &C::tiers, &L::sinks>("", "sinks", "", count(0, kMaxSinks), kSinksHelp),
      row<C, &C::tiers, &L::window>("", "window", "", count(0, kMaxTokens), kWindowHelp),
      row<C, &C::hot_type>("", "hot_type", "", choice(hot_types), "the 16-bit float of the hot rows"),
      row<C, &C::warm_block>("", "warm_block", "", count(16, 256, 16), "tokens in a warm block"),
      row<C, &C::archive_block>("", "archive_block", "", count(16, 256, 16),
                                "tokens in an archive block, a multiple of `warm_block`"),
      row<C, &C::skip>("", "skip", "", text(64),
                       "archive blocks in memory that decoding leaves unread, by a summary of their keys: `bounded:EPS` those that "
                       "provably have at most EPS of the attention together, `top:K` all but the K of each KV head that probably "
                       "have most, `top_p:P` all but those that probably have P of it; `off`: none"),
      row<C, &C::calibrate>("", "calibrate", "", text(4096),
                            "tables of the model: `auto` learns them in passing where there are none, `off`, or a file of "
                            "`tierkv calibrate`; empty: as the program likes"),
      row<C, &C::calibration>("", "calibration", "", text(4096), "the same for a file"),
      row<C, &C::max_seq_len>("", "max_seq_len", "max_len", count(0, kMaxTokens), "tokens kept per sequence; 0: no limit"),
      row<C, &C::byte_budget>("", "byte_budget", "budget", bytes(), "bytes of all sequences together; 0: no limit"),
      row<C, &C::cold, &Z::path>(
          "", "cold", "", text(4096),
          "copies of what is archived go to this file, or to one in this folder: for `park()`, deep snapshots and "
          "`promote()`; `off`: none are made"),
      row<C, &C::cold, &Z::codec>("", "cold_codec", "", codec(), "codec of these copies, one that needs no tables"),
      row<C, &C::cold, &Z::budget>("", "cold_budget", "", bytes(), "bytes of that file at most; 0: no limit"),
      row<C, &C::cold, &Z::promote>("", "promote", "", count(0, 4096),
                                    "archived blocks of each KV head that may lie in memory once more as their copies of the cold "
                                    "file, while queries look at them; 0: only `promote()` brings blocks back"),
      row<C, &C::cold, &Z::spill>(
          "", "spill", "", text(64),
          "archive blocks go to the cold file when `byte_budget` is short, and decoding reads them from there: "
          "`exact` all, `bounded:EPS` all but those that provably have at most EPS of the attention together, "
          "`top:K` the K of each KV head that may have most; `off`: they stay in memory"),
      row<C, &C::window_slack>("", "window_slack", "", count(0, 65536),
                               "tokens a windowed layer keeps past its window, for truncate()"),
      row<C, &C::quality_target>("", "quality_target", "", real(0.0, 1.0, false), "score that adaptation holds"),
      row<C, &C::threads>("", "threads", "", count(1, 1024), "threads attention() and append() may use, the caller's own included"),
      row<C, &C::eviction, &E::policy>("eviction", "policy", "evict", choice(policy_names),
                                       "which tokens go at `max_seq_len` or `byte_budget`; `none`: the append is refused"),
      row<C, &C::eviction, &E::protect_recent>("eviction", "protect_recent", "protect_recent", count(0, kMaxTokens),
                                               "newest tokens never evicted (at most half the budget)"),
      row<C, &C::eviction, &E::batch>("eviction", "batch", "evict_batch", count(1, kMaxTokens),
                                      "tokens dropped at a time (at most an eighth of the budget)"),
      row<C, &C::eviction, &E::observation>("eviction", "observation", "observation", count(1, 4096),
                                            "queries in SnapKV's window and Scissorhands' history"),
      row<C, &C::eviction, &E::pool>("eviction", "pool", "pool", odd(1, 255), "SnapKV's pooling width"),
      row<C, &C::eviction, &E::window>("eviction", "window", "evict_window", count(0, kMaxTokens),
                                       "sliding_window and streaming_llm: tokens kept beside the sinks; 0: what the budget allows"),
      row<C, &C::eviction, &E::pyramid_beta>("eviction", "pyramid_beta", "pyramid_beta", real(1.0, 1000.0, true),
                                             "PyramidKV's steepness; 1 is flat"),
      row<C, &C::deep, &D::ratio>(
          "deep", "ratio", "deep_ratio", or_zero(real(2.0, 1000.0, true)),
          "deep archives of idle and saved sequences: times smaller than FP16; 0 and no `deep.quality`: 20"),
      row<C, &C::deep, &D::quality>("deep", "quality", "deep_quality", or_zero(real(0.0, 1.0, false)),
                                    "or: share of the energy, as attention sees it, that must survive; excludes `deep.ratio`"),
  };
  return fields;
}

std::span<const Field<LayerOverride>> layer_fields() {
  static const std::vector<Field<LayerOverride>> fields = {
      row<O, &O::hot>("", "hot", "", tokens(), kHotHelp),
      row<O, &O::warm>("", "warm", "", tokens(), kWarmHelp),
      row<O, &O::warm_codec>("", "warm_codec", "", codec(), kWarmCodecHelp),
      row<O, &O::archive_codec>("", "archive_codec", "archive", archive_codec(), kArchiveCodecHelp),
      row<O, &O::sinks>("", "sinks", "", count(0, kMaxSinks), kSinksHelp),
      row<O, &O::window>("", "window", "", count(0, kMaxTokens), kWindowHelp),
  };
  return fields;
}

std::vector<std::string> markdown_rows() {
  std::vector<std::string> rows;
  const CacheConfig defaults;
  for (const auto& field : config_fields()) {
    const std::string value = to_text(field.type, *field.get(defaults));
    rows.push_back("| `" + field.path() + "` | " + (*field.alias ? "`" + std::string(field.alias) + "`" : "") + " | " +
                   (value.empty() ? "empty" : "`" + value + "`") + " | " + allowed(field.type) + " | " + field.help + " |");
  }
  for (const auto& field : layer_fields()) rows.push_back("| `" + field.path() + "` | " + allowed(field.type) + " |");
  return rows;
}

}  // namespace tierkv::config
