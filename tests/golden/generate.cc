// generate.cc — writes the golden snapshots: golden_generate FOLDER [FUZZ_CORPUS_FOLDER]. Files that are there already stay as they
// are.
//
// Run by hand once, when cases are added to golden.h. The second folder gets the seeds of fuzz/snapshot_fuzzer.cc.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "calib/deep.h"
#include "golden/golden.h"
#include "solve/testing.h"
#include "tierkv/snapshot.h"

namespace {

using namespace tierkv;

bool write(const std::filesystem::path& path, const void* data, size_t size) {
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  return static_cast<bool>(out.flush());
}

// Tables learnt from rows like those of the cases: "v1" for the codecs, "v1_deep" with a deep archive's, for one KV head.
bool calibrate(const std::string& name, const std::filesystem::path& folder) {
  const auto path = folder / ("calibration_" + name + ".tkc");
  if (std::filesystem::exists(path)) return true;
  const bool deep = name == "v1_deep";
  solve::SampleRows sample;
  sample.tokens = 1024, sample.head_dim = 32;
  sample.kv_heads = deep ? 1 : 2, sample.heads = 2 * sample.kv_heads;
  const size_t n = static_cast<size_t>(sample.tokens) * sample.kv_heads * sample.head_dim;
  const std::vector<float> keys = golden::rows(7000, n), values = golden::rows(7001, n);
  sample.keys = keys, sample.values = values;
  calib::Statistics s = solve::statistics_of(sample, solve::usual_rope(32), 2);
  s.model.name = "golden";
  s.block = 32;
  const std::vector<float> more_keys = golden::rows(7002, n), more_values = golden::rows(7003, n);
  for (size_t i = 0; i < n; ++i) {
    s.layers[1].keys[i] = f32_to_f16(more_keys[i]);
    s.layers[1].values[i] = f32_to_f16(more_values[i]);
  }
  auto tables = solve::all_tables(s);
  if (!tables.ok()) return false;
  calib::Calibration out(s, {"golden rows", s.tokens, "tests/golden"});
  out.klt = (*tables)->klt;
  if (deep) {
    auto solved = solve::solve_deep(s, {});
    if (!solved.ok()) return false;
    out.deep = std::make_shared<calib::DeepTables>(std::move(*solved));
  } else {
    out.kvquant = (*tables)->kvquant;
    out.squat = (*tables)->squat;
  }
  return out.finish().ok() && out.save(path).ok();
}

// What the library writes by itself: thresholds of two models, one of them moved.
bool thresholds(const std::filesystem::path& folder) {
  const auto path = folder / "thresholds_v1.json";
  if (std::filesystem::exists(path)) return true;
  for (const char* model : {"other:model", "golden"}) {
    CacheConfig c = golden::config("balanced", 64, 128, 4);
    c.model = model;
    auto cache = AdaptiveKVCache::create(c);
    if (!cache.ok()) return false;
    for (int i = 0; i < 60; ++i) {
      if (!(*cache)->adapt_thresholds({model[0] == 'g' ? 0.5f : 1.0f}).ok()) return false;
    }
    if (!(*cache)->save_thresholds(path).ok()) return false;
  }
  return true;
}

bool generate(const golden::Case& c, const std::filesystem::path& folder) {
  const auto file = folder / (c.name + ".tkv");
  if (std::filesystem::exists(file)) return true;
  CalibrationPtr tables;
  if (!c.calibration.empty()) {
    auto loaded = load_calibration(folder / ("calibration_" + c.calibration + ".tkc"));
    if (!loaded.ok()) return false;
    tables = *loaded;
  }
  auto cache = AdaptiveKVCache::create(c.config, tables);
  if (!cache.ok()) return false;
  SeqId seq = (*cache)->add_sequence().value();
  if (!c.live(**cache, seq)) return false;
  DeepOptions deep;
  DeepReport report;
  deep.ratio = c.deep_ratio;
  const auto bytes = c.deep_ratio > 0.0 ? (*cache)->freeze(seq, deep, &report) : (*cache)->freeze(seq);
  if (!bytes.ok() || !write(file, bytes->data(), bytes->size())) return false;
  if (c.deep_ratio > 0.0 && report.tokens == 0) return false;

  const auto info = inspect_snapshot(std::span<const std::byte>(*bytes), tables).value();
  nlohmann::ordered_json expected;
  expected["config"] = nlohmann::ordered_json::parse(to_json(c.config));
  if (!c.calibration.empty()) expected["calibration"] = "calibration_" + c.calibration + ".tkc";
  if (c.deep_ratio > 0.0) {  // what it becomes when it is loaded: rows decoded, and coded again as blocks
    seq = (*cache)->unfreeze(*bytes).value();
    expected["deep_tokens"] = report.tokens;
    expected["plain_checksum"] = checksum((*cache)->freeze(seq).value());
  }
  expected["length"] = info.length;
  expected["codecs"] = info.codecs;
  for (uint32_t h = 0; h < c.config.num_kv_heads; ++h) expected["positions"].push_back((*cache)->positions(seq, 1, h).value());
  expected["query_seed"] = golden::kQuerySeed;
  expected["queries"] = golden::kQueries;
  expected["attention"] = golden::attend(**cache, seq, golden::kQuerySeed, golden::kQueries, false);
  const std::string text = expected.dump() + "\n";
  std::printf("%s: %zu bytes\n", c.name.c_str(), bytes->size());
  return write(folder / (c.name + ".json"), text.data(), text.size());
}

// As in fuzz/snapshot_fuzzer.cc: config_of().
CacheConfig fuzz_config(uint32_t which) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.warm_block = config.archive_block = 16;
  config.tiers = {16, 32, "rot4", "rot2", 2, 0};
  if (which == 1) config.eviction.policy = "snapkv";
  if (which == 2) {
    config.tiers.warm_codec = "kivi4-g16";
    config.tiers.archive_codec = "turbo3/int8";
    config.eviction.policy = "h2o";
    config.eviction.observation = 4;
    config.max_seq_len = 64;
  }
  if (which == 3) config.tiers.window = 16;
  return config;
}

