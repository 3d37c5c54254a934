// body_encode.h — kernels that make and read back whole blocks. See body.h.
//
// Every result has the bits of the scalar code (grid.cc, lanes.cc, frame.cc): groups lie one a lane, so that the sums of a group
// run in its own order whatever the width of a register, and nothing that rounds is fused.
#pragma once

#include "quant/grid_search.h"
#include "quant/simd/body.h"

namespace tierkv::quant {
namespace {

// --- fits: one group a lane

struct Range {
  F lo, hi;
};
TIERKV_INLINE Range lane_range(const float* x, size_t stride, uint32_t n) {
  F lo = load(x), hi = lo;
  for (uint32_t i = 1; i < n; ++i) {
    const F v = load(x + i * stride);
    lo = min(v, lo);
    hi = max(v, hi);
  }
  const F zero = splat(0.0f);  // no negative zeros: whether they are below zero is a matter of the instruction set
  return {add(lo, zero), add(hi, zero)};
}

// What a group is multiplied by so that squares of its values stay inside float: the power of two at its largest magnitude.
struct Unit {
  F most, up, down;
};
TIERKV_INLINE Unit lane_unit(const Range& range) {
  const F most = max(max(abs(range.lo), abs(range.hi)), splat(kTinyGroup));
  const I exponent = bit_and(as_words(most), splat_word(0x7F800000));
  return {most, as_floats(exponent), as_floats(sub_words(splat_word(0x7F000000), exponent))};
}

TIERKV_INLINE F lane_squares(const float* x, size_t stride, uint32_t n, F down) {
  F sum = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = mul(load(x + i * stride), down);
    sum = add(sum, mul(v, v));
  }
  return sum;
}

// Squared errors of kCount midrise steps on x·down, and which is the least.
template <uint32_t kCount>
TIERKV_INLINE void try_midrise(const float* x, size_t stride, uint32_t n, F down, float outer, const F* steps, F& least, F& best) {
  F inverse[kCount], sums[kCount];
  const F half = splat(0.5f), last = splat(outer);
  for (uint32_t k = 0; k < kCount; ++k) {
    inverse[k] = div(splat(1.0f), steps[k]);
    sums[k] = splat(0.0f);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const F v = abs(mul(load(x + i * stride), down));
    for (uint32_t k = 0; k < kCount; ++k) {
      const F u = sub(mul(v, inverse[k]), half);
      const F e = sub(u, nearest(min(u, last)));
      sums[k] = add(sums[k], mul(e, e));
    }
  }
  for (uint32_t k = 0; k < kCount; ++k) {
    const F e = mul(mul(steps[k], steps[k]), sums[k]);
    best = pick_less(e, least, steps[k], best);
    least = pick_less(e, least, e, least);
  }
}

TIERKV_INLINE void lane_midrise(const float* x, size_t stride, uint32_t n, uint32_t levels, float centre, const Range& range,
                                float* scale, float* step) {
  const Unit unit = lane_unit(range);
  const F squares = lane_squares(x, stride, n, unit.down);
  const F middle = mul(sqrt(div(squares, splat(static_cast<float>(n)))), splat(centre));
  const F widest = mul(splat(2.0f), mul(unit.most, unit.down));
  const float outer = static_cast<float>(levels / 2 - 1);
  F steps[kMidriseSteps + 1], least = splat(3.0e38f), best = widest;
  steps[0] = div(widest, splat(static_cast<float>(levels)));
  for (uint32_t k = 0; k < kMidriseSteps; ++k) steps[k + 1] = min(mul(middle, splat(kMidriseRatios[k])), widest);
  for (uint32_t k = 0; k <= kMidriseSteps; k += 4) try_midrise<4>(x, stride, n, unit.down, outer, steps + k, least, best);

  const F inverse = div(splat(1.0f), best), half = splat(0.5f), last = splat(outer);
  F product = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = abs(mul(load(x + i * stride), unit.down));
    product = add(product, mul(v, add(nearest(min(sub(mul(v, inverse), half), last)), half)));
  }
  const F none = splat(0.0f), tiny = splat(kTinyGroup);
  store(step, pick_less(tiny, unit.most, mul(best, unit.up), none));
  store(scale, pick_less(tiny, unit.most, mul(div(squares, product), unit.up), none));
}

