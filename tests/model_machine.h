// model_machine.h — a machine that does random things to an AdaptiveKVCache and to the naive reference beside it, and compares.
//
// Everything random comes from one seed. The first difference stops the machine; report() says what differed, in which operation,
// and how to run the same again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/folder_testing.h"
#include "inspect.h"
#include "reference_cache.h"
#include "tierkv/cache.h"

namespace tierkv::testing {

struct MachineSetup {
  std::string name;
  std::string settings;                              // CacheConfig's inline form
  double row_tolerance = 0.0;                        // of a compressed element, for rows within [-1, 1]; 0: bit-exact in every tier
  uint32_t max_length = 256;                         // the machine shortens longer sequences
  bool adapts = false;                               // feeds quality scores, so that thresholds move
  std::function<void(CacheConfig&)> more = nullptr;  // what the inline form cannot say
  bool calibrated = false;                           // with tables (model_tables.h): it parks, wakes and changes its calibration
  bool cold = false;                                 // with a cold file: it promotes and demotes
  bool cold_faults = false;                          // which is damaged now and then
  bool grows_long = false;                           // new sequences start past a split of attention (1,024 tokens)
  std::function<std::shared_ptr<const attn::Backend>()> backend = nullptr;  // who attends; none: the processor
  bool there = false;  // most rows and queries are said to be in the device's memory, which is the processor's: a twin
  // Of results of more queries than that, where a backend's numbers are coarser there.
  double many_tolerance = 0.0;
  uint32_t few_queries = 0;

  bool warm_is_exact() const { return settings.find("warm_codec=fp16") != std::string::npos; }
};

inline std::ostream& operator<<(std::ostream& out, const MachineSetup& setup) { return out << setup.name; }

class Machine {
 public:
  Machine(const MachineSetup& setup, uint64_t seed);
  // True when `operations` operations found nothing.
  bool run(uint64_t operations);
  std::string report() const;
  // How often an operation ran, or got to where it matters: "parked", "woken", "over splits", "deep snapshot", "calibrated",
  // "promoted".
  uint64_t times(const std::string& what) const { return done_.count(what) ? done_.at(what) : 0; }

 private:
  struct Rows;  // the caller's rows in one of many layouts

  // operations
  void add();
  void append();
  void grow(SeqId id, uint32_t layer, uint32_t tokens);
  void attend();
  void get_rows();
  void truncate();
  void fork();
  void remove();
  void evict();
  void flush();
  void adapt();
  void freeze();
  void memory();
  void verify();
  void bad_call();
  void park();
  void wake();
  void deep_freeze();
  void calibrate();
  void promote();
  void demote();
  void damage_cold();

  // checks
  void check_layer(SeqId id, uint32_t layer);
  void check_parked(SeqId id);
  void check_promoted(SeqId id, uint32_t first, uint32_t end, bool complete);
  std::vector<uint64_t> bases(SeqId id) const;
  void fork_parked(SeqId id);
  void check_parts(const MemoryStats& m);
  void check_rows(SeqId id, uint32_t layer, uint32_t head, uint32_t most);
  void check_live_after_append(SeqId id, uint32_t layer, uint32_t before, const std::vector<std::vector<uint32_t>>& old_live);
  void check_head_attention(SeqId id, uint32_t layer, uint32_t head, const std::vector<float>& queries, uint32_t count,
                            const std::vector<float>& out, const AttentionOptions& options, const MassReport* mass);
  ReferenceHead rows_of(SeqId id, uint32_t layer, uint32_t head) const;
  const tiers::HeadStream& stream(SeqId id, uint32_t layer, uint32_t head) const;
  RowsView placed(RowsView view);
  Rows make_rows(uint32_t tokens, uint32_t heads, DType type, float size);

  // chance
  uint32_t below(uint32_t n) { return n ? static_cast<uint32_t>(rng_() % n) : 0; }
  bool one_in(uint32_t n) { return below(n) == 0; }
  float real(float size) { return size * (static_cast<float>(below(1u << 24)) / static_cast<float>(1u << 23) - 1.0f); }
  SeqId any_sequence();  // that is awake
  bool all_parked() const { return !model_.empty() && parked_.size() == model_.size(); }
  DeepOptions any_deep_options();
  uint32_t any_layer() { return below(config_.num_layers); }

  bool may_run_out() const { return config_.byte_budget != 0; }
  bool evicting() const { return config_.eviction.policy != "none"; }
  template <class... Parts>
  void fail(const Parts&... parts) {
    if (!problem_.empty()) return;
    std::ostringstream out;
    (out << ... << parts);
    problem_ = out.str();
  }

  const MachineSetup setup_;
  const uint64_t seed_;
  std::mt19937_64 rng_;
  CacheConfig config_;
  const TestFolder folder_;  // of the cold file
  bool faulted_ = false;     // it was damaged
  std::unique_ptr<AdaptiveKVCache> cache_;
  std::map<SeqId, ReferenceSequence> model_;
  std::map<SeqId, std::vector<uint32_t>> promised_;  // by layer: the oldest position a windowed layer must still hold
  std::set<SeqId> parked_;
  uint32_t tables_ = 0;  // which calibration the cache has; 0: none
  uint64_t operation_ = 0;
  const char* doing_ = "create";
  std::string problem_;
  std::map<std::string, uint64_t> done_;  // how often each operation ran: a machine that never truncates proves nothing
};

}  // namespace tierkv::testing
