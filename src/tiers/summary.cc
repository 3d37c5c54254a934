#include "tiers/summary.h"

#include <algorithm>

#include "base/guarded.h"
#include "base/per_thread.h"
#include "quant/key_box.h"

namespace tierkv::tiers {
namespace {

struct Decoded {
  std::vector<float> keys;
};

}  // namespace

void make_summary(const StreamEnv& env, BlockHandle block, const BlockRef& ref, uint32_t layer, uint32_t head, std::byte* out) {
  const size_t d = env.head_dim;
  std::vector<float>& keys = per_thread<Decoded>().keys;
  keys.resize(ref.rows * d);
  const store::BlockBytes bytes = env.store->bytes(block);
  uint32_t made = 0;
  for (uint32_t row = 0; row < ref.rows;) {
    uint32_t end = row;
    while (end < ref.rows && ref.alive(end)) ++end;
    if (end > row) {
      const attn::DecodeWork work{
          block.codec()->key.get(), bytes.keys, {layer, head, ref.first_position, ref.positions}, row, end - row,
          keys.data() + made * d};
      env.backend->decode({&work, 1}, attn::in_turn());
      made += end - row;
    }
    row = std::max(end, row + 1);
  }
  quant::make_box(keys.data(), made, env.head_dim, out);
}

void summarise(const StreamEnv& env, BlockHandle block, const BlockRef& ref, uint32_t layer, uint32_t head) noexcept {
  const std::span<std::byte> room = env.store->summary(block);
  if (room.empty()) return;
  (void)with_memory([&] {
    make_summary(env, block, ref, layer, head, room.data());
    return true;
  });
}

const std::byte* summary_of(const StreamEnv& env, BlockHandle block) {
  const std::span<const std::byte> room = env.store->summary(block);
  return !room.empty() && quant::has_box(room.data(), env.head_dim) ? room.data() : nullptr;
}

}  // namespace tierkv::tiers