struct ClipSearch {
  F middle, half, intervals, top;
  F least, best;  // best: the part of the range that is kept
};

template <uint32_t kCount>
TIERKV_INLINE void try_clip(const float* x, size_t stride, uint32_t n, const F* parts, ClipSearch& s) {
  F low[kCount], steps[kCount], inverse[kCount], sums[kCount];
  for (uint32_t k = 0; k < kCount; ++k) {
    const F reach = mul(parts[k], s.half);
    low[k] = sub(s.middle, reach);
    steps[k] = div(sub(add(s.middle, reach), low[k]), s.intervals);
    inverse[k] = div(splat(1.0f), steps[k]);
    sums[k] = splat(0.0f);
  }
  const F zero = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = load(x + i * stride);
    for (uint32_t k = 0; k < kCount; ++k) {
      const F u = mul(sub(v, low[k]), inverse[k]);
      const F e = sub(u, nearest(min(max(u, zero), s.top)));
      sums[k] = add(sums[k], mul(e, e));
    }
  }
  for (uint32_t k = 0; k < kCount; ++k) {
    const F e = mul(mul(steps[k], steps[k]), sums[k]);
    s.best = pick_less(e, s.least, parts[k], s.best);
    s.least = pick_less(e, s.least, e, s.least);
  }
}

TIERKV_INLINE Range lane_clip(const float* x, size_t stride, uint32_t n, uint32_t levels, const Range& range) {
  ClipSearch s;
  const F one = splat(1.0f), halves = splat(0.5f);
  s.middle = add(mul(halves, range.lo), mul(halves, range.hi));
  s.half = sub(mul(halves, range.hi), mul(halves, range.lo));
  s.intervals = s.top = splat(static_cast<float>(levels - 1));
  s.least = splat(3.0e38f);
  s.best = one;
  F parts[kClipSteps + 1] = {one};
  for (uint32_t k = 0; k < kClipSteps; ++k) parts[k + 1] = splat(kClipParts[k]);
  for (uint32_t k = 0; k <= kClipSteps; k += 4) try_clip<4>(x, stride, n, parts + k, s);
  const F reach = mul(s.best, s.half), tiny = splat(kTinyGroup), room = div(s.half, s.intervals);
  // The whole range is the group's own minimum and maximum to the bit.
  const F lo = pick_less(s.best, one, sub(s.middle, reach), range.lo), hi = pick_less(s.best, one, add(s.middle, reach), range.hi);
  return {pick_less(tiny, room, lo, range.lo), pick_less(tiny, room, hi, range.hi)};
}

void fit_lanes(FitKind kind, const float* x, size_t stride, uint32_t n, uint32_t levels, float centre, LaneFits& fits) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    Range range = lane_range(x + l, stride, n);
    if (kind == FitKind::range_clip) range = lane_clip(x + l, stride, n, levels, range);
    if (kind == FitKind::midrise) lane_midrise(x + l, stride, n, levels, centre, range, fits.scale + l, fits.step + l);
    if (kind == FitKind::rms) {
      const Unit unit = lane_unit(range);
      const F mean = div(lane_squares(x + l, stride, n, unit.down), splat(static_cast<float>(n)));
      store(fits.scale + l, mul(sqrt(mean), unit.up));
    }
    store(fits.lo + l, range.lo);
    store(fits.hi + l, range.hi);
  }
}

