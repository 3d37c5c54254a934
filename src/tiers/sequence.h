// sequence.h — one sequence: its streams, [layer][kv head], in the arena, and the lock that serialises calls on it.
//
// Rows that come from a device's memory are in the tails by position before their contents are (expect()): they land in host memory
// a little later. Whoever locks the sequence in the ordinary way finds everything landed. Those who know that they read no row of a
// tail, or have a device that has them, lock it as it is (Mutex::as_is()).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attn/backend.h"
#include "tiers/heat.h"
#include "tiers/stream.h"

namespace tierkv::tiers {

struct LayerState {
  HeadStream* heads = nullptr;
  uint32_t length = 0;          // positions appended so far
  uint32_t unobserved = 0;      // tokens no observing attention call has followed yet: too young to judge
  uint32_t window_queries = 0;  // queries in the policy's current observation window
};

// Rows at the end of a layer's tails whose contents are on their way: positions first..first+count-1.
struct Coming {
  uint32_t layer = 0, first = 0, count = 0;
  const uint16_t* rows = nullptr;  // [kv head][keys, values][count][head_dim], once they have arrived
  std::shared_ptr<const attn::Arrival> arrival;
};

// Rows that landed and cannot be used. Zeros are in their place.
struct Spoiled {
  StatusCode code = StatusCode::ok;  // invalid_argument: not finite. Anything else: what the device said
  uint32_t layer = 0, position = 0;
};

class Sequence {
 public:
  // What locks it in the ordinary way waits for rows that are on their way.
  class Mutex {
   public:
    explicit Mutex(Sequence& sequence) : sequence_(sequence) {}
    void lock() {
      mutex_.lock();
      sequence_.land();
    }
    void unlock() { mutex_.unlock(); }
    // Without: for those who read no row of a tail.
    std::unique_lock<Mutex> as_is() {
      mutex_.lock();
      return std::unique_lock(*this, std::adopt_lock);
    }

   private:
    std::mutex mutex_;
    Sequence& sequence_;
  };

  // Null when the arena has no room.
  static std::shared_ptr<Sequence> create(const StreamEnv& env, uint32_t layers, uint32_t kv_heads);
  // A copy that shares blocks, packed ones too, and tails. REQUIRES: the source's lock is held.
  static std::shared_ptr<Sequence> fork(const Sequence& from);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  uint32_t num_layers() const { return layers_; }
  uint32_t kv_heads() const { return kv_heads_; }
  LayerState& layer(uint32_t i) { return states_[i]; }
  const LayerState& layer(uint32_t i) const { return states_[i]; }
  std::span<HeadStream> heads(uint32_t layer) { return {states_[layer].heads, kv_heads_}; }
  std::span<const HeadStream> heads(uint32_t layer) const { return {states_[layer].heads, kv_heads_}; }
  // Views of a layer's streams that are kept from call to call, for a backend that makes something of what is still the same.
  // Throws bad_alloc.
  std::span<StreamViews> kept_views(uint32_t layer);
  void forget_views() noexcept { kept_.clear(); }
  // Whose tails a backend keeps (attn::TakeWork); null: nobody's, of this layer.
  const void* tails_owner(uint32_t layer) const noexcept {
    return kept_.empty() ? nullptr : kept_.data() + static_cast<size_t>(layer) * kv_heads_;
  }
  // Throws bad_alloc.
  LayerHeat& heat(uint32_t layer) {
    if (heat_.empty()) heat_.resize(layers_);
    return heat_[layer];
  }

  // Rows on their way. REQUIRES, of all: the lock is held. reserve_coming() throws bad_alloc; then expect() does not.
  void reserve_coming() { coming_.reserve(coming_.size() + 1); }
  void expect(Coming coming) noexcept { coming_.push_back(std::move(coming)); }
  bool expects(uint32_t layer) const noexcept;
  // All of them, or a layer's: those that have arrived, and after waiting those at positions before `until`.
  void land() noexcept;
  void land(uint32_t layer, uint32_t until) noexcept;
  // The first that cannot be used, if there is one, and that truncate() has not taken back.
  const Spoiled& spoiled() const { return spoiled_; }
  void forget_spoiled(uint32_t length) noexcept {
    if (length <= spoiled_.position) spoiled_ = {};
  }

  // The smallest length over layers.
  uint32_t length() const;
  size_t record_bytes() const { return Arena::rounded(bytes_); }
  static size_t record_bytes(uint32_t layers, uint32_t kv_heads) {
    return Arena::rounded(layers * sizeof(LayerState) + static_cast<size_t>(layers) * kv_heads * sizeof(HeadStream));
  }

  mutable Mutex mutex{*this};
  // Whose members some of its blocks are, in order of position, each with at least one of them; empty: every block is resident.
  std::vector<const store::PackedGroup*> packed;

 private:
  explicit Sequence(const StreamEnv& env);

  void land(const Coming& coming) noexcept;
  void spoil(StatusCode code, uint32_t layer, uint32_t position) noexcept;

  StreamEnv env_;
  std::vector<Coming> coming_;  // oldest first
  Spoiled spoiled_;
  uint32_t layers_ = 0;
  uint32_t kv_heads_ = 0;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  LayerState* states_ = nullptr;
  std::vector<StreamViews> kept_;  // [layer][kv head]; empty: none are kept
  std::vector<LayerHeat> heat_;    // empty: nobody looked
};

}  // namespace tierkv::tiers
