// body.h — the kernels themselves, in the vocabulary of one of avx512.h, avx2.h, neon.h, which is included first.
//
// A tile is 16 lanes, in 16/kLanes vectors that never meet. A unit is 16 positions of every lane: four vectors of four bytes a
// lane.
#pragma once

#include "quant/kernels.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kTile = 16;
constexpr uint32_t kTileRow = kTile * 4;  // bytes of one word per lane
constexpr uint32_t kMaxBatch = 8;         // rows of factors at a time

TIERKV_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Fetches what comes next, a part at every step of the work at hand.
class Prefetcher {
 public:
  Prefetcher(const Ahead& ahead, uint32_t steps) : at_(ahead.at), end_(ahead.at + ahead.bytes) {
    part_ = steps == 0 ? 0 : ((ahead.bytes + 63) / 64 + steps - 1) / steps * 64;
  }
  TIERKV_INLINE void step() {
    const std::byte* to = static_cast<size_t>(end_ - at_) > part_ ? at_ + part_ : end_;
    for (; at_ < to; at_ += 64) prefetch(at_);
  }

 private:
  const std::byte *at_, *end_;
  size_t part_;
};

// --- reading codes

// Four vectors of bytes: positions 16u .. 16u+15 of kLanes lanes, from a plane of P bits.
template <int P>
TIERKV_INLINE void plane_unit(const uint8_t* base, uint32_t u, I* out) {
  if constexpr (P == 8) {
    for (int g = 0; g < 4; ++g) out[g] = load_words(base + (static_cast<size_t>(u) * 4 + g) * kTileRow);
  } else if constexpr (P == 4) {
    const I mask = splat_word(0x0F0F0F0F);
    const I a = load_words(base + static_cast<size_t>(u) * 2 * kTileRow),
            b = load_words(base + (static_cast<size_t>(u) * 2 + 1) * kTileRow);
    out[0] = bit_and(a, mask);
    out[1] = bit_and(right<4>(a), mask);
    out[2] = bit_and(b, mask);
    out[3] = bit_and(right<4>(b), mask);
  } else if constexpr (P == 2) {
    const I mask = splat_word(0x03030303);
    const I w = load_words(base + static_cast<size_t>(u) * kTileRow);
    out[0] = bit_and(w, mask);
    out[1] = bit_and(right<2>(w), mask);
    out[2] = bit_and(right<4>(w), mask);
    out[3] = bit_and(right<6>(w), mask);
  } else {
    const I mask = splat_word(0x01010101);
    const I w = right_by(load_words(base + static_cast<size_t>(u / 2) * kTileRow), u % 2 * 4);
    out[0] = bit_and(w, mask);
    out[1] = bit_and(right<1>(w), mask);
    out[2] = bit_and(right<2>(w), mask);
    out[3] = bit_and(right<3>(w), mask);
  }
}

constexpr int widest_plane(int bits) { return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }

template <int kBits>
TIERKV_INLINE void read_unit(const uint8_t* const* base, uint32_t part, uint32_t u, I* out) {
  constexpr int kHigh = widest_plane(kBits), kLow = kBits - kHigh;
  plane_unit<kHigh>(base[0] + part, u, out);
  if constexpr (kLow > 0) {
    I low[4];
    read_unit<kLow>(base + 1, part, u, low);
    for (int g = 0; g < 4; ++g) out[g] = bit_or(left<kLow>(out[g]), low[g]);
  }
}

struct TileAt {
  const uint8_t* base[4];
};
TIERKV_INLINE TileAt tile_at(const PackedSide& side, const std::byte* codes, uint32_t tile) {
  TileAt at;
  for (int p = 0; p < 4; ++p) {
    const PackedSide::Plane& plane = side.planes[p];
    at.base[p] = reinterpret_cast<const uint8_t*>(codes) + plane.offset + static_cast<size_t>(tile) * plane.chunks * kTileRow;
  }
  return at;
}