void turn_tile(const float* rows, size_t stride, uint32_t n, float* tile) {
  for (uint32_t c = 0; c < n; c += kLanes) {
    for (uint32_t r = 0; r < kTile; r += kLanes) {
      F v[kLanes];
      for (uint32_t k = 0; k < kLanes; ++k) v[k] = load(rows + (r + k) * stride + c);
      transpose(v);
      for (uint32_t k = 0; k < kLanes; ++k) store(tile + static_cast<size_t>(c + k) * kTile + r, v[k]);
    }
  }
}

// --- codes

// The grid of lanes `lane`.. at a position, and the code of a value on it.
TIERKV_INLINE F grid_at(const PackedSide& side, const LaneGrids& grids, const float* entries, uint32_t lane, uint32_t position) {
  if (grids.per_lane) return load(entries + static_cast<size_t>(position / side.group) * side.across + lane);
  return splat(entries[static_cast<size_t>(lane / side.group) * side.across + position]);
}

TIERKV_INLINE I uniform_code(F v, F scale, F offset, F top) {
  const F zero = splat(0.0f);
  const F code = nearest(min(max(div(sub(v, offset), scale), zero), top));
  return to_words(pick_less(zero, scale, code, zero));
}

TIERKV_INLINE I table_code(F v, F scale, const float* middles, uint32_t count) {
  const F half = mul(splat(0.5f), scale);
  I code = zero_words();
  for (uint32_t k = 0; k < count; ++k) code = count_above(code, v, mul(half, splat(middles[k])));
  return code;
}

// Codes as bytes, four positions a word, in the layout of an 8-bit plane.
template <bool kPerLane>
TIERKV_INLINE void code_bytes(const PackedSide& side, const LaneGrids& grids, uint32_t lane, const float* x, size_t stride,
                              uint8_t* bytes) {
  const uint32_t levels = 1u << side.bits;
  const F top = splat(static_cast<float>(levels - 1));
  F scale = splat(0.0f), offset = scale;
  const auto code = [&](uint32_t p) __attribute__((always_inline)) {
    if (!kPerLane) {
      scale = grid_at(side, grids, grids.scales, lane, p);
      offset = grid_at(side, grids, grids.offsets, lane, p);
    }
    const F v = load(x + p * stride);
    return grids.middles ? table_code(v, scale, grids.middles, levels - 1) : uniform_code(v, scale, offset, top);
  };
  for (uint32_t p = 0; p < side.depth; p += 4) {
    if (kPerLane && p % side.group == 0) {
      scale = grid_at(side, grids, grids.scales, lane, p);
      offset = grid_at(side, grids, grids.offsets, lane, p);
    }
    const I low = bit_or(code(p), left<8>(code(p + 1))), high = bit_or(left<16>(code(p + 2)), left<24>(code(p + 3)));
    store_words(bytes + static_cast<size_t>(p) * kTile, bit_or(low, high));
  }
}

template <int P>
TIERKV_INLINE void pack_plane(const uint8_t* bytes, uint32_t depth, uint32_t chunks, uint32_t shift, uint8_t* out) {
  constexpr uint32_t kFields = 8 / P;
  const I mask = splat_word(static_cast<int32_t>(0x01010101u * ((1u << P) - 1u)));
  for (uint32_t j = 0; j < chunks; ++j) {
    for (uint32_t part = 0; part < kTileRow; part += kLanes * 4) {
      const auto field = [&](uint32_t f) __attribute__((always_inline)) {
        const uint32_t word = j * kFields + f;  // of four positions
        if (word * 4 >= depth) return zero_words();
        return bit_and(right_by(load_words(bytes + static_cast<size_t>(word) * kTileRow + part), shift), mask);
      };
      I packed = field(0);
      if constexpr (kFields > 1) packed = bit_or(packed, left<P % 8>(field(1)));
      if constexpr (kFields > 2) packed = bit_or(packed, bit_or(left<2 * P % 8>(field(2)), left<3 * P % 8>(field(3))));
      if constexpr (kFields > 4) {
        packed = bit_or(packed, bit_or(left<4 * P % 8>(field(4)), left<5 * P % 8>(field(5))));
        packed = bit_or(packed, bit_or(left<6 * P % 8>(field(6)), left<7 * P % 8>(field(7))));
      }
      store_words(out + static_cast<size_t>(j) * kTileRow + part, packed);
    }
  }
}

