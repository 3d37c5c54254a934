#include "tiers/sequence.h"

#include <algorithm>
#include <new>

namespace tierkv::tiers {

Sequence::Sequence(const StreamEnv& env) : env_(env) {}

std::shared_ptr<Sequence> Sequence::create(const StreamEnv& env, uint32_t layers, uint32_t kv_heads) {
  std::shared_ptr<Sequence> seq(new Sequence(env));
  const size_t streams = static_cast<size_t>(layers) * kv_heads;
  const size_t bytes = layers * sizeof(LayerState) + streams * sizeof(HeadStream);
  void* memory = env.arena->allocate(bytes, MemoryTag::bookkeeping);
  if (!memory) return nullptr;
  seq->memory_ = memory;
  seq->bytes_ = bytes;
  seq->layers_ = layers;
  seq->kv_heads_ = kv_heads;
  // Streams first: they are the more strictly aligned.
  auto* heads = static_cast<HeadStream*>(memory);
  seq->states_ = reinterpret_cast<LayerState*>(heads + streams);
  for (uint32_t l = 0; l < layers; ++l) {
    new (&seq->states_[l]) LayerState;
    seq->states_[l].heads = heads + static_cast<size_t>(l) * kv_heads;
    for (uint32_t h = 0; h < kv_heads; ++h) {
      HeadStream* stream = new (&seq->states_[l].heads[h]) HeadStream;
      stream->layer = l;
      stream->head = h;
    }
  }
  return seq;
}

std::shared_ptr<Sequence> Sequence::fork(const Sequence& from) {
  std::shared_ptr<Sequence> seq = create(from.env_, from.layers_, from.kv_heads_);
  if (!seq) return nullptr;
  seq->packed = from.packed;
  for (uint32_t l = 0; l < from.layers_; ++l) {
    HeadStream* heads = seq->states_[l].heads;
    seq->states_[l] = from.states_[l];
    seq->states_[l].heads = heads;
    for (uint32_t h = 0; h < from.kv_heads_; ++h) {
      if (!clone(from.env_, from.states_[l].heads[h], heads[h])) return nullptr;
    }
  }
  return seq;
}

Sequence::~Sequence() {
  if (!memory_) return;
  for (uint32_t l = 0; l < layers_; ++l) {
    for (HeadStream& stream : heads(l)) destroy(env_, stream);
  }
  env_.arena->release(memory_, bytes_, MemoryTag::bookkeeping);
}

bool Sequence::expects(uint32_t layer) const noexcept {
  return std::any_of(coming_.begin(), coming_.end(), [&](const Coming& coming) { return coming.layer == layer; });
}

void Sequence::land() noexcept {
  for (const Coming& coming : coming_) land(coming);
  coming_.clear();
}

void Sequence::land(uint32_t layer, uint32_t until) noexcept {
  std::erase_if(coming_, [&](const Coming& coming) {
    if (coming.layer != layer || (coming.first >= until && !coming.arrival->arrived())) return false;
    land(coming);
    return true;
  });
}

void Sequence::spoil(StatusCode code, uint32_t layer, uint32_t position) noexcept {
  if (spoiled_.code == StatusCode::ok || position < spoiled_.position) spoiled_ = {code, layer, position};
}

void Sequence::land(const Coming& coming) noexcept {
  const Status arrived = coming.arrival->wait();
  if (!arrived.ok()) spoil(arrived.code(), coming.layer, coming.first);
  const uint32_t dim = env_.head_dim;
  const int16_t infinite = env_.hot_bf16 ? 0x7F80 : 0x7C00;
  const uint16_t* from = coming.rows;
  for (HeadStream& s : heads(coming.layer)) {
    for (const bool value : {false, true}) {
      for (uint32_t i = 0; i < coming.count; ++i, from += dim) {
        const uint32_t position = coming.first + i, row = position - s.tail.first_position();
        if (position < s.tail.first_position() || row >= s.tail.rows()) continue;
        uint16_t* const to = value ? s.tail.coming_value(row) : s.tail.coming_key(row);
        int16_t top = 0;  // signed: the baseline instruction set has a vector maximum for these alone
        for (uint32_t c = 0; c < dim; ++c) top = std::max(top, static_cast<int16_t>(from[c] & 0x7FFFu));
        if (arrived.ok() && top < infinite) {
          std::copy_n(from, dim, to);
        } else {
          std::fill_n(to, dim, uint16_t{0});
          if (arrived.ok()) spoil(StatusCode::invalid_argument, coming.layer, position);
        }
      }
    }
  }
}

std::span<StreamViews> Sequence::kept_views(uint32_t layer) {
  if (kept_.empty()) kept_.resize(static_cast<size_t>(layers_) * kv_heads_);
  return std::span(kept_).subspan(static_cast<size_t>(layer) * kv_heads_, kv_heads_);
}

uint32_t Sequence::length() const {
  uint32_t shortest = states_[0].length;
  for (uint32_t l = 1; l < layers_; ++l) shortest = std::min(shortest, states_[l].length);
  return shortest;
}

}  // namespace tierkv::tiers
