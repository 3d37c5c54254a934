// prompt_attend.cuh — a query tile against key tiles with mma: compute capability 8.0 and later; and the merge of states.
//
// Eight warps of 16 rows, 64 keys at a time. One buffer for keys and one for values: values arrive while scores are made, the next
// keys while values are summed.
#pragma once

#include "cuda/prompt/frame.cuh"
#include "cuda/prompt/prompt_queries.cuh"
#include "cuda/prompt/prompt_rows.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kPromptThreads = 256, kPromptKeys = 64;

template <int D>
struct PromptShared {
  alignas(128) uint8_t queries[D * kQueryTile * 2];
  alignas(128) uint8_t keys[D * kPromptKeys * 2];    // [64 channels][64 rows]: 128 bytes
  alignas(128) uint8_t values[D * kPromptKeys * 2];  // [channel]: 64 rows
  float factors[kQueryTile];
};

// Address of a lane's row of four matrices, runs of 128 bytes: 16 runs from `first` on, 16 halves of each from unit `unit` on.
// Operands B, [n][k]: matrices are n 0-7 k 0-7, n 0-7 k 8-15, n 8-15 k 0-7, n 8-15 k 8-15. Operands A have the middle two
// exchanged.
TIERKV_DEVICE uint32_t operand_b(uint32_t base, uint32_t first, uint32_t unit) {
  const uint32_t lane = threadIdx.x % 32, run = first + lane / 16 * 8 + lane % 8;
  return base + run * 128 + ((unit + lane / 8 % 2) ^ (run % 8)) * 16;
}
template <int D>
TIERKV_DEVICE void copy_keys(const PromptLaunch& launch, uint32_t step, uint32_t to) {
  const uint8_t* const from = launch.scratch + static_cast<size_t>(step / 2) * key_tile_bytes(D) + step % 2 * (kPromptKeys * 128);
#pragma unroll
  for (uint32_t i = threadIdx.x; i < D * kPromptKeys / 8; i += kPromptThreads) {
    constexpr uint32_t kPart = kPromptKeys * 8;  // units of 64 channels
    fetch16(to + i * 16, from + i / kPart * (kKeyTile * 128) + i % kPart * 16);
  }
}
template <int D>
TIERKV_DEVICE void copy_values(const PromptLaunch& launch, uint32_t step, uint32_t to) {
  const uint8_t* const from =
      launch.scratch + static_cast<size_t>(step / 2) * key_tile_bytes(D) + key_tile_side(D) + step % 2 * (D * 128);
#pragma unroll
  for (uint32_t i = threadIdx.x; i < D * kPromptKeys / 8; i += kPromptThreads) fetch16(to + i * 16, from + i * 16);
}