void encode_tile(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const float* x, size_t stride, std::byte* out,
                 uint8_t* bytes) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    if (grids.per_lane) code_bytes<true>(side, grids, tile * kTile + l, x + l, stride, bytes + static_cast<size_t>(l) * 4);
    else code_bytes<false>(side, grids, tile * kTile + l, x + l, stride, bytes + static_cast<size_t>(l) * 4);
  }
  uint32_t shift = side.bits;
  for (const PackedSide::Plane& plane : side.planes) {
    if (plane.bits == 0) break;
    shift -= plane.bits;
    uint8_t* at = reinterpret_cast<uint8_t*>(out) + plane.offset + static_cast<size_t>(tile) * plane.chunks * kTileRow;
    switch (plane.bits) {
      case 8: pack_plane<8>(bytes, side.depth, plane.chunks, shift, at); break;
      case 4: pack_plane<4>(bytes, side.depth, plane.chunks, shift, at); break;
      case 2: pack_plane<2>(bytes, side.depth, plane.chunks, shift, at); break;
      default: pack_plane<1>(bytes, side.depth, plane.chunks, shift, at); break;
    }
  }
}

// --- and back

void unpack_codes(const PackedSide& side, uint32_t tile, const std::byte* codes, uint32_t positions, uint8_t* bytes) {
  PackedSide plain = side;
  plain.levels = nullptr;
  unpack_bytes(plain, tile_at(side, codes, tile), (positions + 15) / 16, bytes, nullptr);
}

template <int K, bool kTable>
TIERKV_INLINE F value_of(I word, const Table16& table, F scale, F offset) {
  const I code = bit_and(right<8 * K>(word), splat_word(255));
  return add(offset, mul(scale, kTable ? table.at(code) : to_floats(code)));
}

template <bool kTable>
TIERKV_INLINE void decode_columns(const PackedSide& side, const LaneGrids& grids, uint32_t tile, uint32_t first, uint32_t count,
                                  float* out, size_t stride, const uint8_t* bytes, const Table16& table) {
  const uint32_t end = first + count;
  for (uint32_t p = first / 4 * 4; p < end; p += 4) {
    for (uint32_t l = 0; l < kTile; l += kLanes) {
      const uint32_t lane = tile * kTile + l;
      const I word = load_words(bytes + static_cast<size_t>(p) * kTile + l * 4);
      const auto put = [&](uint32_t at, F v) __attribute__((always_inline)) {
        if (at >= first && at < end) store(out + (at - first) * stride + l, v);
      };
      const auto scale = [&](uint32_t at) __attribute__((always_inline)) { return grid_at(side, grids, grids.scales, lane, at); };
      const auto offset = [&](uint32_t at) __attribute__((always_inline)) { return grid_at(side, grids, grids.offsets, lane, at); };
      put(p, value_of<0, kTable>(word, table, scale(p), offset(p)));
      put(p + 1, value_of<1, kTable>(word, table, scale(p + 1), offset(p + 1)));
      put(p + 2, value_of<2, kTable>(word, table, scale(p + 2), offset(p + 2)));
      put(p + 3, value_of<3, kTable>(word, table, scale(p + 3), offset(p + 3)));
    }
  }
}

constexpr float kNoTable[16] = {};

void decode_columns(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const std::byte* codes, uint32_t first,
                    uint32_t count, float* out, size_t stride, uint8_t* bytes) {
  unpack_codes(side, tile, codes, first + count, bytes);
  const Table16 table(grids.table ? grids.table : kNoTable);
  if (grids.table) decode_columns<true>(side, grids, tile, first, count, out, stride, bytes, table);
  else decode_columns<false>(side, grids, tile, first, count, out, stride, bytes, table);
}

