// prompt_unpack_tile.cuh — the fast way from a block to a key tile (prompt.h): whole blocks of 128 rows and 128 channels, of codes
// in one plane with one scale a row or a channel, or klt's keys. Everything else goes through prompt_unpack.cuh.
//
// A warp has 16 rows in the layout of tensor-core accumulators. klt's codes are multiplied by their basis. A Hadamard frame is left
// by three steps of sums between runs of 16 channels, of codes two at a time, and one product over every run, if the tile's values
// are not to be in it. The tile is put together in shared memory as it will lie in scratch, better rows are added there, and it is
// copied out.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/launch/better.h"
#include "cuda/launch/prompt.h"
#include "cuda/prompt/frame.cuh"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kTileThreads = 256, kTileDim = 128, kTileComponents = 128, kTileBasisPitch = kTileDim + 8;

struct UnpackTileShared {
  alignas(128) uint8_t image[kTileDim * kKeyTile * 2];
  float2 scales[kTileDim];   // and offsets: of rows or of channels; klt: of two channels the means
  uint32_t flips[kTileDim];  // signs of the Hadamard frame, of two halves each
  quant::SideLayout side;    // of the codec at hand
  uint32_t better;           // rows that it keeps better
  // Of klt's keys.
  float2 turns[kTileDim / 2];
  alignas(16) __half basis[kTileComponents * kTileBasisPitch];
};
// Values need less, so that a multiprocessor has room for more thread blocks.
template <bool kKeys>
inline constexpr size_t kUnpackTileBytes = kKeys ? sizeof(UnpackTileShared) : offsetof(UnpackTileShared, turns);
template <bool kKeys>
inline constexpr uint32_t kUnpackTileRoom = kKeys ? 2 : 3;  // thread blocks of a multiprocessor

// What is to be known of a view. What comes last of it is read twice: it would take registers where there are none.
struct SideOfView {
  const uint8_t* bytes;
  uint32_t first_position, codec, to, work;
};
template <bool kKeys>
TIERKV_DEVICE SideOfView side_of(const PromptView& view) {
  return {kKeys ? view.keys : view.values, view.first_position, view.codec, view.to, view.work};
}

template <bool kKeys>
class TileUnpacking {
 public:
  TIERKV_DEVICE TileUnpacking(const PromptLaunch& launch, UnpackTileShared& all)
      : launch_(launch), all_(all), warp_(threadIdx.x / 32) {
    const uint32_t c = threadIdx.x;
    if (c < kTileDim) all.flips[c] = launch.minus[c / 32] >> (c % 32) & 1u ? 0x80008000u : 0;
  }

  // `first` is the view at `at`. Returns the one at `after`.
  TIERKV_DEVICE SideOfView run(const SideOfView& first, uint32_t at, uint32_t after) {
    // Read anew for every view: places that follow from it would be kept over the loop, where there are no registers for them.
    lane_ = lane_now(), g_ = lane_ / 4, t_ = lane_ % 4;
    take_codec(first.codec);
    const quant::SideLayout& side = all_.side;
    const bool words = kKeys && side.kind == quant::LayoutKind::words;
    float sums[kTileDim / 8][4];
    if (words) {
      // On their way while the basis comes and others are waited for.
      ComponentWords codes;
      load_components(side, first.bytes, codes);
      prepare_words(side, first.first_position);
      __syncthreads();
      begin_at_means(sums);
      add_components(side, codes, sums);
      turn(sums);
    } else {
      switch (side.planes[0].bits) {
        case 2: take_codes<4>(side, first.bytes, sums); break;
        case 4: take_codes<2>(side, first.bytes, sums); break;
        default: take_codes<1>(side, first.bytes, sums);
      }
      scale(side, sums);
    }
    const SideOfView next = side_of<kKeys>(launch_.views[after]), view = side_of<kKeys>(launch_.views[at]);
    if (kKeys) store_keys(sums);
    else store_values(sums);
    __syncthreads();
    prefetch(next);
    if (const uint32_t better = all_.better; better != 0) {
      const uint8_t* const rows = view.bytes + padded_bytes(side.bytes);
      for (uint32_t b = warp_; b < better; b += kTileThreads / 32) {
        if (kKeys) add_better_key(rows, better, b, words);
        else add_better_value(rows, better, b, side.hadamard != 0);
      }
      __syncthreads();
    }
    copy_out(view);
    if (bad_ || !(__low2float(most_) <= 65504.0f) || !(__high2float(most_) <= 65504.0f)) launch_.failed[view.work] = 1;
    __syncthreads();
    return next;
  }

