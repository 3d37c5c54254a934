#include "tiers/spill.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/status_macros.h"
#include "tiers/row_batch.h"

namespace tierkv::tiers {
namespace {

// The nearest 16-bit float that is not below x (or, for the other sign, not above it).
uint16_t outwards(float x, bool up) {
  uint16_t half = f32_to_f16(x);
  const float back = f16_to_f32(half);
  if (up ? back >= x : back <= x) return half;
  // One step away from zero or towards it; zero itself has two names.
  const bool negative = (half & 0x8000u) != 0;
  if ((half & 0x7FFFu) == 0) return up ? uint16_t{0x0001} : uint16_t{0x8001};
  return static_cast<uint16_t>(negative == up ? half - 1 : half + 1);
}

void summarise(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head, std::vector<std::byte>& out) {
  const uint32_t d = env.head_dim;
  std::vector<float> keys(static_cast<size_t>(ref.rows) * d);
  const store::BlockBytes bytes = env.store->bytes(ref.block);
  const attn::DecodeWork work{
      ref.block.codec()->key.get(), bytes.keys, {layer, head, ref.first_position, ref.positions}, 0, ref.rows, keys.data()};
  env.backend->decode({&work, 1});
  std::vector<uint16_t> bounds(2 * d);
  for (uint32_t c = 0; c < d; ++c) {
    float low = keys[c], high = keys[c];
    for (uint32_t row = 1; row < ref.rows; ++row) {
      low = std::min(low, keys[static_cast<size_t>(row) * d + c]);
      high = std::max(high, keys[static_cast<size_t>(row) * d + c]);
    }
    bounds[c] = outwards(low, false);
    bounds[d + c] = outwards(high, true);
  }
  out.resize(bounds.size() * sizeof(uint16_t));
  std::memcpy(out.data(), bounds.data(), out.size());
}

bool can_be_spilled(const BlockRef& ref) {
  return ref.block.tier() == Tier::archive && ref.block.resident() && !ref.promoted() && ref.block.references() == 1;
}

}  // namespace

Status spill_oldest(const StreamEnv& env, HeadStream& s, uint64_t wanted, uint64_t& freed) {
  std::vector<std::byte> summary;
  for (BlockRef& ref : s.blocks) {
    if (freed >= wanted) break;
    if (!can_be_spilled(ref)) continue;
    summarise(env, ref, s.layer, s.head, summary);
    TIERKV_RETURN_IF_ERROR(env.store->spill(ref.block, summary));
    freed += env.store->held_bytes(*ref.block.codec());
  }
  return {};
}

float upper_bound(const float* query, const float* bounds, uint32_t head_dim) {
  float sum = 0.0f;
  for (uint32_t c = 0; c < head_dim; ++c) sum += std::max(query[c] * bounds[c], query[c] * bounds[head_dim + c]);
  return sum;
}

void widen_bounds(const StreamEnv& env, std::span<const std::byte> summary, float* bounds) {
  const auto* halves = reinterpret_cast<const uint16_t*>(summary.data());
  StreamEnv fp16 = env;
  fp16.hot_bf16 = false;
  widen_row(fp16, halves, bounds);
  widen_row(fp16, halves + env.head_dim, bounds + env.head_dim);
}

}  // namespace tierkv::tiers
