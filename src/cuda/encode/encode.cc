#include "cuda/launch/encode.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/encode/encode_guide.h"

namespace tierkv::cuda {

using quant::FitKind;
using quant::LayoutKind;
using quant::MetaKind;

uint32_t encode_floats(const quant::SideCoding& coding, bool guided) {
  const quant::SideLayout& side = coding.layout;
  if (side.kind == LayoutKind::rows16) return 0;
  if (side.kind == LayoutKind::words) return kTile * (side.head_dim + 1 + coding.padded);
  const uint32_t entries = entries_of(side);
  const uint32_t tried = coding.fit == FitKind::midrise ? entries * kCandidates : 2 * entries;  // or a double each
  const uint32_t channels = side.even ? side.head_dim + 1 + side.head_dim / 2 : 0;
  const uint32_t own = side.tokens * (side.head_dim + 1) + 4 * entries + std::max(tried, channels);
  return own + (guided ? guide_floats(side) : 0);
}

bool guidable(const quant::SideCoding& coding) {
  return coding.layout.even != 0 && coding.layout.group == coding.layout.head_dim && coding.layout.head_dim <= 128 &&
         encode_floats(coding, true) * sizeof(float) <= kMostEncodeBytes;
}

bool codable(const quant::SideCoding& coding) {
  const quant::SideLayout& side = coding.layout;
  if (encode_floats(coding) * sizeof(float) > kMostEncodeBytes) return false;
  if (side.kind == LayoutKind::rows16) return true;
  if (side.kind == LayoutKind::words) return coding.padded != 0 && side.tokens % kTile == 0;
  const bool meta = side.meta == MetaKind::f16_pair || side.meta == MetaKind::f16_scale || side.meta == MetaKind::log8_scale ||
                    side.meta == MetaKind::log8_pair || side.meta == MetaKind::log4_pair;
  const bool fit = coding.fit == FitKind::range || coding.fit == FitKind::midrise || coding.fit == FitKind::absmax;
  return meta && fit && !side.has_levels && side.bits <= 8 && (coding.fit != FitKind::midrise || side.groups == 1);
}

bool decodable(const quant::SideLayout& side) { return side.kind != LayoutKind::words; }

uint32_t encode_parts(const quant::SideCoding& coding) {
  return coding.layout.kind == LayoutKind::words ? coding.layout.tokens / kTile : 1;
}

const float* log8_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> levels{};
    for (int code = 1; code < 256; ++code) levels[static_cast<size_t>(code)] = static_cast<float>(std::exp2((code - 255) / 32.0));
    return levels;
  }();
  return table.data();
}

}  // namespace tierkv::cuda
