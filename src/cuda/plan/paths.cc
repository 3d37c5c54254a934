#include "cuda/plan/paths.h"

#include "cuda/launch/better.h"
#include "cuda/launch/reading.h"
#include "cuda/launch/tile_map.h"

namespace tierkv::cuda {
namespace {

using quant::LayoutKind;
using quant::MetaKind;
using quant::SideLayout;

// Channels of a head that the tensor-core paths and the warm one take.
bool fast_dim(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }

// Values of one scale a token that the tensor-core paths unpack.
bool fast_values(const SideLayout& value, uint32_t tokens) {
  return value.kind == LayoutKind::packed && !value.by_channel && value.groups == 1 && !value.has_levels && value.mean_at == 0 &&
         value.tokens == tokens && fast_dim(value.head_dim) && value.bits >= 2 && value.bits <= 4 &&
         (value.meta == MetaKind::f16_pair || value.meta == MetaKind::log8_scale || value.meta == MetaKind::log8_pair ||
          value.meta == MetaKind::log4_pair);
}

// Pair p of a rope is (p, p + pairs) and every channel turns: what the tensor-core path of klt has its query turned by.
bool turns_halves(const SideLayout& key) {
  if (key.pairs * 2 != key.head_dim) return false;
  for (uint32_t p = 0; p < key.pairs; ++p) {
    if (key.turned[2 * p] != p || key.turned[2 * p + 1] != p + key.pairs) return false;
  }
  return true;
}

}  // namespace

bool readable(const quant::Codec& key, const quant::Codec& value, CodecDesc& out) {
  out.key_better = key.spec().top, out.value_better = value.spec().top;
  return key.layout(out.key) && value.layout(out.value) && out.value.kind != LayoutKind::words && fits_tiles(out.key) &&
         fits_tiles(out.value);
}

uint64_t block_bytes(const CodecDesc& codec) {
  return device_bytes(codec.key, codec.key_better) + device_bytes(codec.value, codec.value_better);
}

std::optional<Frame> staged_frame(const CodecDesc& codec) {
  if (codec.key_better + codec.value_better != 0 || !fits_staged(codec.key) || !fits_staged(codec.value)) return std::nullopt;
  return codec.value.hadamard ? Frame::hadamard : Frame::plain;
}

Path fast_path(const CodecDesc& codec, uint32_t group) {
  const SideLayout &key = codec.key, &value = codec.value;
  const bool better = codec.key_better + codec.value_better != 0;
  if (group > 8 || !fast_values(value, kTileRows) || key.tokens != kTileRows) return Path::general;
  if (key.kind == LayoutKind::words) {
    const uint32_t words = key.words[0] + key.words[1] + key.words[2];
    if (!turns_halves(key) || words < 1 || words > kMostKltWords || klt_steps(key) > kMostKltSteps) return Path::general;
    if (!better) return group <= 4 && value.bits == 2 ? Path::klt_whole : Path::klt;
    const bool fits = codec.key_better <= kMostFastBetter && codec.value_better <= kMostFastBetter;
    return fits && codec.key_better != 0 && codec.value_better != 0 ? Path::klt_better : Path::general;
  }
  if (better) return Path::general;
  if (key.kind != LayoutKind::packed || key.has_levels || key.even || key.groups != 1) return Path::general;
  if (key.by_channel ? key.meta != MetaKind::f16_pair || key.mean_at != 0 : key.meta != MetaKind::log8_scale) return Path::general;
  if (key.bits == 2 && value.bits == 2) return group <= 4 && key.head_dim == 128 ? Path::whole22 : Path::packed22;
  if (key.bits == 4 && value.bits == 4) return Path::packed44;
  if (key.bits == 4 && value.bits == 2) return Path::packed42;
  return Path::general;
}

bool takes_warm(const CodecDesc& codec, uint32_t group) {
  const SideLayout& key = codec.key;
  return group <= 8 && codec.key_better + codec.value_better == 0 && fast_values(codec.value, kWarmTokens) &&
         codec.value.bits == 4 && key.kind == LayoutKind::packed && key.bits == 4 && !key.has_levels && !key.by_channel &&
         key.groups == 1 && key.meta == MetaKind::log8_scale && key.tokens == kWarmTokens;
}

bool takes_plain(const CodecDesc& codec) {
  const auto halves = [](const SideLayout& side) {
    return side.kind == LayoutKind::rows16 && !side.bf16 && beside_takes(side.head_dim);
  };
  return halves(codec.key) && halves(codec.value) && codec.key_better + codec.value_better == 0;
}

Path ready_path(const CodecDesc& codec, uint32_t group) {
  const Path path = fast_path(codec, group);
  return is_klt(path) && !codec.key_fragments ? Path::general : path;
}

}  // namespace tierkv::cuda