// A tile as bytes, in the layout of an 8-bit plane. With a codebook: the high bytes of its levels, and the low ones in a second
// tile.
template <int kBits>
void unpack_bytes(const TileAt& tile, const uint8_t* levels, uint32_t units, uint8_t* out, uint8_t* low) {
  static const uint8_t kNone[32] = {};
  const ByteTable high_table(levels ? levels : kNone), low_table(levels ? levels + 16 : kNone);
  for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
    for (uint32_t u = 0; u < units; ++u) {
      I codes[4];
      read_unit<kBits>(tile.base, part, u, codes);
      for (uint32_t g = 0; g < 4; ++g) {
        const size_t at = (static_cast<size_t>(u) * 4 + g) * kTileRow + part;
        store_words(out + at, levels ? high_table.at(codes[g]) : codes[g]);
        if (levels) store_words(low + at, low_table.at(codes[g]));
      }
    }
  }
}

void unpack_bytes(const PackedSide& side, const TileAt& tile, uint32_t units, uint8_t* out, uint8_t* low) {
  switch (side.bits) {
    case 1: return unpack_bytes<1>(tile, side.levels, units, out, low);
    case 2: return unpack_bytes<2>(tile, side.levels, units, out, low);
    case 3: return unpack_bytes<3>(tile, side.levels, units, out, low);
    case 4: return unpack_bytes<4>(tile, side.levels, units, out, low);
    case 5: return unpack_bytes<5>(tile, side.levels, units, out, low);
    case 6: return unpack_bytes<6>(tile, side.levels, units, out, low);
    case 7: return unpack_bytes<7>(tile, side.levels, units, out, low);
    default: return unpack_bytes<8>(tile, side.levels, units, out, low);
  }
}

// --- products of codes and factor bytes

TIERKV_INLINE I splat_factors(const int8_t* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof word);
  return splat_word(word);
}

// sums[n][lane] over units first..last-1 for N rows of factors. kValueBits bounds the levels, kBits is how they are packed.
template <int kBits, int kValueBits, uint32_t N>
void dot_units(const uint8_t* const* base, uint32_t first, uint32_t last, const int8_t* factors, size_t stride,
               int32_t (*sums)[kTile]) {
  using Sums = Dot<kValueBits>;
  for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
    Sums acc[N];
    for (uint32_t u = first; u < last;) {
      const uint32_t stop = last - u > Sums::kUnits ? u + Sums::kUnits : last;
      for (; u < stop; ++u) {
        I codes[4];
        read_unit<kBits>(base, part, u, codes);
        for (uint32_t g = 0; g < 4; ++g) {
          for (uint32_t n = 0; n < N; ++n) acc[n].add(codes[g], splat_factors(factors + n * stride + u * 16 + g * 4));
        }
      }
      for (uint32_t n = 0; n < N; ++n) acc[n].widen();
    }
    for (uint32_t n = 0; n < N; ++n) store_words(reinterpret_cast<uint8_t*>(sums[n]) + part, acc[n].total());
  }
}

template <int kBits, int kValueBits>
void dot_batch(const uint8_t* const* base, uint32_t first, uint32_t last, const int8_t* factors, size_t stride, uint32_t n,
               int32_t (*sums)[kTile]) {
  while (n > 0) {
    uint32_t take = n;
    switch (n) {
      case 1: dot_units<kBits, kValueBits, 1>(base, first, last, factors, stride, sums); break;
      case 2: dot_units<kBits, kValueBits, 2>(base, first, last, factors, stride, sums); break;
      case 3: dot_units<kBits, kValueBits, 3>(base, first, last, factors, stride, sums); break;
      case 4:
      case 5:
        dot_units<kBits, kValueBits, 4>(base, first, last, factors, stride, sums);
        take = 4;
        break;
      case 6:
      case 7:
        dot_units<kBits, kValueBits, 6>(base, first, last, factors, stride, sums);
        take = 6;
        break;
      default:
        dot_units<kBits, kValueBits, 8>(base, first, last, factors, stride, sums);
        take = 8;
        break;
    }
    n -= take;
    factors += take * stride;
    sums += take;
  }
}

// Sums of one batch of factor rows with the 16 lanes of a tile.
struct Sums {
  int32_t high[kMaxBatch][kTile];
  int32_t low[kMaxBatch][kTile];  // of the low bytes of a codebook
};