template <int D, bool kCapped>
__global__ void __launch_bounds__(kPromptThreads, 1) prompt_kernel(const __grid_constant__ PromptLaunch launch) {
  auto& all = *reinterpret_cast<PromptShared<D>*>(dynamic_shared());
  const PromptItem item = launch.items[blockIdx.x];
  const QueryTileDesc tile = launch.tiles[item.tile];
  const uint32_t warp = threadIdx.x / 32, first_row = warp * 16, row = first_row + threadIdx.x % 32 / 4;
  const uint32_t queries = shared_address(all.queries), keys = shared_address(all.keys), values = shared_address(all.values);
  const uint32_t begin = item.first_key * 2, end = begin + item.keys * 2;
  copy_keys<D>(launch, begin, keys);
  end_fetches();
  load_queries<D, kPromptThreads / 32>(launch, tile, all.queries, all.factors, warp);
  __syncthreads();
  RowPair rows = row_pair(launch, tile, all.factors, row);
  float out[D / 8][4] = {};
#pragma unroll 1
  for (uint32_t step = begin; step < end; ++step) {
    copy_values<D>(launch, step, values);
    end_fetches();
    wait_for_fetches<1>();
    __syncthreads();
    float s[kPromptKeys / 8][4] = {};
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k) {
      const uint4 a = load_matrices(operand_a(queries + k / 4 * (kQueryTile * 128), first_row, k % 4 * 2));
#pragma unroll
      for (uint32_t n = 0; n < kPromptKeys / 16; ++n) {
        const uint4 b = load_matrices(operand_b(keys + k / 4 * (kPromptKeys * 128), n * 16, k % 4 * 2));
        multiply(s[2 * n], a.x, a.y, a.z, a.w, b.x, b.y);
        multiply(s[2 * n + 1], a.x, a.y, a.z, a.w, b.z, b.w);
      }
    }
    __syncthreads();  // keys are read
    if (step + 1 < end) copy_keys<D>(launch, step + 1, keys);
    end_fetches();
    const Shrink shrink = weigh<kPromptKeys, kCapped>(launch, rows, s, needs_mask(launch, tile, launch.key_tiles[step / 2]),
                                                      launch.key_positions + step * kPromptKeys);
    shrink_rows(shrink, out);
    wait_for_fetches<1>();
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < kPromptKeys / 16; ++k) {
      const uint32_t a0 = pack_halves(s[2 * k][0], s[2 * k][1]), a1 = pack_halves(s[2 * k][2], s[2 * k][3]),
                     a2 = pack_halves(s[2 * k + 1][0], s[2 * k + 1][1]), a3 = pack_halves(s[2 * k + 1][2], s[2 * k + 1][3]);
#pragma unroll
      for (uint32_t n = 0; n < D / 16; ++n) {
        const uint4 b = load_matrices(operand_b(values, n * 16, k * 2));
        multiply(out[2 * n], a0, a1, a2, a3, b.x, b.y);
        multiply(out[2 * n + 1], a0, a1, a2, a3, b.z, b.w);
      }
    }
    __syncthreads();  // values are read
  }
  keep_state<D>(launch, item, tile, rows, row, out);
}

// A warp a row: the slots of a query tile, and sink logits, to outputs.
template <int D>
__global__ void __launch_bounds__(256) prompt_merge_kernel(const __grid_constant__ PromptLaunch launch) {
  const QueryTileDesc tile = launch.tiles[blockIdx.x];
  const PromptRows& to = launch.rows[tile.rows_of];
  constexpr uint32_t kEach = D / 32;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t r = blockIdx.y * 8 + threadIdx.x / 32; r < tile.rows; r += gridDim.y * 8) {
    const uint32_t flat = tile.first + r, token = flat / launch.group, head = tile.first_head + flat % launch.group;
    const float sink = launch.sink_logits ? launch.sink_logits[head] * kLog2E : -INFINITY;
    float top = sink;
    const auto slot_row = [&](uint32_t s) { return static_cast<size_t>(launch.slots[tile.first_slot + s]) * kQueryTile + r; };
    for (uint32_t s = 0; s < tile.slots; ++s) top = fmaxf(top, launch.state_top[slot_row(s)]);
    const float base = top == -INFINITY ? 0.0f : top;
    float sum = power2(sink - base), out[kEach] = {};
    for (uint32_t s = 0; s < tile.slots; ++s) {
      const size_t at = slot_row(s);
      const float share = power2(launch.state_top[at] - base);
      sum += share * launch.state_sum[at];
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) {
        const uint32_t c = lane + 32 * k;
        if (c < launch.head_dim) out[k] += share * launch.state_out[at * launch.head_dim + c];
      }
    }
    if (launch.value_frame) turn_row(launch, launch.head_dim, out, false);
    const size_t row = static_cast<size_t>(token) * to.query_heads + head;
    const float over = sum == 0.0f ? 0.0f : 1.0f / sum;
    bool good = sum == 0.0f || (isfinite(sum) && isfinite(top));
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) good = good && isfinite(out[k] * over);
    good = __all_sync(~0u, good);
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t c = lane + 32 * k;
      if (c < launch.head_dim) to.out[row * launch.head_dim + c] = good ? out[k] * over : 0.0f;
    }
    if (lane != 0) continue;
    if (!good) launch.failed[to.work] = 1;
    if (to.lse) to.lse[row] = good && sum > 0.0f ? (top + log2f(sum)) / kLog2E : -INFINITY;
  }
}

}  // namespace tierkv::cuda
