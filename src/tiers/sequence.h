// sequence.h — one sequence: its streams, [layer][kv head], in the arena, and the lock that serialises calls on it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tiers/heat.h"
#include "tiers/stream.h"

namespace tierkv::tiers {

struct LayerState {
  HeadStream* heads = nullptr;
  uint32_t length = 0;          // positions appended so far
  uint32_t unobserved = 0;      // tokens no observing attention call has followed yet: too young to judge
  uint32_t window_queries = 0;  // queries in the policy's current observation window
};

class Sequence {
 public:
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
  // Throws bad_alloc.
  LayerHeat& heat(uint32_t layer) {
    if (heat_.empty()) heat_.resize(layers_);
    return heat_[layer];
  }
  // The smallest length over layers.
  uint32_t length() const;
  size_t record_bytes() const { return Arena::rounded(bytes_); }
  static size_t record_bytes(uint32_t layers, uint32_t kv_heads) {
    return Arena::rounded(layers * sizeof(LayerState) + static_cast<size_t>(layers) * kv_heads * sizeof(HeadStream));
  }

  mutable std::mutex mutex;
  // Whose members some of its blocks are, in order of position, each with at least one of them; empty: every block is resident.
  std::vector<const store::PackedGroup*> packed;

 private:
  explicit Sequence(const StreamEnv& env);

  StreamEnv env_;
  uint32_t layers_ = 0;
  uint32_t kv_heads_ = 0;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  LayerState* states_ = nullptr;
  std::vector<StreamViews> kept_;  // [layer][kv head]; empty: none are kept
  std::vector<LayerHeat> heat_;    // empty: nobody looked
};

}  // namespace tierkv::tiers
