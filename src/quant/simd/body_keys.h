// body_keys.h — scores of queries on packed keys. See body_codes.h.
#pragma once

#include "quant/simd/body_products.h"

namespace tierkv::quant {
namespace {

void round_queries(const float* queries, uint32_t count, uint32_t dim, uint32_t group, uint32_t planes, int8_t* factors,
                   RoundedRow* terms) {
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t from = 0; from < dim; from += group) {
      int8_t* high = factors + static_cast<size_t>(i) * planes * dim + from;
      *terms++ = round_factors(queries + static_cast<size_t>(i) * dim + from, smaller(group, dim - from), planes, high, high + dim);
    }
  }
}

void scores_by_token(const PackedSide& side, const std::byte* codes, const float* scales, const float* offsets,
                     const int8_t* factors, const RoundedRow* terms, uint32_t count, uint32_t rows, float* out, size_t stride,
                     const KernelScratch& scratch) {
  const uint32_t d = side.depth, planes = side.factor_planes, groups = (d + side.group - 1) / side.group;
  TileDot dot(side, count * planes, reinterpret_cast<uint8_t*>(scratch.bytes));
  Sums sums;
  const uint32_t batch = kMaxBatch / planes;
  Prefetcher prefetcher(scratch.ahead, (rows + kTile - 1) / kTile);
  for (uint32_t first = 0; first < rows; first += kTile) {
    prefetcher.step();
    dot.start(codes, first / kTile, d / 16);
    const uint32_t live = smaller(kTile, rows - first);
    for (uint32_t g = 0; g < groups; ++g) {
      const uint32_t from = g * side.group, to = from + smaller(side.group, d - from);
      const float* s = scales + static_cast<size_t>(g) * side.across + first;
      const float* z = offsets + static_cast<size_t>(g) * side.across + first;
      for (uint32_t i0 = 0; i0 < count; i0 += batch) {
        const uint32_t n = smaller(batch, count - i0);
        dot.run(from / 16, to / 16, factors + static_cast<size_t>(i0) * planes * d, d, n * planes, sums);
        for (uint32_t i = i0; i < i0 + n; ++i) {
          const RoundedRow& r = terms[i * groups + g];
          const F step = splat(r.step * side.unit), total = splat(r.sum);
          const F shift = splat(shift_of(side, r));
          float* o = out + i * stride + first;
          for (uint32_t l = 0; l < live; l += kLanes) {
            F v = fma(dot.joined(sums, i - i0, l), step, shift);
            v = fma(v, load(s + l), mul(total, load(z + l)));
            if (g > 0) {
              float before[kLanes];
              for (uint32_t k = 0; k < kLanes; ++k) before[k] = l + k < live ? o[l + k] : 0.0f;
              v = add(v, load(before));
            }
            store_up_to(o + l, v, live - l);
          }
        }
      }
    }
  }
}

// Adds N rows of factors times `count` words of kBits-bit codes of a tile to totals; returns the factors past them.
template <int kBits, uint32_t N>
TIERKV_INLINE const int8_t* dot_words(const uint8_t*& at, uint32_t count, const int8_t* factors, size_t stride, I* totals) {
  constexpr uint32_t kParts = 8 / kBits;                                                      // groups of four components in a word
  constexpr uint32_t kRun = Dot<kBits>::kUnits > 64 ? ~0u : Dot<kBits>::kUnits * 4 / kParts;  // words before widen()
  const I mask = splat_word(kBits == 2 ? 0x03030303 : kBits == 4 ? 0x0F0F0F0F : -1);
  Dot<kBits> acc[N];
  for (uint32_t w = 0; w < count;) {
    const uint32_t stop = count - w > kRun ? w + kRun : count;
    for (; w < stop; ++w, at += kTileRow) {
      const I word = load_words(at);
      I codes[4];
      codes[0] = kBits == 8 ? word : bit_and(word, mask);
      if constexpr (kParts >= 2) codes[1] = bit_and(right<kBits>(word), mask);
      if constexpr (kParts == 4) {
        codes[2] = bit_and(right<2 * kBits>(word), mask);
        codes[3] = bit_and(right<3 * kBits>(word), mask);
      }
      for (uint32_t g = 0; g < kParts; ++g, factors += 4) {
        for (uint32_t n = 0; n < N; ++n) acc[n].add(codes[g], splat_factors(factors + n * stride));
      }
    }
    for (uint32_t n = 0; n < N; ++n) acc[n].widen();
  }
  for (uint32_t n = 0; n < N; ++n) totals[n] = add_words(totals[n], acc[n].total());
  return factors;
}

TIERKV_INLINE F signed_bytes(const int8_t* p) { return to_floats(right_signed<24>(left<24>(load_bytes(p)))); }

template <uint32_t N>
void dot_word_tile(const WordCounts& words, const uint8_t* tile, const int8_t* factors, size_t stride, int32_t (*sums)[kTile]) {
  for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
    const uint8_t* at = tile + part;
    I totals[N];
    for (uint32_t n = 0; n < N; ++n) totals[n] = zero_words();
    const int8_t* f = dot_words<8, N>(at, words.words[2], factors, stride, totals);
    f = dot_words<4, N>(at, words.words[1], f, stride, totals);
    dot_words<2, N>(at, words.words[0], f, stride, totals);
    for (uint32_t n = 0; n < N; ++n) store_words(reinterpret_cast<uint8_t*>(sums[n]) + part, totals[n]);
  }
}

