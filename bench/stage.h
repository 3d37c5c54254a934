// stage.h — what the attention cases of one shape and thread count share: our caches by setting, the peer's by type, the same rows
// in all.
//
// Caches grow from one length to the next, because filling a long one takes longer than measuring it; ask for lengths in ascending
// order. A model has many layers, so the bytes of one layer are never in the processor's caches when its turn comes: where they
// would be, the sequence is copied until all copies together are out of reach, and calls take them in turn. The peer gets the same
// treatment.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/ceiling.h"
#include "bench/peer.h"
#include "bench/shapes.h"
#include "bench/turns.h"
#include "tierkv/cache.h"

namespace tierkv::bench {

// One layer in one cache setting.
struct OurCache {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  uint32_t tokens = 0;
  std::vector<SeqId> copies;  // seq first
  size_t turn = 0;
  uint64_t bytes = 0;  // that one attention reads: codes, scales and 16-bit rows
  double bits = 0;     // per value, everything the cache holds counted

  // Causal attention of the newest `count` tokens on the next copy.
  Status attend(const std::vector<float>& queries, uint32_t count, std::vector<float>& out);
};

class Stage {
 public:
  Stage(const AttentionShape& shape, uint32_t threads, bool quick);

  const AttentionShape& shape() const { return rows_.shape; }
  uint32_t threads() const { return threads_; }
  const SourceRows& rows() const { return rows_; }
  ReadCeiling& ceiling() { return ceiling_; }

  // `setting` as apply_spec() takes it; or "klt" or "rot2": `balanced` with that archive, klt1.875 with tables learnt from rows().
  Result<OurCache*> ours(const std::string& setting, uint32_t tokens);
  Result<Peer*> peer(const std::string& type, PeerLayout layout, uint32_t tokens);

 private:
  void move_to(uint32_t tokens);
  uint32_t copies_of(uint64_t bytes) const;

  uint32_t threads_;
  bool quick_;
  SourceRows rows_;
  ReadCeiling ceiling_;
  uint32_t tokens_ = 0;
  std::map<std::string, OurCache> ours_;
  std::map<std::pair<std::string, PeerLayout>, std::unique_ptr<Peer>> peers_;
};

// Appends tokens first..first+count-1 of `rows`, `chunk` at a time.
Status append_source(AdaptiveKVCache& cache, SeqId seq, const SourceRows& rows, uint32_t first, uint32_t count, uint32_t chunk);

// `out` is [count][heads][head_dim] of the newest `count` tokens. The largest error of some of its rows, relative to their norm,
// against double precision on the rows that get() hands out.
Result<double> error_of_ours(const OurCache& ours, const AttentionShape& shape, const std::vector<float>& queries, uint32_t count,
                             const std::vector<float>& out);
// The same for the peer, on what its cache holds.
Result<double> error_of_peer(const Peer& peer, uint32_t tokens, const std::vector<float>& queries, uint32_t count);

}  // namespace tierkv::bench
