// prompt_unpack.cuh — views of any codec to key tiles of halves (prompt.h): one thread block a view and a side.
//
// 32 rows at a time are floats in shared memory, where whatever a codec has between its codes and a tile is done: a basis (klt, on
// tensor cores), better rows, the Hadamard frame, factors and means, the turn of RoPE.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/launch/better.h"
#include "cuda/launch/prompt.h"
#include "cuda/prompt/frame.cuh"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kUnpackThreads = 256, kUnpackWarps = kUnpackThreads / 32, kUnpackChunk = 32;
inline constexpr uint32_t kUnpackMeta = 1024;  // scales that are unpacked once a view
inline constexpr uint32_t kUnpackBasis = 128;  // components whose rows are in shared memory at a time; half as many of wide heads

template <int D>
struct UnpackShared {
  static constexpr uint32_t kPitch = D + 1;       // rows and columns are read without conflicts
  static constexpr uint32_t kBasisPitch = D + 8;  // halves
  static constexpr uint32_t kSlab = D > 128 ? kUnpackBasis / 2 : kUnpackBasis;
  float tile[kUnpackChunk * kPitch];
  alignas(16) __half basis[kSlab * kBasisPitch];
  float2 meta[kUnpackMeta];
  float2 terms[D];  // factor and mean of a channel; klt: its mean
  float2 turns[D / 2];
  uint16_t turned[D];
  uint32_t positions[kUnpackChunk];
  alignas(16) uint8_t side[sizeof(quant::SideLayout)];
};

template <int D>
TIERKV_DEVICE UnpackShared<D>& unpack_shared() {
  return *reinterpret_cast<UnpackShared<D>*>(dynamic_shared());
}

// One view, one side.
template <int D>
class Unpacking {
 public:
  TIERKV_DEVICE Unpacking(const PromptLaunch& launch, const PromptView& view, bool keys)
      : launch_(launch),
        view_(view),
        codec_(launch.codecs[view.codec]),
        all_(unpack_shared<D>()),
        keys_(keys),
        bytes_(keys ? view.keys : view.values),
        better_(keys ? codec_.key_better : codec_.value_better) {
    const auto* const from = reinterpret_cast<const uint32_t*>(keys ? &codec_.key : &codec_.value);
    for (uint32_t i = threadIdx.x; i < sizeof(quant::SideLayout) / 4; i += kUnpackThreads)
      reinterpret_cast<uint32_t*>(all_.side)[i] = from[i];
    __syncthreads();
  }

  TIERKV_DEVICE void run() {
    if (side().kind == quant::LayoutKind::packed) prepare_scales();
    if (side().kind == quant::LayoutKind::words) prepare_words();
    for (uint32_t first = 0; first < view_.filled; first += kUnpackChunk) {
      if (threadIdx.x < kUnpackChunk) {
        const uint32_t row = first + threadIdx.x, position = prompt_position(launch_, view_, row);
        all_.positions[threadIdx.x] = position;
        if (keys_ && row < view_.filled) launch_.key_positions[view_.to + row] = position;
      }
      if (first < view_.rows) decode(first);
      __syncthreads();
      if (keys_) store_keys(first);
      else store_values(first);
      __syncthreads();
    }
    if (bad_) launch_.failed[view_.work] = 1;
  }

 private:
  TIERKV_DEVICE const quant::SideLayout& side() const { return *reinterpret_cast<const quant::SideLayout*>(all_.side); }
  TIERKV_DEVICE float& at(uint32_t row, uint32_t channel) const { return all_.tile[row * UnpackShared<D>::kPitch + channel]; }
  TIERKV_DEVICE uint32_t entries() const { return side().groups * (side().by_channel ? dim() : side().tokens); }
  TIERKV_DEVICE uint32_t dim() const { return launch_.head_dim; }

  TIERKV_DEVICE void prepare_scales() {
    const uint32_t n = entries();
    for (uint32_t i = threadIdx.x; n <= kUnpackMeta && i < n; i += kUnpackThreads) {
      const ScaleOffset entry = meta_entry(side(), bytes_ + side().meta_at, i, n);
      all_.meta[i] = {entry.scale, entry.offset};
    }
    for (uint32_t c = threadIdx.x; keys_ && c < dim(); c += kUnpackThreads) {
      const ChannelTerms terms = channel_terms(side(), bytes_, c);
      all_.terms[c] = {terms.factor, terms.mean};
    }
    __syncthreads();
  }
  TIERKV_DEVICE float2 scale_at(uint32_t entry) const {
    const uint32_t n = entries();
    if (n <= kUnpackMeta) return all_.meta[entry];
    const ScaleOffset made = meta_entry(side(), bytes_ + side().meta_at, entry, n);
    return {made.scale, made.offset};
  }

