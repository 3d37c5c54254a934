// shelf.cc — finding, copying, cutting and packing conversations.
#include "serve/shelf.h"

#include <algorithm>

#include "engine/clock.h"

namespace tierkv::serve {
namespace {

constexpr uint32_t kLeastReuse = 16;  // fewer tokens are read again
constexpr uint32_t kGoesOn = 32;      // a prompt that leaves out no more than this of a conversation's end goes on from it
constexpr size_t kLeastPrompt = 64;   // shorter prompts are not worth a copy
constexpr uint32_t kLeastGain = 64;   // tokens that a stored chain must have beyond what is in memory
constexpr size_t kShortAnswer = 64;   // a conversation that is so little longer than its stored prompt is not stored by itself

}  // namespace

Shelf::Shelf(engine::TieredContext& context, uint32_t most, Metrics& metrics, Keeper* keeper)
    : context_(context), most_(std::max(most, context.slots() + 1)), metrics_(metrics), keeper_(keeper) {
  const CacheConfig& config = context_.cache().config();
  for (uint32_t i = config.num_layers; i-- > 0;) {
    if (config.layer(i).window == 0) layer_ = i;
  }
}

uint32_t Shelf::count() const {
  return static_cast<uint32_t>(
      std::count_if(conversations_.begin(), conversations_.end(), [](const auto& c) { return !c.tokens.empty(); }));
}

uint32_t Shelf::parked() const {
  return static_cast<uint32_t>(std::count_if(conversations_.begin(), conversations_.end(), [](const auto& c) { return c.parked; }));
}

TierBounds Shelf::bounds(int32_t at) const {
  const LayerConfig tiers = context_.cache().config().layer(layer_);
  TierBounds bounds;
  if (tiers.hot == kAll) return bounds;
  const auto length = static_cast<uint32_t>(this->at(at).tokens.size());
  bounds.hot = tiers.hot;
  bounds.warm = tiers.warm == kAll ? length : tiers.warm;
  bounds.tail_start = length > tiers.hot ? length - tiers.hot : 0;
  if (!this->at(at).parked) {
    if (const auto id = context_.host().sequence(at); id.ok()) {
      if (const auto view = context_.cache().hot_view(*id, layer_, 0); view.ok() && view->rows > 0)
        bounds.tail_start = view->first_position;
    }
  }
  bounds.archive_end = bounds.tail_start > bounds.warm ? bounds.tail_start - bounds.warm : 0;
  return bounds;
}

Shelf::Found Shelf::find(const Tokens& tokens) const {
  Found best;
  for (size_t i = 0; i < conversations_.size(); ++i) {
    const Conversation& one = conversations_[i];
    if (one.tokens.empty() || (one.parked && one.busy)) continue;
    Found found{static_cast<int32_t>(i), common_prefix(one.tokens, tokens), 0};
    const bool whole = found.match == tokens.size() && found.match == one.tokens.size() && !one.logits.empty() && !one.parked;
    // The last token is decoded again where its logits are not known.
    if (!whole) found.match = std::min(found.match, static_cast<uint32_t>(tokens.size()) - 1);
    if (found.match < kLeastReuse || found.match <= best.reused) continue;
    found.reused = whole ? found.match : reusable(found.match, static_cast<uint32_t>(one.tokens.size()), bounds(found.at));
    if (found.reused > best.reused) best = found;
  }
  if (best.reused < kLeastReuse) return {};
  return best;
}

int32_t Shelf::longest_idle(bool parked) const {
  int32_t found = -1;
  for (size_t i = 0; i < conversations_.size(); ++i) {
    const Conversation& one = conversations_[i];
    if (one.tokens.empty() || one.busy || one.parked != parked) continue;
    if (found < 0 || one.last_used < at(found).last_used) found = static_cast<int32_t>(i);
  }
  return found;
}

int32_t Shelf::free_place() {
  for (size_t i = 0; i < conversations_.size(); ++i) {
    if (conversations_[i].tokens.empty() && !conversations_[i].busy) return static_cast<int32_t>(i);
  }
  const auto next = static_cast<int32_t>(conversations_.size());
  if (conversations_.size() < most_) {
    const bool there = static_cast<uint32_t>(next) < context_.host().slots();
    if (there || context_.host().add_slot().ok()) {
      conversations_.emplace_back();
      return next;
    }
  }
  int32_t oldest = longest_idle(false);
  if (const int32_t packed = longest_idle(true); oldest < 0 || (packed >= 0 && at(packed).last_used < at(oldest).last_used))
    oldest = packed;
  if (oldest < 0) return -1;
  forget(oldest);
  return oldest;
}

// From memory; what the store has of it stays.
void Shelf::forget(int32_t at) {
  store_all(at);
  remove(at);
  metrics_.update([](Counts& counts) { ++counts.dropped; });
}

void Shelf::remove(int32_t at) {
  (void)context_.host().remove(at).ok();
  of(at) = {};
}

bool Shelf::cut(int32_t at, uint32_t length) {
  Conversation& one = of(at);
  if (length >= one.tokens.size()) return true;
  one.logits.clear();
  // A layer with a window may have forgotten what it would need.
  if (!context_.host().truncate(at, length).ok()) return false;
  one.tokens.resize(length);
  one.stored.cut(length);
  return true;
}

bool Shelf::wake(int32_t at) {
  if (!of(at).parked) return true;
  if (!context_.host().wake(at).ok()) return false;
  of(at).parked = false;
  metrics_.update([](Counts& counts) { ++counts.woken; });
  return true;
}

LoadingPtr Shelf::look(const Tokens& tokens) { return keeper_ ? keeper_->look(tokens, find(tokens).reused) : nullptr; }

Shelf::Taken Shelf::take_loaded(const Tokens& tokens, const Loading& loading) {
  Taken taken;
  const int32_t place = free_place();
  if (place < 0) return taken;
  of(place).busy = true;  // nobody else's
  const auto id = keeper_->wake(loading);
  const uint32_t length = loading.prefix.tokens;
  if (!id.ok() || !put(place, *id, Tokens(tokens.begin(), tokens.begin() + length)).ok()) {
    if (id.ok()) (void)context_.cache().remove(*id).ok();
    of(place) = {};
    return taken;
  }
  of(place).busy = true;
  of(place).stored = keeper_->chain_of(loading);
  // The logits of the last token are not stored: it is decoded again.
  const uint32_t match = std::min(length, static_cast<uint32_t>(tokens.size()) - 1);
  const uint32_t keep = match == length ? length : reusable(match, length, bounds(place));
  if (!cut(place, keep)) {
    remove(place);
    return taken;
  }
  of(place).last_used = engine::now();
  taken = {place, keep};
  metrics_.update([&](Counts& counts) {
    ++counts.prefix_hits_disk;
    counts.prefix_tokens_disk += keep;
  });
  return taken;
}

Shelf::Taken Shelf::take(const Tokens& tokens, bool reuse, const Loading* loading) {
  const Found found = reuse ? find(tokens) : Found();
  Taken taken;
  if (reuse && keeper_ && loading && loading->done && loading->prefix.tokens >= found.reused + kLeastGain) {
    taken = take_loaded(tokens, *loading);
    if (taken.at >= 0) return taken;
  }
  if (found.at >= 0) {
    Conversation& source = of(found.at);
    source.last_used = engine::now();
    const bool goes_on = !source.busy && !source.prompt && found.match + kGoesOn >= source.tokens.size();
    if (goes_on || (source.parked && !source.busy)) {
      taken.at = found.at;
    } else {
      const bool idle = !source.busy;
      source.busy = true;  // it must not make room for its own copy
      taken.at = free_place();
      if (taken.at >= 0 && context_.host().fork(found.at, taken.at).ok()) {
        of(taken.at).tokens = of(found.at).tokens;
        of(taken.at).logits = of(found.at).logits;
        of(taken.at).stored = of(found.at).stored;
        of(taken.at).stored.rest.reset();
        metrics_.update([](Counts& counts) { ++counts.forked; });
      }
      if (idle) of(found.at).busy = false;
    }
  }
  if (taken.at < 0) taken.at = free_place();
  if (taken.at < 0) return taken;
  of(taken.at).busy = true;
  if (of(taken.at).tokens.empty() || !wake(taken.at) || !cut(taken.at, found.reused)) remove(taken.at);
  Conversation& mine = of(taken.at);
  mine.id = ++last_id_;
  mine.busy = true;
  mine.last_used = engine::now();
  taken.reused = static_cast<uint32_t>(mine.tokens.size());
  if (taken.reused == 0) mine.stored = {};
  if (taken.reused == 0 && keeper_) mine.stored.root = keeper_->root();
  metrics_.update([&](Counts& counts) {
    ++(taken.reused > 0 ? counts.prefix_hits : counts.prefix_misses);
    counts.prefix_tokens += taken.reused;
  });
  return taken;
}

void Shelf::advanced(int32_t at, std::span<const llama_token> tokens) {
  Conversation& one = of(at);
  one.tokens.insert(one.tokens.end(), tokens.begin(), tokens.end());
  one.logits.clear();
}

void Shelf::keep_prompt(int32_t at, std::span<const float> logits) {
  if (of(at).tokens.size() < kLeastPrompt) return;
  for (const Conversation& one : conversations_) {
    if (one.prompt && one.tokens == of(at).tokens) return;
  }
  // One copy a conversation: that of the turn before is of no use any more.
  const int32_t before = of(at).prompt_at;
  std::optional<ChunkKey> stored_before;
  if (before >= 0 && this->at(before).prompt && !this->at(before).busy) {
    stored_before = this->at(before).stored.rest;
    remove(before);
  }
  const int32_t place = free_place();
  if (place < 0 || place == at) return;
  if (!context_.host().fork(at, place).ok()) return;
  Conversation& copy = of(place);
  copy.tokens = of(at).tokens;
  copy.logits.assign(logits.begin(), logits.end());
  copy.prompt = true;
  copy.stored = of(at).stored;
  copy.stored.rest = stored_before;
  copy.stored.due = true;
  copy.last_used = engine::now();
  of(at).prompt_at = place;
}

void Shelf::give_back(int32_t at) {
  Conversation& one = of(at);
  one.busy = false;
  one.stored.due = true;
  one.last_used = engine::now();
  if (one.tokens.empty()) remove(at);
}

Status Shelf::put(int32_t at, SeqId id, Tokens tokens) {
  const Status bound = context_.host().bind(at, id);
  if (!bound.ok()) return bound;
  of(at) = {};
  of(at).id = ++last_id_;
  of(at).tokens = std::move(tokens);
  of(at).last_used = engine::now();
  return {};
}

// A conversation is hardly longer than its prompt, and that is stored: reading the answer again takes less than another rest.
bool Shelf::wants_rest(const Conversation& one) const {
  if (one.prompt || one.prompt_at < 0) return true;
  const Conversation& copy = at(one.prompt_at);
  const bool is_its_prompt = copy.prompt && common_prefix(copy.tokens, one.tokens) == copy.tokens.size();
  return !is_its_prompt || one.tokens.size() >= copy.tokens.size() + kShortAnswer;
}

bool Shelf::store_next(int32_t at) {
  Conversation& one = of(at);
  if (!one.stored.due) return false;
  if (one.parked || one.tokens.empty()) one.stored.due = false;
  const auto id = context_.host().sequence(at);
  if (!one.stored.due || !id.ok()) return false;
  return keeper_->store_next(one.stored, one.tokens, *id, wants_rest(one));
}

void Shelf::store_all(int32_t at) {
  while (keeper_ && store_next(at)) {
  }
}

bool Shelf::store_due() const {
  return keeper_ && std::any_of(conversations_.begin(), conversations_.end(),
                                [](const Conversation& one) { return one.stored.due && !one.busy; });
}

bool Shelf::store_some() {
  if (!keeper_) return false;
  for (size_t i = 0; i < conversations_.size(); ++i) {
    if (conversations_[i].stored.due && !conversations_[i].busy && store_next(static_cast<int32_t>(i))) return true;
  }
  return false;
}

bool Shelf::make_room() {
  const std::lock_guard lock(pressure_);
  if (making_room_) return false;  // what makes room lacks it itself
  making_room_ = true;
  bool made = false;
  if (const int32_t idle = longest_idle(false); idle >= 0) {
    store_all(idle);  // before it is packed: what is packed is no longer what it was
    if (!of(idle).prompt && context_.host().park(idle).ok()) {
      of(idle).parked = true;
      of(idle).logits.clear();
      metrics_.update([](Counts& counts) { ++counts.parked; });
    } else {
      forget(idle);
    }
    made = true;
  } else if (const int32_t packed = longest_idle(true); packed >= 0) {
    forget(packed);
    made = true;
  }
  making_room_ = false;
  return made;
}

}  // namespace tierkv::serve
