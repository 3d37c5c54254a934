// model_rows.h — the caller's rows as the random machine makes them, in one of many layouts; included by the tests that run it.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/f16.h"
#include "model_machine.h"

namespace tierkv::testing {

inline size_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

inline void store_element(DType type, std::byte* at, float x) {
  if (type == DType::f32) {
    std::memcpy(at, &x, 4);
  } else {
    const uint16_t half = type == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(at, &half, 2);
  }
}

inline float as_stored(DType type, float x) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(x));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

struct Machine::Rows {
  std::vector<std::byte> storage;
  RowsView view;
  std::vector<float> values;  // what the view says, [tokens][heads][head_dim]
  std::vector<float> token(uint32_t t) const {
    const size_t n = static_cast<size_t>(view.heads) * view.head_dim;
    return {values.begin() + static_cast<ptrdiff_t>(t * n), values.begin() + static_cast<ptrdiff_t>((t + 1) * n)};
  }
};

inline RowsView Machine::placed(RowsView view) {
  if (setup_.there) view.place = MemoryPlace::device;
  return view;
}

inline Machine::Rows Machine::make_rows(uint32_t tokens, uint32_t heads, DType type, float size) {
  const uint32_t d = config_.head_dim;
  Rows rows;
  rows.view = RowsView::dense(nullptr, type, tokens, heads, d);
  ptrdiff_t first = 0;
  size_t elements = static_cast<size_t>(tokens) * heads * d;
  switch (below(4)) {
    case 0: break;  // dense
    case 1:         // gaps after every head and every token
      rows.view.head_stride = d + 3;
      rows.view.token_stride = static_cast<ptrdiff_t>(heads) * (d + 3) + 5;
      elements = static_cast<size_t>(tokens) * static_cast<size_t>(rows.view.token_stride);
      break;
    case 2:  // [head][token][channel]
      rows.view.head_stride = static_cast<ptrdiff_t>(tokens) * d;
      rows.view.token_stride = d;
      break;
    case 3:  // newest first
      rows.view.token_stride = -rows.view.token_stride;
      first = static_cast<ptrdiff_t>(tokens - 1) * heads * d;
      break;
  }
  const size_t width = element_bytes(type);
  rows.storage.assign(std::max<size_t>(elements, 1) * width, std::byte{0xFF});  // NaN where no row is
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t h = 0; h < heads; ++h) {
      const ptrdiff_t at =
          first + static_cast<ptrdiff_t>(t) * rows.view.token_stride + static_cast<ptrdiff_t>(h) * rows.view.head_stride;
      for (uint32_t c = 0; c < d; ++c) {
        const float x = real(size);
        store_element(type, rows.storage.data() + (static_cast<size_t>(at) + c) * width, x);
        rows.values.push_back(as_stored(type, x));
      }
    }
  }
  rows.view.data = rows.storage.data() + static_cast<size_t>(first) * width;
  return rows;
}

}  // namespace tierkv::testing
