// shelf.h — the conversations in the cache: those that are being written, and idle ones that a client may come back to.
//
// A prompt that begins like a conversation on the shelf is not read from its beginning: an idle one that it goes on from is taken
// as it is, any other is copied (the copy shares its blocks) and cut (reuse.h). When a prompt has been read, a copy of it stays:
// the answer may be wanted again.
//
// When the cache has no room (make_room()), idle conversations are packed, the one that was used longest ago first; what cannot be
// packed, and copies of prompts, are forgotten. Only then packed ones are. Where there is a prefix store (keeper.h), what goes is
// on disk before it goes.
//
// Threads: the scheduler's; make_room() those that decode, while the scheduler waits for them.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/tiered_context.h"
#include "serve/keeper.h"
#include "serve/metrics.h"
#include "serve/reuse.h"

namespace tierkv::serve {

struct Conversation {
  uint64_t id = 0;            // of whoever uses the place, for those who look again later
  Tokens tokens;              // in the cache; none: the place is free
  std::vector<float> logits;  // of the last token, where they are known
  bool busy = false;
  bool parked = false;
  bool prompt = false;     // a copy of a prompt, as it was when it had been read
  int32_t prompt_at = -1;  // where the copy of this one's last prompt is
  double last_used = 0.0;  // engine::now()
  StoredChain stored;      // what of it is on disk
};

class Shelf {
 public:
  // At most `most` conversations, idle ones included. `keeper`: null where there is no prefix store; outlives the shelf.
  Shelf(engine::TieredContext& context, uint32_t most, Metrics& metrics, Keeper* keeper = nullptr);

  struct Taken {
    int32_t at = -1;  // its place, which is also libllama's number of the sequence
    uint32_t reused = 0;
  };
  // A place with as many of the first tokens as are known; it is busy from here on. All of them are there only where the logits of
  // the last one are known too. `loading`: what look() gave, or null. REQUIRES: fewer busy ones than `most`.
  Taken take(const Tokens& tokens, bool reuse, const Loading* loading = nullptr);
  // What the disk has of a prompt and memory has not, being read; null: nothing.
  LoadingPtr look(const Tokens& tokens);
  // Writes one piece of an idle conversation to the store. False: nothing is due, or the store has no room at this moment.
  bool store_some();
  bool store_due() const;
  // The tokens have been decoded.
  void advanced(int32_t at, std::span<const llama_token> tokens);
  // A prompt has been read: keeps a copy of it with its last logits.
  void keep_prompt(int32_t at, std::span<const float> logits);
  void give_back(int32_t at);
  void remove(int32_t at);
  // Puts a sequence of the cache there. REQUIRES: it is not busy.
  Status put(int32_t at, SeqId id, Tokens tokens);
  // An idle or free place, for put().
  int32_t free_place();

  // Makes room in the cache. False: there is nothing left that could go.
  bool make_room();

  const std::vector<Conversation>& all() const { return conversations_; }
  const Conversation& at(int32_t at) const { return conversations_[static_cast<size_t>(at)]; }
  uint32_t count() const, parked() const;

 private:
  struct Found {
    int32_t at = -1;
    uint32_t match = 0, reused = 0;
  };
  Found find(const Tokens& tokens) const;
  TierBounds bounds(int32_t at) const;
  bool cut(int32_t at, uint32_t length);
  bool wake(int32_t at);
  Taken take_loaded(const Tokens& tokens, const Loading& loading);
  bool wants_rest(const Conversation& one) const;
  bool store_next(int32_t at);
  void store_all(int32_t at);
  void forget(int32_t at);
  int32_t longest_idle(bool parked) const;
  Conversation& of(int32_t at) { return conversations_[static_cast<size_t>(at)]; }

  engine::TieredContext& context_;
  const uint32_t most_;
  Metrics& metrics_;
  Keeper* const keeper_;
  uint32_t layer_ = 0;  // the one whose tiers decide: without a window, where there is one
  std::vector<Conversation> conversations_;
  uint64_t last_id_ = 0;
  std::recursive_mutex pressure_;
  bool making_room_ = false;
};

}  // namespace tierkv::serve
