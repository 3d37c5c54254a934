// generate.cc — writes the golden snapshots: golden_generate FOLDER [FUZZ_CORPUS_FOLDER]. Files that are there already stay as they
// are.
//
// Run by hand once, when cases are added to golden.h. The second folder gets the seeds of fuzz/snapshot_fuzzer.cc.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "golden/golden.h"
#include "tierkv/snapshot.h"

namespace {

using namespace tierkv;

bool write(const std::filesystem::path& path, const void* data, size_t size) {
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  return static_cast<bool>(out.flush());
}

bool generate(const golden::Case& c, const std::filesystem::path& folder) {
  const auto file = folder / (c.name + ".tkv");
  if (std::filesystem::exists(file)) return true;
  auto cache = AdaptiveKVCache::create(c.config);
  if (!cache.ok()) return false;
  SeqId seq = (*cache)->add_sequence().value();
  if (!c.live(**cache, seq)) return false;
  const auto bytes = (*cache)->freeze(seq);
  if (!bytes.ok() || !write(file, bytes->data(), bytes->size())) return false;

  const auto info = inspect_snapshot(std::span<const std::byte>(*bytes)).value();
  nlohmann::ordered_json expected;
  expected["config"] = nlohmann::ordered_json::parse(to_json(c.config));
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