// Codes of one tile against any number of factor rows, a batch at a time. Few rows read the packed codes, many the unpacked bytes.
class TileDot {
 public:
  // bytes: 2·16·depth.
  TileDot(const PackedSide& side, uint32_t rows, uint8_t* bytes)
      : side_(side),
        bytes_(bytes),
        low_(bytes + static_cast<size_t>(side.depth) * kTile),
        fused_(rows <= kMaxBatch && !side.levels && (side.bits <= 4 || side.bits == 8)) {}

  TIERKV_INLINE void start(const std::byte* codes, uint32_t tile, uint32_t units) {
    at_ = tile_at(side_, codes, tile);
    if (fused_) return;
    unpack_bytes(side_, at_, units, bytes_, low_);
    at_.base[0] = bytes_;
  }

  TIERKV_INLINE void run(uint32_t first, uint32_t last, const int8_t* factors, size_t stride, uint32_t n, Sums& sums) const {
    if (fused_) {
      switch (side_.bits) {
        case 1: return dot_batch<1, 1>(at_.base, first, last, factors, stride, n, sums.high);
        case 2: return dot_batch<2, 2>(at_.base, first, last, factors, stride, n, sums.high);
        case 3: return dot_batch<3, 3>(at_.base, first, last, factors, stride, n, sums.high);
        case 4: return dot_batch<4, 4>(at_.base, first, last, factors, stride, n, sums.high);
        default: return dot_batch<8, 8>(at_.base, first, last, factors, stride, n, sums.high);
      }
    }
    if (side_.levels) dot_batch<8, 8>(&low_, first, last, factors, stride, n, sums.low);
    if (side_.levels || side_.bits > 4) return dot_batch<8, 8>(at_.base, first, last, factors, stride, n, sums.high);
    if (side_.bits > 2) return dot_batch<8, 4>(at_.base, first, last, factors, stride, n, sums.high);
    return dot_batch<8, 2>(at_.base, first, last, factors, stride, n, sums.high);
  }

  // Lanes l.. of the sum of products of factor row `row` (planes joined), as floats.
  TIERKV_INLINE F joined(const Sums& sums, uint32_t row, uint32_t l) const {
    const uint32_t planes = side_.factor_planes;
    const F high = joined_planes(sums.high + row * planes, planes, l);
    return side_.levels ? fma(high, splat(256.0f), joined_planes(sums.low + row * planes, planes, l)) : high;
  }

 private:
  static TIERKV_INLINE F joined_planes(const int32_t (*sums)[kTile], uint32_t planes, uint32_t l) {
    const F high = to_floats(load_words(sums[0] + l));
    return planes == 2 ? fma(high, splat(256.0f), to_floats(load_words(sums[1] + l))) : high;
  }

  const PackedSide& side_;
  uint8_t* bytes_;
  uint8_t* low_;
  bool fused_;
  TileAt at_;
};

// --- factors: floats to bytes

// x[0..n) as step·integer: one byte plane, or two (256·high + low). n % 16 == 0.
TIERKV_INLINE RoundedRow round_factors(const float* x, uint32_t n, uint32_t planes, int8_t* high, int8_t* low) {
  F most = splat(0.0f), total = splat(0.0f);
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F v = load(x + i);
    most = max(most, abs(v));
    total = add(total, v);
  }
  const float limit = planes == 2 ? 32639.0f : 127.0f;
  const float largest = top(most);
  const float inverse = largest > 1e-30f ? limit / largest : 0.0f;
  const F factor = splat(inverse);
  I integers = zero_words();
  for (uint32_t i = 0; i < n; i += kLanes) {
    const I v = to_words(mul(load(x + i), factor));
    integers = add_words(integers, v);
    if (planes == 2) {
      const I h = right_signed<8>(add_words(v, splat_word(128)));
      store_bytes(high + i, h);
      store_bytes(low + i, sub_words(v, left<8>(h)));
    } else {
      store_bytes(high + i, v);
    }
  }
  const float step = inverse > 0.0f ? largest / limit : 0.0f;
  return {step, sum(total), step * static_cast<float>(sum_words(integers))};
}

