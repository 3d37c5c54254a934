// stats.h — what the cache says about itself: resident bytes by tier, and quality as fed back by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tierkv {

enum class Tier : uint8_t { sink = 0, hot = 1, warm = 2, archive = 3 };
inline constexpr int kNumTiers = 4;
const char* tier_name(Tier tier);

struct TierMemory {
  uint64_t tokens = 0;          // live rows, summed over layers and KV heads
  uint64_t payload_bytes = 0;   // live codes, scales, means: what the rows themselves need
  uint64_t overhead_bytes = 0;  // headers, alignment, capacity not filled yet, rows that are dead but still held
  uint64_t bytes() const { return payload_bytes + overhead_bytes; }
  // Bits per stored key or value element, everything counted.
  double bits_per_value(uint32_t head_dim) const {
    return tokens ? 8.0 * static_cast<double>(bytes()) / (2.0 * static_cast<double>(tokens) * head_dim) : 0.0;
  }
};

// Blocks that several sequences share are counted once in the cache's total, and in full in each sequence's own figure.
// total_bytes is the sum of the tiers, bookkeeping_bytes, parked_bytes and free_bytes, and never exceeds a budget. Calibrated
// tables are beside it: they do not grow with tokens, several caches may share them, and a budget does not count them.
// resident_bytes() is both.
struct MemoryStats {
  TierMemory tier[kNumTiers];
  uint64_t bookkeeping_bytes = 0;  // block headers and lists, positions, eviction statistics, sequence records
  uint64_t parked_tokens = 0;      // rows that park() packed, summed over layers and KV heads; in no tier until wake()
  uint64_t parked_bytes = 0;       // what they take
  uint64_t promoted_tokens = 0;    // rows that promote() brought back, summed over layers and KV heads; they are in their tier
  uint64_t promoted_bytes = 0;     // what they take beside their archive blocks; in their tier's overhead
  uint64_t spilled_tokens = 0;     // rows whose blocks are in the cold file and nowhere else; their tier counts them, without bytes
  uint64_t device_tokens = 0;  // rows whose blocks only a device has (cuda::Options::keep_on_host); their tier counts them so too
  uint64_t device_bytes = 0;   // what they take there, in no sum here; of the whole cache, what the device's own books say
  uint64_t free_bytes = 0;     // held from the operating system, ready for reuse (whole-cache figure only)
  uint64_t total_bytes = 0;    // everything above: what the tokens take
  uint64_t peak_bytes = 0;     // highest total so far (whole-cache figure only)
  uint64_t budget_bytes = 0;   // 0: no budget
  uint64_t fp16_bytes = 0;     // what the same live and parked tokens would take as plain FP16
  uint64_t table_bytes = 0;    // calibrated tables (whole-cache figure only); not in total_bytes
  uint64_t scratch_bytes = 0;  // rows of deep archives that calls under way decode (whole-cache figure only); not in total_bytes
  uint64_t cold_bytes = 0;     // of the cold file on disk (whole-cache figure only); not in memory, and in no sum here
  // Rows so far, summed over layers and KV heads (whole-cache figures only): those that became part of a block of the tier, and
  // those that an eviction policy let go. Rows of calls that were undone are counted too.
  uint64_t graduated[kNumTiers] = {};
  uint64_t evicted = 0;
  // Archive blocks in memory that decoding steps had a choice about (CacheConfig::skip), so far (whole-cache figures only).
  uint64_t read_blocks = 0;
  uint64_t skipped_blocks = 0;
  double skipped_mass = 0.0;  // the most that those skipped in one step may have had of a query's attention, by the bound
  // What the cache has in memory.
  uint64_t resident_bytes() const { return total_bytes + table_bytes; }
  const TierMemory& operator[](Tier t) const { return tier[static_cast<int>(t)]; }
  TierMemory& operator[](Tier t) { return tier[static_cast<int>(t)]; }
  // Tables counted.
  double compression() const { return total_bytes ? static_cast<double>(fp16_bytes) / static_cast<double>(resident_bytes()) : 0.0; }
};

// The cold store (CacheConfig::cold): copies of archived blocks in a file.
struct ColdStats {
  uint64_t copies = 0;       // there are, written or waiting
  uint64_t used_bytes = 0;   // what they take of the file
  uint64_t file_bytes = 0;   // its length; free places in it are used again
  uint64_t queue_bytes = 0;  // in memory until they are written; in no figure of MemoryStats
  uint64_t written = 0;      // copies ever written
  uint64_t skipped = 0;      // never made: the queue, the file or byte_budget had no room
  uint64_t failed = 0;       // not written: the disk is full or gone
  uint64_t damaged = 0;      // read back other than they were written, or cut off, and given up
  // Blocks that are in the file alone (CacheConfig::cold.spill), of what attention did with them:
  uint64_t loaded = 0;         // read for a query
  uint64_t left_out = 0;       // not read: bounded or top
  double left_out_mass = 0.0;  // the most that those of one call may have had of a query's attention, by the bound
  std::string problem;         // what the system said last; empty: nothing went wrong
};

// One measurement of how good the compressed cache is: 1 is as good as FP16 (say, exp(-KL) or top-1 agreement).
struct QualityFeedback {
  double score = 1.0;
};

struct QualityMetrics {
  uint64_t samples = 0;      // ever
  double mean = 0.0;         // of the last 1000
  double recent_mean = 0.0;  // of the last 100, which the rule looks at
  double target = 0.97;
  uint64_t adaptations = 0;  // how often the rule changed a threshold
};

// What adaptation moves. One per layer.
struct LayerThresholds {
  uint32_t hot = 0;
  uint32_t warm = 0;
  uint32_t archive_bits = 0;
  bool operator==(const LayerThresholds&) const = default;
};

// Attention mass, when asked for: softmax weight summed over the call's queries and the query heads of a KV head. Within 1/2,048 of
// it: weights are kept in two bytes. On a device as close as the sums of its attention are.
struct BlockMass {
  uint32_t kv_head = 0;
  Tier tier = Tier::hot;
  uint32_t first_position = 0;
  uint32_t rows = 0;
  double mass = 0.0;
};
struct MassReport {
  bool want_tokens = false;       // set before the call to fill `tokens` too
  std::vector<BlockMass> blocks;  // in order of head, then position
  std::vector<float> tokens;      // [kv_head][position]; 0 for what was evicted or masked
};

}  // namespace tierkv
