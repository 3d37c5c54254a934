// prompt_unpack_tile.cuh — the fast way from a block to a key tile (prompt.h): whole blocks of 128 rows and 128 channels, of codes
// in one plane with one scale a row or a channel, or klt's keys. Everything else goes through prompt_unpack.cuh.
//
// A warp has 16 rows in the layout of tensor-core accumulators. klt's codes are multiplied by their basis. A Hadamard frame is left
// by one product over every 16 channels and three steps of sums between them. The tile is put together in shared memory as it will
// lie in scratch, better rows are added there, and it is copied out.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/launch/better.h"
#include "cuda/launch/prompt.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kTileThreads = 256, kTileDim = 128, kTileComponents = 128, kTileBasisPitch = kTileDim + 8;

struct UnpackTileShared {
  alignas(128) uint8_t image[kTileDim * kKeyTile * 2];
  float2 scales[kTileDim];  // and offsets: of rows or of channels; klt: of channels the mean
  float signs[kTileDim];    // of the Hadamard frame, and its norm
  // Of klt's keys.
  float2 turns[kTileDim / 2];
  alignas(16) __half basis[kTileComponents * kTileBasisPitch];
};
// Values need less, so that a multiprocessor has room for more thread blocks.
template <bool kKeys>
inline constexpr size_t kUnpackTileBytes = kKeys ? sizeof(UnpackTileShared) : offsetof(UnpackTileShared, turns);
template <bool kKeys>
inline constexpr uint32_t kUnpackTileRoom = kKeys ? 2 : 3;  // thread blocks of a multiprocessor

