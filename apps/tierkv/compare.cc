// compare.cc — the list, and fitting each to the same bytes.
#include "compare.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "options.h"
#include "terminal.h"
#include "tierkv/c.h"

namespace tierkv::cli {
namespace {

// Bytes of a cache of the model's shape after `ctx` tokens. Rows are noise: no codec's bytes depend on what is in them.
class Scale {
 public:
  Scale(Engine& engine, uint32_t ctx, uint32_t chunk) : engine_(engine), ctx_(ctx), chunk_(std::min(chunk, ctx)) {
    const llama::ModelShape& shape = engine.shape();
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<size_t>(chunk_) * shape.kv_heads * shape.head_dim);
    for (float& x : rows_) x = normal(rng);
    queries_.assign(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(shape.kv_heads * shape.head_dim));
    queries_.resize(static_cast<size_t>(shape.heads) * shape.head_dim, 1.0f);
  }

  uint64_t bytes(const std::string& kv) const {
    CacheConfig config = engine_.config(kv);
    auto cache = take(AdaptiveKVCache::create(config, engine_.calibration(config)), "--compare: " + kv);
    const SeqId seq = take(cache->add_sequence());
    // Rows that are kept better by what they received wait for queries before they are archived.
    const bool asks = kv.find("+top") != std::string::npos;
    std::vector<float> out(queries_.size());
    for (uint32_t at = 0; at < ctx_; at += chunk_) {
      const uint32_t count = std::min(chunk_, ctx_ - at);
      const RowsView rows = RowsView::f32(rows_.data(), count, config.num_kv_heads, config.head_dim);
      for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
        check(cache->append(seq, layer, rows, rows));
        if (!asks) continue;
        const RowsView query = RowsView::f32(queries_.data(), 1, config.query_heads(), config.head_dim);
        check(cache->attention(seq, layer, query, out.data()));
      }
    }
    return cache->memory_usage().resident_bytes();
  }

 private:
  Engine& engine_;
  uint32_t ctx_, chunk_;
  std::vector<float> rows_, queries_;
};

// One of the others: a setting with a number that makes it larger.
struct Rival {
  std::string name;
  std::function<std::string(uint32_t)> kv;
  std::function<std::string(uint32_t)> gave_way;
  uint32_t least = 0, most = 0;
};

// The largest number whose bytes are no more than `target`; `least` where none is. Bytes grow with it, but for steps of blocks.
Compared fit(const Scale& scale, const Rival& rival, uint64_t target) {
  uint32_t low = rival.least, high = rival.most;
  uint64_t low_bytes = scale.bytes(rival.kv(low));
  if (low_bytes <= target) {
    uint64_t high_bytes = scale.bytes(rival.kv(high));
    if (high_bytes <= target) low = high, low_bytes = high_bytes;
    while (high > low + 1) {
      // Where a straight line would meet the target, but never so near an end that little is learned.
      const double share = static_cast<double>(target - low_bytes) / static_cast<double>(high_bytes - low_bytes);
      const uint32_t middle = low + static_cast<uint32_t>(std::lround(std::clamp(share, 0.02, 0.98) * (high - low)));
      const uint32_t at = std::clamp(middle, low + 1, high - 1);
      const uint64_t bytes = scale.bytes(rival.kv(at));
      if (bytes <= target) {
        low = at, low_bytes = bytes;
      } else {
        high = at, high_bytes = bytes;
      }
      if (static_cast<double>(target - low_bytes) < 0.003 * static_cast<double>(target)) break;
    }
  }
  Compared done;
  done.spec = {rival.kv(low), false, rival.name};
  done.bytes = low_bytes;
  done.fits = low_bytes <= target;
  done.gave_way = rival.gave_way(low);
  return done;
}

std::string without_top(const std::string& codec) {
  std::string out;
  for (size_t at = 0; at < codec.size();) {
    if (codec.compare(at, 4, "+top") != 0) {
      out += codec[at++];
      continue;
    }
    for (at += 4; at < codec.size() && std::isdigit(static_cast<unsigned char>(codec[at]));) ++at;
  }
  return out;
}

// The one-line form with a key set to another value, whichever of its two names it had.
std::string with(const std::string& kv, const std::string& key, const std::string& full, const std::string& value) {
  std::string out;
  for (size_t at = 0; at <= kv.size();) {
    const size_t end = std::min(kv.find(',', at), kv.size());
    const std::string part = kv.substr(at, end - at);
    const std::string name = part.substr(0, part.find('='));
    if (part.find('=') == std::string::npos || (name != key && name != full)) out += (out.empty() ? "" : ",") + part;
    at = end + 1;
  }
  return out + (out.empty() ? "" : ",") + key + "=" + value;
}