 private:
  static constexpr float kFrameNorm = 0.08838834764831845f;  // of a frame of 128 channels
  static constexpr float kSmallest = 1.0f / (1 << 24);       // of halves: codes are taken for multiples of it

  // Neighbours mostly have the same codec: what it says is near then. Its frame is one only where it is to be left.
  TIERKV_DEVICE void take_codec(uint32_t codec) {
    if (codec == codec_) return;
    codec_ = codec, basis_there_ = false;
    const CodecDesc& from = launch_.codecs[codec];
    if (threadIdx.x == 0) all_.better = kKeys ? from.key_better : from.value_better;
    static_assert(sizeof(quant::SideLayout) % 4 == 0);
    const auto* const words = reinterpret_cast<const uint32_t*>(kKeys ? &from.key : &from.value);
    for (uint32_t i = threadIdx.x; i < sizeof(quant::SideLayout) / 4; i += kTileThreads)
      reinterpret_cast<uint32_t*>(&all_.side)[i] = words[i];
    __syncthreads();
    if (kKeys || launch_.value_frame == 0) return;
    if (threadIdx.x == 0) all_.side.hadamard = 0;
    __syncthreads();
  }
  // On its way while this one is copied out; of the same codec, which is known already.
  TIERKV_DEVICE void prefetch(const SideOfView& next) const {
    if (next.codec != codec_) return;
    const uint32_t at = threadIdx.x * 128;
    if (at < device_bytes(all_.side, all_.better)) prefetch_line(next.bytes + at);
  }
  // What codes as they come are multiplied by, and what is added to that. In a Hadamard frame a constant along its channels is the
  // first plain one's.
  TIERKV_DEVICE void prepare_scales(const quant::SideLayout& side, const uint8_t* bytes) const {
    if (threadIdx.x >= kTileDim) return;
    const ScaleOffset entry = meta_entry(side, bytes + side.meta_at, threadIdx.x, kTileDim);
    const float frame = side.hadamard ? kFrameNorm : 1.0f;
    const float first = side.hadamard ? kFrameNorm * kTileDim * frame_sign(kTileDim, 0) : 1.0f;
    all_.scales[threadIdx.x] = {entry.scale * frame / kSmallest, entry.offset * first};
  }
  TIERKV_DEVICE void prepare_words(const quant::SideLayout& side, uint32_t first_position) {
    if (threadIdx.x < kTileDim / 2) all_.scales[threadIdx.x] = __ldg(reinterpret_cast<const float2*>(side.mean) + threadIdx.x);
    if (threadIdx.x < kTileDim / 2) {
      float cosine, sine;
      turn_of(side, first_position, threadIdx.x, cosine, sine);
      all_.turns[threadIdx.x] = {cosine, sine};
    }
    if (basis_there_) return;
    basis_there_ = true;
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
  TIERKV_DEVICE static ComponentPlace place_of(uint32_t wide, uint32_t middle, uint32_t quad) {
    const bool first = quad < wide, second = quad < wide + 2 * middle;
    const uint32_t log = first ? 0 : second ? 1 : 2;  // a word has 2^log quads
    const uint32_t in = quad - (first ? 0 : second ? wide : wide + 2 * middle);
    return {8u >> log, (first ? 0 : second ? wide : wide + middle) + (in >> log), in & ((1u << log) - 1u)};
  }
  TIERKV_DEVICE void load_components(const quant::SideLayout& side, const uint8_t* bytes, ComponentWords& codes) const {
    const uint32_t wide = side.words[2], middle = side.words[1], total = wide + middle + side.words[0];
    const uint8_t* const from = bytes + (warp_ * total * kTile + g_) * 4;
#pragma unroll
    for (uint32_t step = 0; step < kTileComponents / 16; ++step) {
      // Behind the last component the basis has zeros, or nobody asks: any word will do.
      const uint32_t word = min(place_of(wide, middle, 4 * step + t_).word, total - 1);
      codes.of[step][0] = load_word(from + word * 64), codes.of[step][1] = load_word(from + word * 64 + 32);
    }
  }
  TIERKV_DEVICE void begin_at_means(float (&sums)[kTileDim / 8][4]) const {
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 8; ++n) {
      const float2 means = all_.scales[4 * n + t_];
      sums[n][0] = sums[n][2] = means.x, sums[n][1] = sums[n][3] = means.y;
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
      const ComponentPlace place = place_of(wide, middle, 4 * step + t_);
      uint32_t low[2], high[2];
      const uint32_t mask = ((1u << place.bits) - 1u) * 0x01010101u, skip = place.bits * place.field;
      const __half2 less = __float2half2_rn(1024.0f + static_cast<float>((1u << place.bits) - 1u) * 0.5f - 0.5f);
      const __half2 rest = __float2half2_rn(0.5f);
      code_pair(codes.of[step][0] >> skip & mask, less, rest, low);
      code_pair(codes.of[step][1] >> skip & mask, less, rest, high);
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

  // The turn of channels that lie half a head apart.
  TIERKV_DEVICE void turn(float (&sums)[kTileDim / 8][4]) const {
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 16; ++n) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t c = 8 * n + 2 * t_ + k;
        const float2 by = all_.turns[c];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const float x = sums[n][2 * r + k], y = sums[n + kTileDim / 16][2 * r + k];
          sums[n][2 * r + k] = x * by.x - y * by.y, sums[n + kTileDim / 16][2 * r + k] = x * by.y + y * by.x;
        }
      }
    }
  }

  // Codes where accumulators have them, as multiples of kSmallest: a half with a code for its bits is that. In a Hadamard frame
  // that is to be left, what is left then. kFields: codes of a byte.
  template <uint32_t kFields>
  TIERKV_DEVICE void take_codes(const quant::SideLayout& side, const uint8_t* bytes, float (&sums)[kTileDim / 8][4]) const {
    uint32_t a[kTileDim / 16][4];  // of run s: rows g, g + 8; then the same of eight channels on
    load_codes<kFields>(side, bytes, a);
    prepare_scales(side, bytes);
    __syncthreads();
    if (side.hadamard) {
      sum_runs(a);
      leave_runs(a, sums);
      return;
    }
#pragma unroll
    for (uint32_t s = 0; s < kTileDim / 16; ++s) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float2 two = halves_of(a[s][i]);
        sums[2 * s + i / 2][i % 2 * 2] = two.x, sums[2 * s + i / 2][i % 2 * 2 + 1] = two.y;
      }
    }
  }
  // Four codes in a row are the bytes of one field of a word: of run `run` those from 4 * low + 8 * half on, low and half 0 or 1.
  template <uint32_t kFields>
  TIERKV_DEVICE static uint32_t chunk_of(uint32_t run, uint32_t half, uint32_t low) {
    return run * (4 / kFields) + (kFields == 4 ? 0 : kFields == 2 ? half : low + 2 * half);
  }
  template <uint32_t kFields>
  TIERKV_DEVICE static uint32_t place_in(uint32_t half, uint32_t low) {
    return (kFields == 4 ? low + 2 * half : kFields == 2 ? low : 0) * (8 / kFields);
  }
  template <uint32_t kFields>
  TIERKV_DEVICE void load_codes(const quant::SideLayout& side, const uint8_t* bytes, uint32_t (&a)[kTileDim / 16][4]) const {
    const quant::LayoutPlane plane = side.planes[0];
    const uint32_t mask = ((1u << plane.bits) - 1u) * 0x00010001u;
    // Of keys two bytes of a word, of values the same byte of two words: where a pair's lower bytes come from.
    const uint32_t pick = kKeys ? 0x1100u + (t_ & 1u) * 0x2222u : 0x4400u + (g_ & 3u) * 0x1111u;
    const uint8_t* const from = bytes + plane.offset + (kKeys ? warp_ * plane.chunks * kTile + g_ : 2 * t_) * 4;
#pragma unroll
    for (uint32_t s = 0; s < kTileDim / 16; ++s) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        uint2 words;
        if constexpr (kKeys) {
          words.x = load_word(from + (chunk_of<kFields>(s, i / 2, t_ / 2) * kTile + i % 2 * 8) * 4), words.y = 0;
        } else {
          words = load_two(from + ((s * plane.chunks + chunk_of<kFields>(warp_, i % 2, g_ / 4)) * kTile + i / 2 * 8) * 4);
        }
        const uint32_t place = kKeys ? place_in<kFields>(i / 2, t_ / 2) : place_in<kFields>(i % 2, g_ / 4);
        a[s][i] = __byte_perm(words.x, words.y, pick) >> place & mask;
      }
    }
  }
  TIERKV_DEVICE static uint2 load_two(const uint8_t* at) { return __ldg(reinterpret_cast<const uint2*>(at)); }

  // Of the frame, sums between runs of 16 channels: of whole numbers up to 2,040, exact.
  TIERKV_DEVICE static void sum_runs(uint32_t (&a)[kTileDim / 16][4]) {
#pragma unroll
    for (uint32_t half = 1; half < kTileDim / 16; half *= 2) {
#pragma unroll
      for (uint32_t s = 0; s < kTileDim / 16; ++s) {
        if ((s & half) != 0) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const __half2 x = *reinterpret_cast<const __half2*>(&a[s][i]), y = *reinterpret_cast<const __half2*>(&a[s + half][i]);
          const __half2 sum = __hadd2(x, y), rest = __hsub2(x, y);
          a[s][i] = *reinterpret_cast<const uint32_t*>(&sum), a[s + half][i] = *reinterpret_cast<const uint32_t*>(&rest);
        }
      }
    }
  }
  // And those within a run, with the signs of plain channels.
  TIERKV_DEVICE void leave_runs(const uint32_t (&a)[kTileDim / 16][4], float (&sums)[kTileDim / 8][4]) const {
    // +1 or -1: the entry of channel 2t or 2t + 1, and g.
    const uint32_t base = 0x3C003C00u ^ ((__popc(2 * t_ & g_) & 1u) << 15 | (__popc((2 * t_ + 1) & g_) & 1u) << 31);
#pragma unroll
    for (uint32_t s = 0; s < kTileDim / 16; ++s) {
      const uint32_t first = base ^ all_.flips[16 * s + g_], second = base ^ all_.flips[16 * s + 8 + g_];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) sums[2 * s][i] = sums[2 * s + 1][i] = 0.0f;
      multiply(sums[2 * s], a[s][0], a[s][1], a[s][2], a[s][3], first, first);
      multiply(sums[2 * s + 1], a[s][0], a[s][1], a[s][2], a[s][3], second, second ^ 0x80008000u);
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
#pragma unroll
    for (uint32_t n = 0; n < kTileDim / 8; ++n) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) sums[n][i] *= rows[i / 2].x;
    }
    if (t_ == 0) sums[0][0] += rows[0].y, sums[0][2] += rows[1].y;
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
  TIERKV_DEVICE void add_better_value(const uint8_t* rows, uint32_t better, uint32_t b, bool leaves) {
    const uint32_t row = better_index(rows, better, b);
    if (row >= kKeyTile) return;
    float x[kTileDim / 32];
#pragma unroll
    for (uint32_t k = 0; k < kTileDim / 32; ++k) x[k] = better_value(rows, better, b, lane_ + 32 * k, kTileDim);
    if (leaves) turn_row(launch_, kTileDim, x, false);
#pragma unroll
    for (uint32_t k = 0; k < kTileDim / 32; ++k) add_to(value_at(kTileDim, row, lane_ + 32 * k), x[k]);
  }

  TIERKV_DEVICE void copy_out(const SideOfView& view) const {
    uint8_t* const to = launch_.scratch + static_cast<size_t>(view.to / kKeyTile) * key_tile_bytes(kTileDim) +
                        (kKeys ? 0 : key_tile_side(kTileDim));
#pragma unroll
    for (uint32_t i = threadIdx.x; i < sizeof(all_.image) / 16; i += kTileThreads)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(all_.image)[i];
    if (kKeys && threadIdx.x < kKeyTile) launch_.key_positions[view.to + threadIdx.x] = view.first_position + threadIdx.x;
  }

  const PromptLaunch& launch_;
  UnpackTileShared& all_;
  const uint32_t warp_;
  uint32_t lane_ = 0, g_ = 0, t_ = 0;
  uint32_t codec_ = ~0u;      // whose side is in shared memory
  bool basis_there_ = false;  // and its basis
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
  SideOfView view = side_of<kKeys>(launch.views[blockIdx.x]);
  for (uint32_t v = blockIdx.x; v < launch.tile_views; v += gridDim.x) {
    view = unpacking.run(view, v, min(v + gridDim.x, launch.tile_views - 1));
  }
  if (blockIdx.x == 0) wait_for_previous();
}

}  // namespace tierkv::cuda