bool seed(uint32_t which, const std::filesystem::path& folder) {
  auto cache = AdaptiveKVCache::create(fuzz_config(which));
  if (!cache.ok()) return false;
  const SeqId seq = (*cache)->add_sequence().value();
  if (!golden::append(**cache, seq, 5, which == 3 ? 20 : 90) || golden::attend(**cache, seq, 6, 6, true).empty()) return false;
  if (which == 3 && !golden::append(**cache, seq, 7, 3)) return false;
  if (which == 1 && !((*cache)->evict(seq, 60).ok() && golden::append(**cache, seq, 7, 3))) return false;
  const auto bytes = (*cache)->freeze(seq);
  if (!bytes.ok()) return false;
  for (const uint32_t mode : {0u, 1u, 9u}) {
    std::vector<std::byte> input{static_cast<std::byte>(which << 1 | mode)};
    input.insert(input.end(), bytes->begin(), bytes->end());
    if (mode != 1 && which != 1) continue;  // one of each is enough: the mutator sets the mode anyway
    if (!write(folder / ("cache" + std::to_string(which) + "_mode" + std::to_string(mode)), input.data(), input.size()))
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [FUZZ_CORPUS_FOLDER]\n", argv[0]);
    return 2;
  }
  for (const char* name : {"v1", "v1_deep"}) {
    if (!calibrate(name, argv[1])) return 1;
  }
  if (!thresholds(argv[1])) return 1;
  for (const golden::Case& c : golden::cases()) {
    if (generate(c, argv[1])) continue;
    std::fprintf(stderr, "%s could not be made\n", c.name.c_str());
    return 1;
  }
  for (uint32_t which = 0; argc > 2 && which < 4; ++which) {
    if (!seed(which, argv[2])) return 1;
  }
  return 0;
}