// The same tiers by age alone. A calibrated archive gets the bits that the better rows took; any other a longer warm tier.
Rival by_age(const std::string& ours, const CacheConfig& config, uint32_t ctx) {
  const std::string codec = without_top(config.tiers.archive_codec);
  if (codec.starts_with("klt") && codec.find('/') == std::string::npos && codec[3] != 'k') {
    return {"fifo", [=](uint32_t eighths) { return with(ours, "archive", "archive_codec", format("klt%g", eighths / 8.0)); },
            [](uint32_t eighths) { return format("archive at %g bits of keys", eighths / 8.0); }, 4, 32};
  }
  const std::string plain = with(ours, "archive", "archive_codec", codec);
  return {"fifo", [=](uint32_t warm) { return with(plain, "warm", "warm", std::to_string(warm)); },
          [](uint32_t warm) { return format("%u tokens warm", warm); }, std::min(config.tiers.warm, ctx), ctx};
}

Rival windowed(const char* name, const std::string& kv, uint32_t ctx) {
  return {name, [=](uint32_t hot) { return kv + format(",hot=%u", hot); },
          [](uint32_t hot) { return format("%u newest tokens FP16", hot); }, 16, ctx};
}

// OSCAR needs rotations, which calibrations made before it was known do not have.
bool has_rotations(Engine& engine, const CacheConfig& config) {
  const CalibrationPtr tables = engine.calibration(config);
  if (!tables) return false;
  const std::vector<std::string> codecs = describe(*tables).codecs;
  return std::find(codecs.begin(), codecs.end(), "oscar") != codecs.end();
}

// With 4 first tokens, as all of ours have; the paper keeps 64. The window of newest tokens gives way.
std::string oscar_setting(const CacheConfig& config) {
  const std::string file = config.calibration_file();
  return "kivi2,archive=oscar2" + (file.empty() ? "" : ",calibration=" + file);
}

// Dropped by sixteen, so that a budget is all but full whenever somebody looks.
Rival evicting(const std::string& policy, uint32_t ctx) {
  return {policy,
          [=](uint32_t tokens) {
            return format("fp16,hot=all,sinks=4,evict=%s,evict_batch=16,max_seq_len=%u", policy.c_str(), tokens);
          },
          [](uint32_t tokens) { return format("%u FP16 tokens kept", tokens); }, std::min(48u, ctx), ctx};
}

}  // namespace

void add_compare_option(CLI::App& app, std::string& compare) {
  app.add_option("--compare", compare,
                 "beside this setting, tiers by age alone, every eviction policy, KIVI and a plain 2-bit rotation, each at the "
                 "resident bytes that this setting has at the end of a window")
      ->type_name("SPEC");
}

std::vector<Compared> rivals_of(Engine& engine, const std::string& ours, uint32_t ctx, uint32_t chunk, bool quiet) {
  const CacheConfig config = engine.config(ours);
  if (config.eviction.policy != "none") bad_input("--compare takes a setting of ours, and " + ours + " has an eviction policy");
  if (ours.ends_with(".toml") || ours.ends_with(".json")) bad_input("--compare takes a preset or the one-line form, not a file");
  const Scale scale(engine, ctx, chunk);
  std::vector<Rival> rivals = {by_age(ours, config, ctx)};
  for (size_t i = 0; const char* policy = tierkv_policy_name(i); ++i) rivals.push_back(evicting(policy, ctx));
  rivals.push_back(windowed("kivi", "kivi2,archive=kivi2-g32,sinks=0", ctx));
  rivals.push_back(windowed("kivi with sinks", "kivi2", ctx));
  rivals.push_back(windowed("2-bit rotation", "kivi2,archive=rot2", ctx));
  if (has_rotations(engine, config)) rivals.push_back(windowed("OSCAR's rotation, 2 bits", oscar_setting(config), ctx));

  Progress progress("fitting", rivals.size() + 1, quiet);
  std::vector<Compared> all = {{{ours, false, "ours"}, scale.bytes(ours), true, ""}};
  for (const Rival& rival : rivals) {
    progress.label("fitting " + rival.name);
    all.push_back(fit(scale, rival, all[0].bytes));
    progress.update(all.size());
  }
  progress.finish();
  return all;
}

void add_compared(nlohmann::json& values, const std::vector<Compared>& rivals) {
  for (nlohmann::json& value : values) {
    for (const Compared& rival : rivals) {
      if (value["kv"] != rival.spec.kv || value["stock"] == true) continue;
      value["label"] = rival.spec.name;
      value["compare"] = {
          {"bytes", rival.bytes}, {"target_bytes", rivals[0].bytes}, {"fits", rival.fits}, {"gave_way", rival.gave_way}};
    }
  }
}

void print_rivals(const std::vector<Compared>& rivals) {
  Table table({"<name", "resident", "<gave way", "<setting"});
  for (const Compared& rival : rivals) {
    table.add({rival.spec.name, human_bytes(static_cast<double>(rival.bytes)) + (rival.fits ? "" : " (its least)"), rival.gave_way,
               rival.spec.kv});
  }
  std::printf("%s\n", table.str().c_str());
}

}  // namespace tierkv::cli
