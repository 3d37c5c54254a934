// eval_common.h — what ppl, recall and bench share: the settings to compare, points to come back to, the text to score.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine_names.h"

namespace CLI {
class App;
}

namespace tierkv::cli {

// One way to keep keys and values: a --kv specification, or a type of libllama's own cache.
struct SettingSpec {
  std::string kv;  // "balanced", "hot=64,archive=rot2"; of stock "q8_0", "f16-noflash"
  bool stock = false;
  std::string name = {};  // that tables have instead (compare.h), or empty
  std::string label() const { return !name.empty() ? name : stock ? "stock " + kv : kv; }
  bool operator==(const SettingSpec&) const = default;
};

// --stock: "f16", "q8_0", "q4_0", "q8_0/q4_0" (keys/values); "-noflash" after it turns flash attention off.
void add_stock_option(CLI::App& app, std::vector<std::string>& stock, const std::string& fallback);
// `first`, then --kv, then --stock, each once. Refuses what can never work before time is spent on a model.
std::vector<SettingSpec> settle_settings(const std::vector<SettingSpec>& first, const std::vector<std::string>& kv,
                                         const std::vector<std::string>& stock);
// --learn: caches start as on a model's first day, without tables, and learn in passing; what they learn is not kept.
void add_learn_option(CLI::App& app, bool& learn);
// Whether its decoding steps may leave blocks of the archive unread (`skip`, or `spill` with a choice). Longer calls read all.
bool chooses_blocks(const SettingSpec& spec);
// Whether prompts leave the same bytes in both: they differ in nothing but `skip`.
bool reads_alike(const SettingSpec& a, const SettingSpec& b);
std::unique_ptr<Session> open_setting(Engine& engine, const SettingSpec& spec, uint32_t ctx, uint32_t micro_batch,
                                      bool learn = false);

// Where a session stands, to come back to any number of times: the same tokens then give the same logits again. Compressed tiers
// cannot be unwound by truncating (what was archived stays archived), so a cache of ours keeps a fork, which shares its blocks.
class Checkpoint {
 public:
  // `prefix`: what the session holds. libllama's own cache forgets what left a sliding window, and has to read it again.
  Checkpoint(Engine& engine, Session& session, Tokens prefix);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  void restore();
  // For the last time: the session takes the kept copy itself, and nothing is copied when it grows.
  void restore_last();

 private:
  void rewind();
  Session& session_;
  Tokens prefix_;
  uint32_t length_;
  bool windowed_ = false, held_ = false;
  SeqId id_ = 0;
};

// --file, or the test part of WikiText-2 in the cache folder. Missing: says how to get it.
std::string evaluation_text(const std::string& file);

}  // namespace tierkv::cli