template <bool kTable, bool kPerLane>
TIERKV_INLINE void decode_rows(const PackedSide& side, const LaneGrids& grids, uint32_t tile, float* out, size_t stride,
                               const uint8_t* bytes, const Table16& table) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    const uint32_t lane = tile * kTile + l;
    F scale = splat(0.0f), offset = scale;
    for (uint32_t p = 0; p < side.depth; p += kLanes) {
      if (kPerLane) {
        scale = grid_at(side, grids, grids.scales, lane, p);
        offset = grid_at(side, grids, grids.offsets, lane, p);
      }
      const auto s = [&](uint32_t at) __attribute__((always_inline)) {
        return kPerLane ? scale : grid_at(side, grids, grids.scales, lane, at);
      };
      const auto z = [&](uint32_t at) __attribute__((always_inline)) {
        return kPerLane ? offset : grid_at(side, grids, grids.offsets, lane, at);
      };
      F v[kLanes];
      for (uint32_t k = 0; k < kLanes; k += 4) {
        const I word = load_words(bytes + static_cast<size_t>(p + k) * kTile + l * 4);
        v[k] = value_of<0, kTable>(word, table, s(p + k), z(p + k));
        v[k + 1] = value_of<1, kTable>(word, table, s(p + k + 1), z(p + k + 1));
        v[k + 2] = value_of<2, kTable>(word, table, s(p + k + 2), z(p + k + 2));
        v[k + 3] = value_of<3, kTable>(word, table, s(p + k + 3), z(p + k + 3));
      }
      transpose(v);
      for (uint32_t k = 0; k < kLanes; ++k) store(out + (l + k) * stride + p, v[k]);
    }
  }
}

void decode_rows(const PackedSide& side, const LaneGrids& grids, uint32_t tile, const std::byte* codes, float* out, size_t stride,
                 uint8_t* bytes) {
  unpack_codes(side, tile, codes, side.depth, bytes);
  const Table16 table(grids.table ? grids.table : kNoTable);
  if (grids.table) {
    if (grids.per_lane) decode_rows<true, true>(side, grids, tile, out, stride, bytes, table);
    else decode_rows<true, false>(side, grids, tile, out, stride, bytes, table);
  } else {
    if (grids.per_lane) decode_rows<false, true>(side, grids, tile, out, stride, bytes, table);
    else decode_rows<false, false>(side, grids, tile, out, stride, bytes, table);
  }
}

// --- rotation

void walsh_hadamard(float* x, uint32_t n) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    F v = load(x + i);
    v = butterfly<1>(v);
    v = butterfly<2>(v);
    if constexpr (kLanes > 4) v = butterfly<4>(v);
    if constexpr (kLanes > 8) v = butterfly<8>(v);
    store(x + i, v);
  }
  for (uint32_t half = kLanes; half < n; half *= 2) {
    for (uint32_t base = 0; base < n; base += 2 * half) {
      for (uint32_t i = base; i < base + half; i += kLanes) {
        const F a = load(x + i), b = load(x + i + half);
        store(x + i, add(a, b));
        store(x + i + half, sub(a, b));
      }
    }
  }
}

// Every index a constant, or the compiler keeps the vectors in memory.
template <uint32_t kHalf, uint32_t N>
TIERKV_INLINE void butterflies(F (&v)[N]) {
  if constexpr (kHalf < N) {
#pragma GCC unroll 16
    for (uint32_t k = 0; k < N / 2; ++k) {
      const uint32_t i = k / kHalf * 2 * kHalf + k % kHalf;
      const F a = v[i], b = v[i + kHalf];
      v[i] = add(a, b);
      v[i + kHalf] = sub(a, b);
    }
    butterflies<2 * kHalf, N>(v);
  }
}