  TIERKV_DEVICE void prepare_words() {
    for (uint32_t c = threadIdx.x; c < dim(); c += kUnpackThreads) all_.terms[c] = {1.0f, side().mean[c]};
    for (uint32_t p = threadIdx.x; p < side().pairs; p += kUnpackThreads) {
      float cosine, sine;
      turn_of(side(), view_.first_position, p, cosine, sine);
      all_.turns[p] = {cosine, sine};
      all_.turned[2 * p] = side().turned[2 * p], all_.turned[2 * p + 1] = side().turned[2 * p + 1];
    }
    if (side().components <= UnpackShared<D>::kSlab) load_basis(0);
    __syncthreads();
  }

  // Rows of a slab of components, in the k order of products: lane t of a quad has components 4t..4t+3 of a step.
  TIERKV_DEVICE void load_basis(uint32_t first) {
    constexpr uint32_t kUnits = D / 8;
    for (uint32_t i = threadIdx.x; i < UnpackShared<D>::kSlab * kUnits; i += kUnpackThreads) {
      const uint32_t j = i / kUnits, c = i % kUnits * 8, in = j % 16;
      const uint32_t row = j / 16 * 16 + in / 4 * 2 + in % 2 + in % 4 / 2 * 8;
      uint4 x{0, 0, 0, 0};
      if (first + j < side().components && c < dim())
        x = __ldg(reinterpret_cast<const uint4*>(side().rows + static_cast<size_t>(first + j) * dim() + c));
      *reinterpret_cast<uint4*>(all_.basis + row * UnpackShared<D>::kBasisPitch + c) = x;
    }
  }

  // Whether rows are not in the tile's frame.
  TIERKV_DEVICE bool rotates() const { return (side().hadamard != 0) != (!keys_ && launch_.value_frame != 0); }

  TIERKV_DEVICE void decode(uint32_t first) {
    const quant::LayoutKind kind = side().kind;
    if (kind == quant::LayoutKind::rows16 && keys_) return;  // they are stored as they are
    if (kind == quant::LayoutKind::rows16) decode_plain(first);
    else if (kind == quant::LayoutKind::words) decode_words(first);
    else if (keys_) decode_packed_keys(first);
    else decode_packed_values(first);
    __syncthreads();
    if (better_ != 0 && (!keys_ || kind == quant::LayoutKind::words)) add_better(first);
    if (rotates() || (keys_ && side().even)) finish_rows();
    if (kind == quant::LayoutKind::words) turn_rows();
    if (better_ != 0 && keys_ && kind != quant::LayoutKind::words) add_better(first);
  }