template <bool kKeys>
class TileUnpacking {
 public:
  TIERKV_DEVICE TileUnpacking(const PromptLaunch& launch, UnpackTileShared& all)
      : launch_(launch), all_(all), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32), g_(lane_ / 4), t_(lane_ % 4) {
    if (threadIdx.x < kTileDim) all.signs[threadIdx.x] = frame_sign(kTileDim, threadIdx.x) * rsqrtf(static_cast<float>(kTileDim));
  }

  // `next` is the view after it.
  TIERKV_DEVICE void run(const PromptView& view, const PromptView& next) {
    const CodecDesc& codec = launch_.codecs[view.codec];
    const quant::SideLayout& side = kKeys ? codec.key : codec.value;
    const uint8_t* const bytes = kKeys ? view.keys : view.values;
    const uint32_t better = kKeys ? codec.key_better : codec.value_better;
    const bool words = kKeys && side.kind == quant::LayoutKind::words;
    float sums[kTileDim / 8][4] = {};
    if (words) {
      // On their way while the basis comes and others are waited for.
      ComponentWords codes;
      load_components(side, bytes, codes);
      prepare_words(side, view);
      __syncthreads();
      add_components(side, codes, sums);
      turn(sums);
    } else {
      prepare_scales(side, bytes);
      add_codes(side, bytes, sums);
      __syncthreads();
      if (side.hadamard) leave_frame(sums);
      scale(side, sums);
    }
    prefetch(view, next);
    if (kKeys) store_keys(sums);
    else store_values(sums);
    __syncthreads();
    if (better != 0) {
      const uint8_t* const rows = bytes + padded_bytes(side.bytes);
      for (uint32_t b = warp_; b < better; b += kTileThreads / 32) {
        if (kKeys) add_better_key(rows, better, b, words);
        else add_better_value(rows, better, b, side.hadamard != 0);
      }
      __syncthreads();
    }
    copy_out(view);
    if (bad_ || !(__low2float(most_) <= 65504.0f) || !(__high2float(most_) <= 65504.0f)) launch_.failed[view.work] = 1;
    __syncthreads();
  }

 private:
  // On its way while `view` is stored; of the same codec, which is known already.
  TIERKV_DEVICE void prefetch(const PromptView& view, const PromptView& next) const {
    if (next.codec != view.codec) return;
    const CodecDesc& codec = launch_.codecs[view.codec];
    const uint32_t at = threadIdx.x * 128;
    if (at < (kKeys ? device_bytes(codec.key, codec.key_better) : device_bytes(codec.value, codec.value_better)))
      prefetch_line((kKeys ? next.keys : next.values) + at);
  }
  TIERKV_DEVICE void prepare_scales(const quant::SideLayout& side, const uint8_t* bytes) const {
    if (threadIdx.x >= kTileDim) return;
    const ScaleOffset entry = meta_entry(side, bytes + side.meta_at, threadIdx.x, kTileDim);
    all_.scales[threadIdx.x] = {entry.scale, entry.offset};
  }
  TIERKV_DEVICE void prepare_words(const quant::SideLayout& side, const PromptView& view) {
    if (threadIdx.x < kTileDim) all_.scales[threadIdx.x].y = __ldg(side.mean + threadIdx.x);
    if (threadIdx.x < kTileDim / 2) {
      float cosine, sine;
      turn_of(side, view.first_position, threadIdx.x, cosine, sine);
      all_.turns[threadIdx.x] = {cosine, sine};
    }
    if (basis_ == side.rows) return;
    basis_ = side.rows;
    constexpr uint32_t kUnits = kTileDim / 8;
    const uint32_t steps = (side.components + 15) / 16;
    for (uint32_t i = threadIdx.x; i < steps * 16 * kUnits; i += kTileThreads) {
      const uint32_t j = i / kUnits, c = i % kUnits * 8, in = j % 16;
      // The k order of products: lane t of a quad has components 4t..4t+3 of a step.
      const uint32_t row = j / 16 * 16 + in / 4 * 2 + in % 2 + in % 4 / 2 * 8;
      uint4 x{0, 0, 0, 0};
      if (j < side.components) x = __ldg(reinterpret_cast<const uint4*>(side.rows + j * kTileDim + c));
      *reinterpret_cast<uint4*>(all_.basis + row * kTileBasisPitch + c) = x;
    }
  }

  // Of every step of 16 components a lane's words: of rows g and g + 8.
  struct ComponentWords {
    uint32_t of[kTileComponents / 16][2];
  };
  // Where the codes of a lane's four components of a step lie.
  struct ComponentPlace {
    uint32_t bits, word, field;
  };
  TIERKV_DEVICE ComponentPlace place_of(uint32_t wide, uint32_t middle, uint32_t step) const {
    const uint32_t quad = 4 * step + t_;
    if (quad < wide) return {8, quad, 0};
    if (quad < wide + 2 * middle) return {4, wide + (quad - wide) / 2, (quad - wide) % 2};
    return {2, wide + middle + (quad - wide - 2 * middle) / 4, (quad - wide - 2 * middle) % 4};
  }
  TIERKV_DEVICE void load_components(const quant::SideLayout& side, const uint8_t* bytes, ComponentWords& codes) const {
    const uint32_t wide = side.words[2], middle = side.words[1], total = wide + middle + side.words[0],
                   components = side.components;
    const uint8_t* const from = bytes + (warp_ * total * kTile + g_) * 4;
#pragma unroll
    for (uint32_t step = 0; step < kTileComponents / 16; ++step) {
      codes.of[step][0] = codes.of[step][1] = 0;
      const bool there = 16 * step + 4 * t_ < components;
      const uint32_t word = there ? place_of(wide, middle, step).word : 0;
      if (there) codes.of[step][0] = load_word(from + word * 64), codes.of[step][1] = load_word(from + word * 64 + 32);
    }
  }

  // Codes of klt less their middle, times the basis.
  TIERKV_DEVICE void add_components(const quant::SideLayout& side, const ComponentWords& codes,
                                    float (&sums)[kTileDim / 8][4]) const {
    const uint32_t wide = side.words[2], middle = side.words[1], components = side.components;
    const uint32_t basis = shared_address(all_.basis) + ((lane_ % 16) * kTileBasisPitch + lane_ / 16 * 8) * 2;
#pragma unroll
    for (uint32_t step = 0; step < kTileComponents / 16; ++step) {
      if (16 * step >= components) break;
      const ComponentPlace place = place_of(wide, middle, step);
      uint32_t low[2] = {0, 0}, high[2] = {0, 0};
      if (16 * step + 4 * t_ < components) {
        const uint32_t mask = ((1u << place.bits) - 1u) * 0x01010101u, skip = place.bits * place.field;
        const __half2 less = __float2half2_rn(1024.0f + static_cast<float>((1u << place.bits) - 1u) * 0.5f - 0.5f);
        const __half2 rest = __float2half2_rn(0.5f);
        code_pair(codes.of[step][0] >> skip & mask, less, rest, low);
        code_pair(codes.of[step][1] >> skip & mask, less, rest, high);
      }
#pragma unroll
      for (uint32_t n = 0; n < kTileDim / 16; ++n) {
        const uint4 b = load_matrices_transposed(basis + (step * 16 * kTileBasisPitch + n * 16) * 2);
        multiply(sums[2 * n], low[0], high[0], low[1], high[1], b.x, b.y);
        multiply(sums[2 * n + 1], low[0], high[0], low[1], high[1], b.z, b.w);
      }
    }
  }
  // Four codes, a byte each, less their middle: 1,024 and a code is a half; so is the code less a whole number, and that less 1/2.
  TIERKV_DEVICE static void code_pair(uint32_t codes, __half2 less, __half2 rest, uint32_t (&out)[2]) {
    const uint32_t a = __byte_perm(codes, 0x64646464u, 0x4140), b = __byte_perm(codes, 0x64646464u, 0x4342);
    const __half2 x = __hsub2(__hsub2(*reinterpret_cast<const __half2*>(&a), less), rest);
    const __half2 y = __hsub2(__hsub2(*reinterpret_cast<const __half2*>(&b), less), rest);
    out[0] = *reinterpret_cast<const uint32_t*>(&x), out[1] = *reinterpret_cast<const uint32_t*>(&y);
  }

  // The mean, and the turn of channels that lie half a head apart.
  TIERKV_DEVICE void turn(float (&sums)[kTileDim / 8][4]) const {
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 16; ++n) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t c = 8 * n + 2 * t_ + k;
        const float2 by = all_.turns[c];
        const float mean = all_.scales[c].y, other = all_.scales[c + kTileDim / 2].y;
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const float x = sums[n][2 * r + k] + mean, y = sums[n + kTileDim / 16][2 * r + k] + other;
          sums[n][2 * r + k] = x * by.x - y * by.y, sums[n + kTileDim / 16][2 * r + k] = x * by.y + y * by.x;
        }
      }
    }
  }

  // Codes where accumulators have them. In a Hadamard frame, sums over every 16 channels of the frame.
  TIERKV_DEVICE void add_codes(const quant::SideLayout& side, const uint8_t* bytes, float (&sums)[kTileDim / 8][4]) const {
    const quant::LayoutPlane plane = side.planes[0];
    const uint32_t fields_log = plane.bits == 2 ? 2 : plane.bits == 4 ? 1 : 0, mask = (1u << plane.bits) - 1u;
    const bool frame = side.hadamard != 0;
    const uint8_t* const from = bytes + plane.offset;
    // +1 or -1: the entry of channel 2t or 2t + 1, and g.
    const uint32_t signs = (__popc(2 * t_ & g_) & 1u) << 15 | (__popc((2 * t_ + 1) & g_) & 1u) << 31;
    const uint32_t base = 0x3C003C00u ^ signs;
#pragma unroll
    for (uint32_t s = 0; s < kTileDim / 16; ++s) {
      uint32_t a[4];  // rows g, g + 8; then the same of eight channels on
      if (kKeys) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t quad = 4 * s + t_ / 2 + i / 2 * 2, chunk = quad >> fields_log;
          const uint32_t place = (quad & ((1u << fields_log) - 1u)) * plane.bits + 16 * (t_ & 1u);
          const uint32_t word = load_word(from + ((warp_ * plane.chunks + chunk) * kTile + g_ + i % 2 * 8) * 4) >> place;
          a[i] = exact_halves(word & mask, word >> 8 & mask);
        }
      } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t quad = 4 * warp_ + g_ / 4 + i % 2 * 2, chunk = quad >> fields_log;
          const uint32_t place = (quad & ((1u << fields_log) - 1u)) * plane.bits + 8 * (g_ & 3u);
          const uint2 words = *reinterpret_cast<const uint2*>(from + ((s * plane.chunks + chunk) * kTile + 2 * t_ + i / 2 * 8) * 4);
          a[i] = exact_halves(words.x >> place & mask, words.y >> place & mask);
        }
      }
      if (frame) {
        multiply(sums[2 * s], a[0], a[1], a[2], a[3], base, base);
        multiply(sums[2 * s + 1], a[0], a[1], a[2], a[3], base, base ^ 0x80008000u);
      } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float2 two = halves_of(a[i]);
          sums[2 * s + i / 2][i % 2 * 2] = two.x, sums[2 * s + i / 2][i % 2 * 2 + 1] = two.y;
        }
      }
    }
  }
  TIERKV_DEVICE static uint32_t exact_halves(uint32_t low, uint32_t high) {
    const uint32_t both = low | high << 16 | 0x64006400u;
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&both), __float2half2_rn(1024.0f));
    return *reinterpret_cast<const uint32_t*>(&x);
  }

  // What is left of the frame: sums between runs of 16 channels.
  TIERKV_DEVICE static void leave_frame(float (&sums)[kTileDim / 8][4]) {
#pragma unroll
    for (uint32_t half = 2; half < kTileDim / 8; half *= 2) {
#pragma unroll
      for (uint32_t n = 0; n < kTileDim / 8; ++n) {
        if ((n & half) != 0) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float a = sums[n][i], b = sums[n + half][i];
          sums[n][i] = a + b, sums[n + half][i] = a - b;
        }
      }
    }
  }

  TIERKV_DEVICE void scale(const quant::SideLayout& side, float (&sums)[kTileDim / 8][4]) const {
    if (side.by_channel) {
#pragma unroll
      for (uint32_t n = 0; n < kTileDim / 8; ++n) {
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          const float2 by = all_.scales[8 * n + 2 * t_ + k];
          sums[n][k] = sums[n][k] * by.x + by.y, sums[n][2 + k] = sums[n][2 + k] * by.x + by.y;
        }
      }
      return;
    }
    const float2 rows[2] = {all_.scales[16 * warp_ + g_], all_.scales[16 * warp_ + g_ + 8]};
    if (!side.hadamard) {
#pragma unroll
      for (uint32_t n = 0; n < kTileDim / 8; ++n) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) sums[n][i] = sums[n][i] * rows[i / 2].x + rows[i / 2].y;
      }
      return;
    }
    // A constant along the frame's channels is the first plain one's.
    const float constant[2] = {t_ == 0 ? rows[0].y * kTileDim : 0.0f, t_ == 0 ? rows[1].y * kTileDim : 0.0f};
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 8; ++n) {
      const float2 signs = *reinterpret_cast<const float2*>(all_.signs + 8 * n + 2 * t_);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float x = n == 0 && i % 2 == 0 ? sums[n][i] * rows[i / 2].x + constant[i / 2] : sums[n][i] * rows[i / 2].x;
        sums[n][i] = x * (i % 2 ? signs.y : signs.x);
      }
    }
  }

  // The largest so far tells whether one left the range of halves.
  TIERKV_DEVICE uint32_t halves(float a, float b) {
    const uint32_t both = pack_halves(a, b);
    most_ = __hmax2_nan(most_, __habs2(*reinterpret_cast<const __half2*>(&both)));
    return both;
  }
  TIERKV_DEVICE void store_keys(const float (&sums)[kTileDim / 8][4]) {
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 8; ++n) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t row = 16 * warp_ + g_ + 8 * r;
        *reinterpret_cast<uint32_t*>(all_.image + key_at(row, 8 * n + 2 * t_)) = halves(sums[n][2 * r], sums[n][2 * r + 1]);
      }
    }
  }
  // Eight rows and channels change places within a warp.
  TIERKV_DEVICE void store_values(const float (&sums)[kTileDim / 8][4]) {
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 8; ++n) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t x = transposed(halves(sums[n][2 * r], sums[n][2 * r + 1]));
        *reinterpret_cast<uint32_t*>(all_.image + value_at(kTileDim, 16 * warp_ + 8 * r + 2 * t_, 8 * n + g_)) = x;
      }
    }
  }

  TIERKV_DEVICE void add_to(uint32_t at, float x) {
    auto& half = *reinterpret_cast<__half*>(all_.image + at);
    const float sum = __half2float(half) + x;
    bad_ |= !(fabsf(sum) <= 65504.0f);
    half = __float2half(sum);
  }
  // What a row that is kept better has more; a warp a row. Its channels are plain ones of a block at position 0.
  TIERKV_DEVICE void add_better_key(const uint8_t* rows, uint32_t better, uint32_t b, bool turned) {
    const uint32_t row = better_index(rows, better, b);
    if (row >= kKeyTile) return;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t c = lane_ + 32 * k;
      const float x = better_key(rows, better, b, c), y = better_key(rows, better, b, c + kTileDim / 2);
      const float2 by = turned ? all_.turns[c] : float2{1.0f, 0.0f};
      add_to(key_at(row, c), x * by.x - y * by.y);
      add_to(key_at(row, c + kTileDim / 2), x * by.y + y * by.x);
    }
  }
  TIERKV_DEVICE void add_better_value(const uint8_t* rows, uint32_t better, uint32_t b, bool frame) {
    const uint32_t row = better_index(rows, better, b);
    if (row >= kKeyTile) return;
    float x[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) x[k] = better_value(rows, better, b, lane_ + 32 * k, kTileDim);
    if (frame) {
#pragma unroll
      for (uint32_t half = 1; half < 32; half *= 2) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          const float other = __shfl_xor_sync(~0u, x[k], half);
          x[k] = (lane_ & half) != 0 ? other - x[k] : x[k] + other;
        }
      }