// A run that fits the registers stays there.
template <uint32_t N, bool kForward>
TIERKV_INLINE void rotate_run(const float* in, const float* signs, float* out) {
  F v[N];
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) {
    v[i] = load(in + i * kLanes);
    if (kForward) v[i] = mul(v[i], load(signs + i * kLanes));
    v[i] = butterfly<1>(v[i]);
    v[i] = butterfly<2>(v[i]);
    if constexpr (kLanes > 4) v[i] = butterfly<4>(v[i]);
    if constexpr (kLanes > 8) v[i] = butterfly<8>(v[i]);
  }
  butterflies<1, N>(v);
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) store(out + i * kLanes, kForward ? v[i] : mul(v[i], load(signs + i * kLanes)));
}

template <uint32_t N>
void rotate_rows(const float* in, uint32_t rows, uint32_t dim, const float* signs, bool forward, float* out) {
  for (uint32_t r = 0; r < rows; ++r, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += N * kLanes) {
      if (forward) rotate_run<N, true>(in + c, signs + c, out + c);
      else rotate_run<N, false>(in + c, signs + c, out + c);
    }
  }
}

void rotate_rows(const float* in, uint32_t rows, uint32_t dim, uint32_t run, const float* signs, bool forward, float* out) {
  switch (run / kLanes) {
    case 1: return rotate_rows<1>(in, rows, dim, signs, forward, out);
    case 2: return rotate_rows<2>(in, rows, dim, signs, forward, out);
    case 4: return rotate_rows<4>(in, rows, dim, signs, forward, out);
    case 8: return rotate_rows<8>(in, rows, dim, signs, forward, out);
    case 16: return rotate_rows<16>(in, rows, dim, signs, forward, out);
    default: break;
  }
  for (uint32_t r = 0; r < rows; ++r, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += kLanes) store(out + c, forward ? mul(load(in + c), load(signs + c)) : load(in + c));
    for (uint32_t c = 0; c < dim; c += run) walsh_hadamard(out + c, run);
    for (uint32_t c = 0; c < dim && !forward; c += kLanes) store(out + c, mul(load(out + c), load(signs + c)));
  }
}

// --- rows

void column_sums(const float* in, uint32_t rows, uint32_t dim, float* sums) {
  for (uint32_t c = 0; c < dim; c += 16) {
    F sum[16 / kLanes];
    for (F& s : sum) s = splat(0.0f);
    for (uint32_t t = 0; t < rows; ++t) {
      for (uint32_t k = 0; k < 16 / kLanes; ++k) sum[k] = add(sum[k], load(in + static_cast<size_t>(t) * dim + c + k * kLanes));
    }
    for (uint32_t k = 0; k < 16 / kLanes; ++k) store(sums + c + k * kLanes, sum[k]);
  }
}

void add_row(const float* in, const float* row, uint32_t rows, uint32_t dim, float* out) {
  for (uint32_t t = 0; t < rows; ++t, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += kLanes) store(out + c, add(load(in + c), load(row + c)));
  }
}

bool within(const float* x, size_t n, float limit) {
  // As integers magnitudes keep their order, infinity and NaN above all others: a difference below zero is one too large.
  const I most = as_words(splat(limit));
  I beyond = zero_words();
  for (size_t i = 0; i < n; i += kLanes) beyond = bit_or(beyond, sub_words(most, as_words(abs(load(x + i)))));
  int32_t found[kLanes];
  store_words(found, beyond);
  int32_t any = 0;
  for (const int32_t f : found) any |= f;
  return any >= 0;
}

void narrow(const float* in, bool bf16, uint32_t n, uint16_t* out) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F v = load(in + i);
    if (bf16) {
      const I bits = as_words(v);
      const I odd = bit_and(right<16>(bits), splat_word(1));
      store_halves(out + i, right<16>(add_words(add_words(bits, splat_word(0x7FFF)), odd)));
    } else {
      store_f16(out + i, v);
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