  TIERKV_DEVICE uint4 plain_unit(uint32_t row, uint32_t channel) const {
    uint4 x = __ldg(reinterpret_cast<const uint4*>(bytes_ + (static_cast<size_t>(row) * dim() + channel) * 2));
    if (side().bf16) {
      const uint2 low = from_bf16({x.x, x.y}), high = from_bf16({x.z, x.w});
      x = {low.x, low.y, high.x, high.y};
    }
    return x;
  }
  TIERKV_DEVICE void decode_plain(uint32_t first) const {
    const uint32_t units = dim() / 8;
    for (uint32_t i = threadIdx.x; i < kUnpackChunk * units; i += kUnpackThreads) {
      const uint32_t row = i / units, c = i % units * 8;
      if (first + row >= view_.rows) break;
      const uint4 x = plain_unit(first + row, c);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 two = halves_of(words[k]);
        at(row, c + 2 * k) = two.x, at(row, c + 2 * k + 1) = two.y;
      }
    }
  }

  TIERKV_DEVICE void decode_packed_keys(uint32_t first) const {
    for (uint32_t i = threadIdx.x; i < kUnpackChunk * dim() / kQuad; i += kUnpackThreads) {
      const uint32_t row = i % kUnpackChunk, quad = i / kUnpackChunk, c = quad * kQuad, t = first + row;
      if (t >= view_.rows) continue;
      float levels[kQuad];
      unpack_quad(side(), bytes_, t, quad, levels);
      float2 grid = side().by_channel ? float2{} : scale_at(c / side().group * side().tokens + t);
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        if (side().by_channel) grid = scale_at(t / side().group * dim() + c + k);
        const float x = levels[k] * grid.x + grid.y;
        at(row, c + k) = side().even ? x : x + all_.terms[c + k].y;
      }
    }
  }

  TIERKV_DEVICE void decode_packed_values(uint32_t first) const {
    for (uint32_t i = threadIdx.x; i < kUnpackChunk / kQuad * dim(); i += kUnpackThreads) {
      const uint32_t c = i % dim(), quad = i / dim(), t = first + quad * kQuad;
      if (t >= view_.rows) break;
      float levels[kQuad];
      unpack_quad(side(), bytes_, c, t / kQuad, levels);
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) {
        const float2 grid = scale_at(c / side().group * side().tokens + t + k);
        at(quad * kQuad + k, c) = levels[k] * grid.x + grid.y;
      }
    }
  }

  // Codes less their middle, times the basis, and the mean.
  TIERKV_DEVICE void decode_words(uint32_t first) {
    constexpr uint32_t kStrips = D / 16, kItems = 2 * kStrips / kUnpackWarps;  // of 16 channels; of a warp
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float sums[kItems][2][4] = {};
    for (uint32_t slab = 0; slab < side().components; slab += UnpackShared<D>::kSlab) {
      if (side().components > UnpackShared<D>::kSlab) {
        __syncthreads();
        load_basis(slab);
        __syncthreads();
      }
      const uint32_t end = min(UnpackShared<D>::kSlab, side().components - slab);
      for (uint32_t step = 0; step < end; step += 16) {
#pragma unroll
        for (uint32_t i = 0; i < kItems; ++i) {
          const uint32_t item = warp + i * kUnpackWarps, strip = item % kStrips, row = first + item / kStrips * 16;
          const uint2 low = component_halves(row + g, slab + step + 4 * t),
                      high = component_halves(row + g + 8, slab + step + 4 * t);
          const uint4 b = load_matrices_transposed(
              shared_address(all_.basis + (step + lane % 16) * UnpackShared<D>::kBasisPitch + strip * 16 + lane / 16 * 8));
          multiply(sums[i][0], low.x, high.x, low.y, high.y, b.x, b.y);
          multiply(sums[i][1], low.x, high.x, low.y, high.y, b.z, b.w);
        }
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kItems; ++i) {
      const uint32_t item = warp + i * kUnpackWarps, strip = item % kStrips, row = item / kStrips * 16 + g;
#pragma unroll
      for (uint32_t n = 0; n < 2; ++n) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          const uint32_t c = strip * 16 + n * 8 + 2 * t + k % 2;
          if (c < dim()) at(row + k / 2 * 8, c) = sums[i][n][k] + all_.terms[c].y;
        }
      }
    }
  }
  TIERKV_DEVICE uint2 component_halves(uint32_t token, uint32_t component) const {
    if (token >= view_.rows || component >= side().components) return {0, 0};
    float codes[kQuad];
    unpack_components(side(), bytes_, token, component / kQuad, codes);
    const float middle = middle_of(side(), component);
    return {pack_halves(codes[0] - middle, codes[1] - middle), pack_halves(codes[2] - middle, codes[3] - middle)};
  }

  // What rows that are kept better have more.
  TIERKV_DEVICE void add_better(uint32_t first) const {
    const uint8_t* const from = bytes_ + padded_bytes(side().bytes);
    for (uint32_t i = threadIdx.x; i < better_ * dim(); i += kUnpackThreads) {
      const uint32_t b = i / dim(), c = i % dim(), row = better_index(from, better_, b) - first;
      if (row >= kUnpackChunk) continue;
      at(row, c) += keys_ ? better_key(from, better_, b, c) : better_value(from, better_, b, c, dim());
    }
    __syncthreads();
  }

  // Into the frame that a tile has or out of it, a warp a row, and factors and means of channels.
  TIERKV_DEVICE void finish_rows() const {
    constexpr uint32_t kEach = D / 32;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool rotated = rotates(), enter = side().hadamard == 0;
    for (uint32_t row = warp; row < kUnpackChunk; row += kUnpackWarps) {
      float x[kEach];
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) x[k] = lane + 32 * k < dim() ? at(row, lane + 32 * k) : 0.0f;
      if (rotated) turn_row(launch_, dim(), x, enter);
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) {
        const uint32_t c = lane + 32 * k;
        if (c >= dim()) continue;
        at(row, c) = keys_ && side().even ? x[k] * all_.terms[c].x + all_.terms[c].y : x[k];
      }
    }
    __syncthreads();
  }

  TIERKV_DEVICE void turn_rows() const {
    for (uint32_t i = threadIdx.x; i < kUnpackChunk * side().pairs; i += kUnpackThreads) {
      const uint32_t row = i / side().pairs, p = i % side().pairs;
      float &a = at(row, all_.turned[2 * p]), &b = at(row, all_.turned[2 * p + 1]);
      const float2 turn = all_.turns[p];
      const float x = a, y = b;
      a = x * turn.x - y * turn.y, b = x * turn.y + y * turn.x;
    }
    __syncthreads();
  }

  TIERKV_DEVICE uint32_t halves(float a, float b) {
    bad_ |= !(fabsf(a) <= 65504.0f) || !(fabsf(b) <= 65504.0f);
    return pack_halves(a, b);
  }
  TIERKV_DEVICE uint8_t* tile_of(uint32_t row) const {
    return launch_.scratch + static_cast<size_t>(row / kKeyTile) * key_tile_bytes(D) + (keys_ ? 0 : key_tile_side(D));
  }

  // 16 bytes at a time: eight channels of a row.
  TIERKV_DEVICE void store_keys(uint32_t first) {
    constexpr uint32_t kUnits = D / 8;
    const bool plain = side().kind == quant::LayoutKind::rows16;
    const uint32_t rows = min(kUnpackChunk, view_.filled - first);
    for (uint32_t i = threadIdx.x; i < rows * kUnits; i += kUnpackThreads) {
      const uint32_t row = i / kUnits, c = i % kUnits * 8, to = view_.to + first + row;
      uint4 x{0, 0, 0, 0};
      if (all_.positions[row] != kNowhere && c < dim()) {
        if (plain) {
          x = plain_unit(first + row, c);
          const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {  // exponents of all ones
            bad_ |= (words[k] & 0x7C00u) == 0x7C00u || (words[k] & 0x7C000000u) == 0x7C000000u;
          }
        } else {
          x = {halves(at(row, c), at(row, c + 1)), halves(at(row, c + 2), at(row, c + 3)), halves(at(row, c + 4), at(row, c + 5)),
               halves(at(row, c + 6), at(row, c + 7))};
        }
      }
      *reinterpret_cast<uint4*>(tile_of(to) + key_at(to % kKeyTile, c)) = x;
    }
  }

  // And eight rows of a channel.
  TIERKV_DEVICE void store_values(uint32_t first) {
    const uint32_t units = min(kUnpackChunk, view_.filled - first) / 8;
    for (uint32_t i = threadIdx.x; i < units * D; i += kUnpackThreads) {
      const uint32_t row = i % units * 8, c = i / units, to = view_.to + first + row;
      float x[8];
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) x[k] = all_.positions[row + k] != kNowhere && c < dim() ? at(row + k, c) : 0.0f;
      *reinterpret_cast<uint4*>(tile_of(to) + value_at(D, to % kKeyTile, c)) = {halves(x[0], x[1]), halves(x[2], x[3]),
                                                                                halves(x[4], x[5]), halves(x[6], x[7])};
    }
  }

  const PromptLaunch& launch_;
  const PromptView view_;
  const CodecDesc& codec_;
  UnpackShared<D>& all_;
  const bool keys_;
  const uint8_t* const bytes_;
  const uint32_t better_;
  bool bad_ = false;
};

template <int D>
__global__ void __launch_bounds__(kUnpackThreads) unpack_kernel(const __grid_constant__ PromptLaunch launch) {
  let_next_begin();
  Unpacking<D>(launch, launch.views[launch.tile_views + blockIdx.x], blockIdx.y == 0).run();
}

}  // namespace tierkv::cuda
