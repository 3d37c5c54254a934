#include "quant/block_grid.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "quant/error_feedback.h"
#include "quant/scratch.h"

namespace tierkv::quant {

namespace {

bool by_channel(const BlockParts& parts) { return parts.recipe.axis == Axis::channel; }
uint32_t along(const BlockParts& parts) { return by_channel(parts) ? parts.shape.tokens : parts.shape.head_dim; }
uint32_t across(const BlockParts& parts) { return by_channel(parts) ? parts.shape.head_dim : parts.shape.tokens; }

// --- with kernels, sixteen groups or codes at a time: rows where neighbours are channels, transposed tiles where they are tokens

void fit_with_kernels(const BlockParts& parts, const float* rows, const float* transposed, GroupFit* fits) {
  const uint32_t d = parts.shape.head_dim, n = along(parts), group = parts.recipe.group;
  const float centre = midrise_centre(parts.meta.levels);
  LaneFits lanes = {};
  for (uint32_t from = 0; from < n; from += group) {
    for (uint32_t a = 0; a < across(parts); a += kTileLanes) {
      const float* x = by_channel(parts) ? rows + static_cast<size_t>(from) * d + a
                                         : transposed + static_cast<size_t>(a) * d + static_cast<size_t>(from) * kTileLanes;
      parts.kernels->fit_lanes(parts.recipe.fit, x, by_channel(parts) ? d : kTileLanes, std::min(group, n - from),
                               parts.meta.levels, centre, lanes);
      for (uint32_t l = 0; l < kTileLanes; ++l, ++fits) {
        *fits = {lanes.lo[l], lanes.hi[l], lanes.scale[l], 0.0f, lanes.step[l]};
        finish_fit(parts.recipe.fit, parts.meta.levels, *fits);
      }
    }
  }
}

LaneGrids grids_of(const BlockParts& parts, const float* scales, const float* offsets) {
  LaneGrids grids;
  grids.per_lane = parts.side == Side::key && !by_channel(parts);
  grids.scales = scales;
  grids.offsets = offsets;
  return grids;
}

void code_with_kernels(const BlockParts& parts, const float* rows, const float* transposed, const float* scales,
                       const float* offsets, BlockScratch& scratch, std::byte* out) {
  const uint32_t d = parts.shape.head_dim;
  LaneGrids grids = grids_of(parts, scales, offsets);
  float middles[16];
  if (parts.recipe.table != nullptr) {
    for (uint32_t k = 1; k < parts.meta.levels; ++k) middles[k - 1] = parts.recipe.table[k - 1] + parts.recipe.table[k];
    grids.middles = middles;
  }
  uint8_t* bytes = at_least(scratch.bytes, static_cast<size_t>(parts.packed.depth) * kTileLanes);
  for (uint32_t tile = 0; tile < parts.lanes.tiles(); ++tile) {
    const bool keys = parts.side == Side::key;
    const float* x = keys ? transposed + static_cast<size_t>(tile) * kTileLanes * d : rows + static_cast<size_t>(tile) * kTileLanes;
    parts.kernels->encode_tile(parts.packed, grids, tile, x, keys ? kTileLanes : d, out, bytes);
  }
}

void decode_with_kernels(const BlockParts& parts, LaneGrids grids, const std::byte* codes, uint32_t first, uint32_t count,
                         BlockScratch& scratch, float* out) {
  const uint32_t d = parts.shape.head_dim;
  float table[16] = {};
  if (parts.recipe.table != nullptr) {
    std::copy_n(parts.recipe.table, parts.meta.levels, table);
    grids.table = table;
  }
  uint8_t* bytes = at_least(scratch.bytes, static_cast<size_t>(parts.packed.depth) * kTileLanes);
  if (parts.side == Side::value) {
    for (uint32_t tile = 0; tile < parts.lanes.tiles(); ++tile) {
      float* column = out + static_cast<size_t>(tile) * kTileLanes;
      parts.kernels->decode_columns(parts.packed, grids, tile, codes, first, count, column, d, bytes);
    }
    return;
  }
  for (uint32_t t = first; t < first + count;) {
    const uint32_t tile = t / kTileLanes, skip = t % kTileLanes, rows = std::min(kTileLanes - skip, first + count - t);
    float* to = out + static_cast<size_t>(t - first) * d;
    if (rows == kTileLanes) {
      parts.kernels->decode_rows(parts.packed, grids, tile, codes, to, d, bytes);
    } else {
      float* whole = at_least(scratch.tile, static_cast<size_t>(kTileLanes) * d);
      parts.kernels->decode_rows(parts.packed, grids, tile, codes, whole, d, bytes);
      std::memcpy(to, whole + static_cast<size_t>(skip) * d, static_cast<size_t>(rows) * d * sizeof(float));
    }
    t += rows;
  }
}

// --- in plain C++: groups as contiguous runs, x[across][along]

void gather_groups(const BlockParts& parts, const float* rows, float* x) {
  const uint32_t d = parts.shape.head_dim, n = along(parts);
  const size_t along_stride = by_channel(parts) ? d : 1, across_stride = by_channel(parts) ? 1 : d;
  for (uint32_t a = 0; a < across(parts); ++a) {
    for (uint32_t i = 0; i < n; ++i) x[static_cast<size_t>(a) * n + i] = rows[a * across_stride + i * along_stride];
  }
}

template <class Fn>
void for_each_group(const BlockParts& parts, Fn&& fn) {
  const uint32_t n = along(parts);
  uint32_t entry = 0;
  for (uint32_t from = 0; from < n; from += parts.recipe.group) {
    for (uint32_t a = 0; a < across(parts); ++a, ++entry) {
      fn(entry, static_cast<size_t>(a) * n + from, std::min(parts.recipe.group, n - from));
    }
  }
}

void code_plainly(const BlockParts& parts, const float* x, const float* scales, const float* offsets, BlockScratch& scratch,
                  std::byte* out) {
  uint16_t* codes = at_least(scratch.codes, static_cast<size_t>(parts.shape.tokens) * parts.shape.head_dim);
  for_each_group(parts, [&](uint32_t entry, size_t at, uint32_t n) {
    if (parts.recipe.table != nullptr) {
      code_group_table(x + at, n, scales[entry], parts.recipe.table, parts.meta.levels, codes + at);
    } else {
      code_group(x + at, n, scales[entry], offsets[entry], parts.meta.levels, codes + at);
    }
  });
  const bool lane_is_across = (parts.side == Side::key) != by_channel(parts);  // keys per token, values per channel
  parts.lanes.pack(codes, lane_is_across ? along(parts) : 1, lane_is_across ? 1 : along(parts), out);
}

void decode_plainly(const BlockParts& parts, const float* scales, const float* offsets, const std::byte* codes, uint32_t first,
                    uint32_t count, float* out) {
  const uint32_t d = parts.shape.head_dim, tokens = parts.shape.tokens, group = parts.recipe.group;
  for (uint32_t t = first; t < first + count; ++t) {
    for (uint32_t c = 0; c < d; ++c) {
      const uint32_t code = parts.side == Side::key ? parts.lanes.get(codes, t, c) : parts.lanes.get(codes, c, t);
      const size_t entry = by_channel(parts) ? static_cast<size_t>(t / group) * d + c : static_cast<size_t>(c / group) * tokens + t;
      const float level = parts.recipe.table != nullptr ? parts.recipe.table[code] : static_cast<float>(code);
      *out++ = offsets[entry] + scales[entry] * level;
    }
  }
}

// --- errors that answer for each other, in plain C++ either way

// Puts every value of x where its grid has a level. x: tiles of 16 tokens, in them [channel][token] with kernels and
// [token][channel] without.
void answer_for_errors(const BlockParts& parts, const ErrorFeedback& feedback, const float* scales, const float* offsets,
                       float* x) {
  const uint32_t d = parts.shape.head_dim;
  const size_t channel_stride = parts.kernels ? kTileLanes : 1, token_stride = parts.kernels ? 1 : d;
  float errors[256][kTileLanes];
  for (uint32_t first = 0; first < parts.shape.tokens; first += kTileLanes, x += static_cast<size_t>(kTileLanes) * d) {
    for (uint32_t c = 0; c < d; ++c) {
      const float* answers = feedback.answers(c);
      float* values = x + c * channel_stride;
      float wanted[kTileLanes];
      for (uint32_t t = 0; t < kTileLanes; ++t) wanted[t] = values[t * token_stride];
      for (uint32_t j = 0; j < c; ++j) {
        for (uint32_t t = 0; t < kTileLanes; ++t) wanted[t] -= answers[j] * errors[j][t];
      }
      for (uint32_t t = 0; t < kTileLanes; ++t) {
        const float level = nearest_level(wanted[t], scales[first + t], offsets[first + t], parts.meta.levels);
        const float rounded = offsets[first + t] + scales[first + t] * level;
        errors[c][t] = rounded - values[t * token_stride];
        values[t * token_stride] = rounded;
      }
    }
  }
}

}  // namespace

Status encode_block(const BlockParts& parts, const float* rows, std::span<std::byte> out, const ErrorFeedback* feedback) {
  BlockScratch& scratch = block_scratch();
  const size_t values = static_cast<size_t>(parts.shape.tokens) * parts.shape.head_dim, entries = parts.meta.entries;
  GroupFit* fits = at_least(scratch.fits, entries);
  float* x = at_least(scratch.transposed, values);
  if (parts.kernels) {
    const uint32_t d = parts.shape.head_dim;
    for (uint32_t t = 0; t < parts.shape.tokens; t += kTileLanes) {
      parts.kernels->transpose_tile(rows + static_cast<size_t>(t) * d, d, d, x + static_cast<size_t>(t) * d);
    }
    fit_with_kernels(parts, rows, x, fits);
  } else {
    gather_groups(parts, rows, x);
    for_each_group(parts, [&](uint32_t entry, size_t at, uint32_t n) {
      fits[entry] = fit_group(parts.recipe.fit, x + at, n, parts.meta.levels);
    });
  }
  // Beside the block until it is known to be good: a block that is refused is left as it was.
  const size_t meta_size = meta_bytes(parts.meta);
  std::byte* meta = at_least(scratch.meta, meta_size);
  TIERKV_RETURN_IF_ERROR(encode_meta(parts.meta, {fits, entries}, meta));
  float* scales = at_least(scratch.grids, 2 * entries);
  float* offsets = scales + entries;
  if (feedback) {
    decode_meta(parts.meta, meta, scales, offsets);
    answer_for_errors(parts, *feedback, scales, offsets, x);
  } else if (parts.recipe.keep_fit_codes) {
    for (size_t i = 0; i < entries; ++i) {
      scales[i] = fits[i].step;
      offsets[i] = -parts.recipe.zero * fits[i].step;
    }
  } else {
    decode_meta(parts.meta, meta, scales, offsets);
  }
  if (parts.kernels) code_with_kernels(parts, rows, x, scales, offsets, scratch, out.data());
  else code_plainly(parts, x, scales, offsets, scratch, out.data());
  std::memcpy(out.data() + parts.lanes.bytes(), meta, meta_size);
  return Status();
}

void decode_block(const BlockParts& parts, std::span<const std::byte> in, uint32_t first, uint32_t count, float* out) {
  BlockScratch& scratch = block_scratch();
  float* scales = at_least(scratch.grids, 2 * static_cast<size_t>(parts.meta.entries));
  float* offsets = scales + parts.meta.entries;
  decode_meta(parts.meta, in.data() + parts.lanes.bytes(), scales, offsets);
  if (parts.kernels) decode_with_kernels(parts, grids_of(parts, scales, offsets), in.data(), first, count, scratch, out);
  else decode_plainly(parts, scales, offsets, in.data(), first, count, out);
}

}  // namespace tierkv::quant
