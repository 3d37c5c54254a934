#include "cuda/plan/device_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "cuda/launch/better.h"
#include "quant/frame.h"
#include "quant/overlaid.h"

namespace tierkv::cuda {
namespace {

// A power of two that a row's channels are less than.
float scale_of(const float* row, uint32_t dim) {
  float most = 0.0f;
  for (uint32_t c = 0; c < dim; ++c) most = std::max(most, std::fabs(row[c]));
  int exponent = 0;
  std::frexp(most, &exponent);
  return most == 0.0f ? 0.0f : std::ldexp(1.0f, std::clamp(exponent, -100, 100));
}

template <class T>
void put(std::vector<std::byte>& out, size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}

}  // namespace

std::span<const std::byte> device_form(const quant::Codec& codec, const quant::SideLayout& side, std::span<const std::byte> bytes,
                                       std::vector<std::byte>& room) {
  const uint32_t better = codec.spec().top, dim = side.head_dim;
  if (better == 0) return bytes;
  const bool keys = codec.side() == quant::Side::key;
  uint32_t indices[quant::kMostTop];
  std::vector<float> rows(static_cast<size_t>(better) * dim);
  quant::better_rows(codec, bytes, indices, rows.data());
  if (keys) quant::from_frame(codec.frame(), rows.data(), better, dim);
  room.assign(device_bytes(side, better), std::byte{0});
  std::memcpy(room.data(), bytes.data(), side.bytes);
  const size_t at = padded_bytes(side.bytes);
  for (uint32_t r = 0; r < padded_rows(better); ++r) {
    const bool there = r < better;
    const float* row = rows.data() + static_cast<size_t>(there ? r : 0) * dim;
    const float scale = there ? scale_of(row, dim) : 0.0f;
    put(room, at + 4 * r, scale);
    put(room, at + 4 * (padded_rows(better) + r), there ? indices[r] : kNoRow);
    for (uint32_t c = 0; there && scale != 0.0f && c < dim; ++c) {
      const size_t to = at + (keys ? better_key_at(better, r, c) : better_value_at(better, r, c, dim));
      put(room, to, f32_to_f16(row[c] / scale / (keys ? 1.0f : kBetterValue)));
    }
  }
  return room;
}

}  // namespace tierkv::cuda