// What is added to a sum of products: what rounding did to the middle of the levels is put back, the level of zero taken out.
TIERKV_INLINE float shift_of(const PackedSide& side, const RoundedRow& r) {
  return side.unit * (side.middle * (r.sum - r.rounded_sum) - side.zero * r.sum);
}

TIERKV_INLINE void store_up_to(float* out, F v, uint32_t n) {
  if (n >= kLanes) store(out, v);
  else store_first(out, v, n);
}

// --- keys

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

void scores_by_word(const WordCounts& words, const std::byte* codes, const float* factors, const float* middles, const float* base,
                    uint32_t count, uint32_t n, uint32_t rows, float* out, size_t stride, int8_t* bytes, const Ahead& ahead) {
  constexpr uint32_t kQueries = kMaxBatch / 2;
  const size_t tile_bytes = static_cast<size_t>(words.words[0] + words.words[1] + words.words[2]) * kTileRow;
  Prefetcher prefetcher(ahead, (rows + kTile - 1) / kTile * ((count + kQueries - 1) / kQueries));
  for (uint32_t i0 = 0; i0 < count; i0 += kQueries) {
    const uint32_t batch = smaller(kQueries, count - i0);
    float steps[kQueries], shifts[kQueries];
    for (uint32_t i = 0; i < batch; ++i) {
      const float* x = factors + static_cast<size_t>(i0 + i) * n;
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

// --- values

void accumulate(const PackedSide& side, const std::byte* codes, const float* scales, const float* offsets, const float* weights,
                size_t stride, uint32_t count, uint32_t rows, uint32_t dim, float* acc, const KernelScratch& scratch) {
  const uint32_t planes = side.factor_planes, depth = (rows + 15) / 16 * 16;
  int8_t* factors = scratch.bytes + static_cast<size_t>(side.depth) * 2 * kTile;
  float* folded = scratch.floats;
  float* steps = folded + side.depth;
  float* shifts = steps + count;
  TileDot dot(side, count * planes, reinterpret_cast<uint8_t*>(scratch.bytes));
  Sums sums;
  const uint32_t batch = kMaxBatch / planes;
  uint32_t group = ~0u;
  Prefetcher prefetcher(scratch.ahead, dim / kTile);
  for (uint32_t first = 0; first < dim; first += kTile) {
    if (first / side.group != group) {
      group = first / side.group;
      const float* s = scales + static_cast<size_t>(group) * side.across;
      const float* z = offsets + static_cast<size_t>(group) * side.across;
      for (uint32_t i = 0; i < count; ++i) {
        const float* w = weights + i * stride;
        F bias = splat(0.0f);
        uint32_t t = 0;
        for (; t + kLanes <= rows; t += kLanes) {
          const F v = load(w + t);
          store(folded + t, mul(v, load(s + t)));
          bias = fma(v, load(z + t), bias);
        }
        float rest = 0.0f;
        for (; t < depth; ++t) {
          folded[t] = t < rows ? w[t] * s[t] : 0.0f;
          rest += t < rows ? w[t] * z[t] : 0.0f;
        }
        int8_t* high = factors + static_cast<size_t>(i) * planes * depth;
        const RoundedRow r = round_factors(folded, depth, planes, high, high + depth);
        steps[i] = r.step * side.unit;
        shifts[i] = sum(bias) + rest + shift_of(side, r);
      }
    }
    prefetcher.step();
    dot.start(codes, first / kTile, depth / 16);
    for (uint32_t i0 = 0; i0 < count; i0 += batch) {
      const uint32_t n = smaller(batch, count - i0);
      dot.run(0, depth / 16, factors + static_cast<size_t>(i0) * planes * depth, depth, n * planes, sums);
      for (uint32_t i = i0; i < i0 + n; ++i) {
        const F step = splat(steps[i]), shift = splat(shifts[i]);
        float* a = acc + static_cast<size_t>(i) * dim + first;
        for (uint32_t l = 0; l < kTile; l += kLanes) {
          store(a + l, add(load(a + l), fma(dot.joined(sums, i - i0, l), step, shift)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