#pragma unroll
      for (uint32_t half = 1; half < 4; half *= 2) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          if ((k & half) != 0) continue;
          const float a = x[k], c = x[k + half];
          x[k] = a + c, x[k + half] = a - c;
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) x[k] *= all_.signs[lane_ + 32 * k];
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) add_to(value_at(kTileDim, row, lane_ + 32 * k), x[k]);
  }

  TIERKV_DEVICE void copy_out(const PromptView& view) const {
    uint8_t* const to = launch_.scratch + static_cast<size_t>(view.to / kKeyTile) * key_tile_bytes(kTileDim) +
                        (kKeys ? 0 : key_tile_side(kTileDim));
#pragma unroll
    for (uint32_t i = threadIdx.x; i < sizeof(all_.image) / 16; i += kTileThreads)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(all_.image)[i];
    if (kKeys && threadIdx.x < kKeyTile) launch_.key_positions[view.to + threadIdx.x] = view.first_position + threadIdx.x;
  }

  const PromptLaunch& launch_;
  UnpackTileShared& all_;
  const uint32_t warp_, lane_, g_, t_;
  const uint16_t* basis_ = nullptr;  // whose rows are in shared memory
  __half2 most_ = __float2half2_rn(0.0f);
  bool bad_ = false;
};

// Thread blocks take views in turn, so that neighbours, which mostly share a basis, load it once. A view's description is asked for
// while the one before it is unpacked.
template <bool kKeys>
__global__ void __launch_bounds__(kTileThreads, kUnpackTileRoom<kKeys>)
    unpack_tile_kernel(const __grid_constant__ PromptLaunch launch) {
  let_next_begin();
  TileUnpacking<kKeys> unpacking(launch, *reinterpret_cast<UnpackTileShared*>(dynamic_shared()));
  PromptView view = launch.views[blockIdx.x], next = view;
  for (uint32_t v = blockIdx.x; v < launch.tile_views; v += gridDim.x, view = next) {
    const uint32_t after = min(v + gridDim.x, launch.tile_views - 1);
    next = launch.views[after];
    unpacking.run(view, next);
  }
  if (blockIdx.x == 0) wait_for_previous();
}

}  // namespace tierkv::cuda
