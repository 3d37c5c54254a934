// keeper.h — between the conversations in memory and the prefix store: what of them is to be written, and what of a prompt is
// there.
//
// A conversation is stored as a chain: runs of some 256 archived tokens, which others that begin alike share, and a rest with its
// recent tiers, which the next turn replaces. With a rest a conversation comes back bit for bit, and nothing is read again. Without
// one (another conversation began alike) the runs serve as an archive, and hot and warm tier are read again behind them, as for any
// cut in the archive (reuse.h).
//
// Nothing is stored or looked for while the cache learns its model: what is archived would change with the tables. A conversation
// belongs to the root under which it began; when that changes (tables, thresholds) it is stored no longer.
//
// Threads: the scheduler's; store_next() also those that decode, while the scheduler waits for them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/tiered_context.h"
#include "serve/prefix_store.h"

namespace tierkv::serve {

// What of a conversation is in the store.
struct StoredChain {
  struct Link {
    ChunkKey key{};
    uint32_t end = 0;
  };
  std::optional<ChunkKey> root;  // none: it is not to be stored
  std::vector<Link> runs;
  std::optional<ChunkKey> rest;  // the last that was written, which the next one replaces
  bool due = false;              // there may be more to write

  uint32_t end() const { return runs.empty() ? 0 : runs.back().end; }
  // The conversation was cut.
  void cut(uint32_t length) {
    while (end() > length) runs.pop_back();
  }
};

class Keeper {
 public:
  static constexpr uint32_t kRun = 256, kSlack = 32;  // tokens of a run: sinks, and blocks that a cut left short, may be beside
  static constexpr uint32_t kLeast = 192;             // shorter conversations are read again

  // `piece`: rows that are served at a time, which decides bytes too. `loaded` as for PrefixStore.
  Keeper(engine::TieredContext& context, uint32_t piece, const StoreOptions& options, std::function<void()> loaded);

  // Of conversations that begin now; none while the model is being learned.
  std::optional<ChunkKey> root() const;
  // The chain that serves a prompt best, being read; null: nothing there is worth it, `known` tokens being in memory.
  LoadingPtr look(std::span<const llama_token> tokens, uint32_t known);
  // The cache's sequence of what was loaded.
  Result<SeqId> wake(const Loading& loading);
  StoredChain chain_of(const Loading& loading) const;

  // Writes the next piece of an idle conversation. False: there is none, or no room in the queue; chain.due says which.
  // `with_rest`: its end too.
  bool store_next(StoredChain& chain, std::span<const llama_token> tokens, SeqId sequence, bool with_rest);

  PrefixStore& store() { return store_; }

 private:
  bool put(StoredChain& chain, std::span<const llama_token> tokens, SeqId sequence, uint32_t end, ChunkKind kind);

  engine::TieredContext& context_;
  std::string configuration_;  // what of it decides bytes
  uint32_t recent_ = 0;        // tokens of hot and warm tier
  bool runs_alone_ = true;     // no layer has a sliding window, and there is an archive
  PrefixStore store_;
};

}  // namespace tierkv::serve