void scores_by_word(const WordCounts& words, const std::byte* codes, const float* factors, size_t factor_stride,
                    const float* middles, const float* base, uint32_t count, uint32_t n, uint32_t rows, float* out, size_t stride,
                    int8_t* bytes, const Ahead& ahead) {
  constexpr uint32_t kQueries = kMaxBatch / 2;
  const size_t tile_bytes = static_cast<size_t>(words.words[0] + words.words[1] + words.words[2]) * kTileRow;
  Prefetcher prefetcher(ahead, (rows + kTile - 1) / kTile * ((count + kQueries - 1) / kQueries));
  for (uint32_t i0 = 0; i0 < count; i0 += kQueries) {
    const uint32_t batch = smaller(kQueries, count - i0);
    float steps[kQueries], shifts[kQueries];
    for (uint32_t i = 0; i < batch; ++i) {
      const float* x = factors + (i0 + i) * factor_stride;
      int8_t* high = bytes + static_cast<size_t>(i) * 2 * n;
      const RoundedRow r = round_factors(x, n, 2, high, high + n);
      F middle = splat(0.0f);  // of what the bytes stand for: rounding then only counts as far as a code is from its middle
      for (uint32_t j = 0; j < n; j += kLanes) {
        const F value = fma(signed_bytes(high + j), splat(256.0f), signed_bytes(high + n + j));
        middle = fma(value, load(middles + j), middle);
      }
      steps[i] = r.step;
      shifts[i] = base[i0 + i] - r.step * sum(middle);
    }
    for (uint32_t first = 0; first < rows; first += kTile) {
      prefetcher.step();
      int32_t sums[kMaxBatch][kTile];
      const auto* tile = reinterpret_cast<const uint8_t*>(codes) + first / kTile * tile_bytes;
      switch (batch) {
        case 1: dot_word_tile<2>(words, tile, bytes, n, sums); break;
        case 2: dot_word_tile<4>(words, tile, bytes, n, sums); break;
        case 3: dot_word_tile<6>(words, tile, bytes, n, sums); break;
        default: dot_word_tile<8>(words, tile, bytes, n, sums); break;
      }
      const uint32_t live = smaller(kTile, rows - first);
      for (uint32_t i = 0; i < batch; ++i) {
        const F step = splat(steps[i]), shift = splat(shifts[i]);
        for (uint32_t l = 0; l < live; l += kLanes) {
          const F joined = fma(to_floats(load_words(sums[2 * i] + l)), splat(256.0f), to_floats(load_words(sums[2 * i + 1] + l)));
          store_up_to(out + (i0 + i) * stride + first + l, fma(joined, step, shift), live - l);
        }
      }
    }
  }
}

void scores_by_channel(const PackedSide& side, const std::byte* codes, const float* scales, const float* offsets,
                       const float* queries, uint32_t count, uint32_t rows, float* out, size_t stride,
                       const KernelScratch& scratch) {
  const uint32_t d = side.depth, planes = side.factor_planes;
  int8_t* factors = scratch.bytes + static_cast<size_t>(d) * 2 * kTile;
  float* folded = scratch.floats;
  float* steps = folded + d;
  float* shifts = steps + count;
  TileDot dot(side, count * planes, reinterpret_cast<uint8_t*>(scratch.bytes));
  Sums sums;
  const uint32_t batch = kMaxBatch / planes;
  uint32_t group = ~0u;
  Prefetcher prefetcher(scratch.ahead, (rows + kTile - 1) / kTile);
  for (uint32_t first = 0; first < rows; first += kTile) {
    if (first / side.group != group) {
      group = first / side.group;
      const float* s = scales + static_cast<size_t>(group) * side.across;
      const float* z = offsets + static_cast<size_t>(group) * side.across;
      for (uint32_t i = 0; i < count; ++i) {
        const float* q = queries + static_cast<size_t>(i) * d;
        F bias = splat(0.0f);
        for (uint32_t c = 0; c < d; c += kLanes) {
          const F v = load(q + c);
          store(folded + c, mul(v, load(s + c)));
          bias = fma(v, load(z + c), bias);
        }
        int8_t* high = factors + static_cast<size_t>(i) * planes * d;
        const RoundedRow r = round_factors(folded, d, planes, high, high + d);
        steps[i] = r.step * side.unit;
        shifts[i] = sum(bias) + shift_of(side, r);
      }
    }
    prefetcher.step();
    dot.start(codes, first / kTile, d / 16);
    const uint32_t live = smaller(kTile, rows - first);
    for (uint32_t i0 = 0; i0 < count; i0 += batch) {
      const uint32_t n = smaller(batch, count - i0);
      dot.run(0, d / 16, factors + static_cast<size_t>(i0) * planes * d, d, n * planes, sums);
      for (uint32_t i = i0; i < i0 + n; ++i) {
        const F step = splat(steps[i]), shift = splat(shifts[i]);
        for (uint32_t l = 0; l < live; l += kLanes) {
          store_up_to(out + i * stride + first + l, fma(dot.joined(sums, i - i0, l), step, shift), live - l);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
