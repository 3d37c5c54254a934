// prompt_hopper.cuh — a query tile against key tiles on compute capability 9.0, with its products of four warps (wgmma): heads of
// up to 128 channels.
//
// Three groups of four warps. One thread of the first has key tiles copied as they lie in scratch, two of each side under way. The
// other two groups have 64 rows of queries each: while the products of weights and values of a tile are under way they make weights
// of the next tile's scores. The two take no turns: that was no faster. Queries are on their way while the last
// tiles are still unpacked.
//
// Power is what limits all this, so every instruction counts (docs/build/cuda.md): most tiles need no mask, and their weights are
// made by the maxima of earlier ones without a look at how large their own scores are. Sums tell afterwards whether that was right.
#pragma once

#include "cuda/prompt/prompt_queries.cuh"
#include "cuda/prompt/prompt_rows.cuh"
#include "cuda/simt/warpgroup.cuh"

namespace tierkv::cuda::hopper {

inline constexpr uint32_t kGroup = 128, kThreadsAll = 3 * kGroup, kWorkers = 2 * kGroup;
inline constexpr uint32_t kStages = 2;
inline constexpr uint32_t kQueriesThere = 1;  // a barrier's number

template <int D>
struct HopperShared {
  uint8_t queries[D * kQueryTile * 2];
  uint8_t keys[kStages][D * kKeyTile * 2];
  uint8_t values[kStages][D * kKeyTile * 2];
  float factors[kQueryTile];
  uint64_t keys_there[kStages], keys_read[kStages], values_there[kStages], values_read[kStages];
};
template <int D>
inline constexpr size_t kHopperBytes = sizeof(HopperShared<D>) + 1024;  // to be aligned to 1,024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(TIERKV_SIMT)
#define TIERKV_HAS_WARPGROUPS

// One thread has key tiles copied.
template <int D>
TIERKV_DEVICE void copy_tiles(const PromptLaunch& launch, const PromptItem& item, HopperShared<D>& all) {
  wait_for_previous();
  for (uint32_t j = 0; j < item.keys; ++j) {
    const uint32_t stage = j % kStages, parity = (j / kStages & 1u) ^ 1u;
    const uint8_t* const from = launch.scratch + static_cast<size_t>(item.first_key + j) * key_tile_bytes(D);
    barrier_wait(shared_address(&all.keys_read[stage]), parity);
    copy_in(shared_address(all.keys[stage]), from, key_tile_side(D), shared_address(&all.keys_there[stage]));
    barrier_wait(shared_address(&all.values_read[stage]), parity);
    copy_in(shared_address(all.values[stage]), from + key_tile_side(D), key_tile_side(D), shared_address(&all.values_there[stage]));
  }
}

// Of one group of four warps: 64 rows.
template <int D, bool kCapped>
class Worker {
 public:
  TIERKV_DEVICE Worker(const PromptLaunch& launch, const PromptItem& item, const QueryTileDesc& tile, HopperShared<D>& all)
      : launch_(launch), item_(item), tile_(tile), all_(all), index_(threadIdx.x / kGroup - 1) {}

  TIERKV_DEVICE void run() {
    take_queries();
#pragma unroll 1
    for (uint32_t j = 0; j < item_.keys; ++j) {
      if (j == item_.first_plain) j = add_plain_tiles();
      if (j < item_.keys) add_tile<false>(j);
    }
    add_values(item_.keys - 1);
    group_wait<0>();
    group_pin(out_);
    keep_state<D>(launch_, item_, tile_, rows_, first_row() + threadIdx.x % 32 / 4, out_);
  }

 private:
  TIERKV_DEVICE uint32_t first_row() const { return index_ * 64 + threadIdx.x % kGroup / 32 * 16; }
  TIERKV_DEVICE void take_queries() {
    load_queries<D, kWorkers / 32>(launch_, tile_, all_.queries, all_.factors, threadIdx.x / 32 - 4);
    wait_for_previous();
    meet(kQueriesThere, kWorkers);
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k) {
      const uint4 a = queries_of(k);
      queries_[k][0] = a.x, queries_[k][1] = a.y, queries_[k][2] = a.z, queries_[k][3] = a.w;
    }
    rows_ = row_pair(launch_, tile_, all_.factors, first_row() + threadIdx.x % 32 / 4);
#pragma unroll
    for (uint32_t n = 0; n < D / 8; ++n) out_[n][0] = out_[n][1] = out_[n][2] = out_[n][3] = 0.0f;
  }
  TIERKV_DEVICE uint4 queries_of(uint32_t k) const {
    return load_matrices(operand_a(shared_address(all_.queries) + k / 4 * (kQueryTile * 128), first_row(), k % 4 * 2));
  }

  // Returns the tile behind them. Two at a time, and the first has an odd number: so the compiler knows which buffers they are in.
  TIERKV_DEVICE uint32_t add_plain_tiles() {
    const uint32_t end = item_.first_plain / 2 + item_.plain / 2;
#pragma unroll 1
    for (uint32_t pair = item_.first_plain / 2; pair < end; ++pair) {
      add_tile<true>(2 * pair + 1);
      add_tile<true>(2 * pair + 2);
    }
    return 2 * end + 1;
  }

  // Weights of tile j, and the sums of the values of the one before. kPlain: it is whole, all rows see it, and they have seen
  // others.
  template <bool kPlain>
  TIERKV_DEVICE void add_tile(uint32_t j) {
    score(j);
    if (kPlain || j != 0) {
      add_values(j - 1);
      group_wait<1>();
    } else {
      group_wait<0>();
    }
    group_pin(s_);
    read(all_.keys_read[j % kStages]);
    ask(j);
    Shrink shrink{false, {1.0f, 1.0f}};
    if (!kPlain) {
      shrink = weigh<kKeyTile, kCapped>(launch_, rows_, s_, masked(j), positions(j));
      hold_before_wait();
    } else if (!weigh_by_old_top<kKeyTile, kCapped>(launch_, rows_, s_)) {
      score_again(j);
      shrink = weigh<kKeyTile, kCapped>(launch_, rows_, s_, false, nullptr);
    }
    group_wait<0>();
    group_pin(out_);
    if (kPlain || j != 0) read(all_.values_read[(j - 1) % kStages]);
    shrink_rows(shrink, out_);
    pack();
  }

  TIERKV_DEVICE bool masked(uint32_t j) const { return needs_mask(launch_, tile_, launch_.key_tiles[item_.first_key + j]); }
  TIERKV_DEVICE const uint32_t* positions(uint32_t j) const {
    return launch_.key_positions + static_cast<size_t>(item_.first_key + j) * kKeyTile;
  }
  // A branch that depends on all weights, and is taken where one is not a number: the compiler would otherwise move the wait for
  // the products that are under way to before the weights, which are to be made meanwhile.
  TIERKV_DEVICE void hold_before_wait() const {
    if (__any_sync(~0u, !(rows_.sum[0] + rows_.sum[1] >= 0.0f))) {
      uint32_t* const failed = launch_.failed + launch_.rows[tile_.rows_of].work;
      while (atomicExch(failed, 1u) == 0) {
      }
    }
  }
  // A warp has read a tile: the next one may be copied there.
  TIERKV_DEVICE static void read(const uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
  }

  // Asked while weights of tile j are made: whether the next products, of its values and the keys behind it, could begin.
  TIERKV_DEVICE void ask(uint32_t j) {
    keys_there_ = barrier_passed(shared_address(&all_.keys_there[(j + 1) % kStages]), (j + 1) / kStages & 1u);
    values_there_ = barrier_passed(shared_address(&all_.values_there[j % kStages]), j / kStages & 1u);
  }

  TIERKV_DEVICE void score(uint32_t j) {
    const uint32_t stage = j % kStages;
    const uint64_t keys = operand_desc(shared_address(all_.keys[stage]));
    if (!keys_there_) barrier_wait(shared_address(&all_.keys_there[stage]), j / kStages & 1u);
    group_pin(s_);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k) {
      group_multiply(s_, queries_[k], operand_behind(keys, k / 4 * (kKeyTile * 128) + k % 4 * 32), k != 0);
    }
    group_commit();
  }
  // Makes scores of tile j again, by a warp that has lost its own, from the keys in scratch. It takes as long as several tiles, and
  // is seldom wanted: weights have to be 2^9 times the largest before, or more.
  TIERKV_DEVICE void score_again(uint32_t j) {
    const uint8_t* const keys = launch_.scratch + static_cast<size_t>(item_.first_key + j) * key_tile_bytes(D);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t n = 0; n < kKeyTile / 8; ++n) s_[n][0] = s_[n][1] = s_[n][2] = s_[n][3] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < D / 16; ++k) {
      const uint4 a = queries_of(k);
      const uint32_t c = 16 * k + 2 * t;
#pragma unroll
      for (uint32_t n = 0; n < kKeyTile / 8; ++n) {
        const uint32_t row = 8 * n + g;
        multiply(s_[n], a.x, a.y, a.z, a.w, load_word(keys + key_at(row, c)), load_word(keys + key_at(row, c + 8)));
      }
    }
  }
  TIERKV_DEVICE void add_values(uint32_t j) {
    const uint32_t stage = j % kStages;
    const uint64_t values = operand_desc(shared_address(all_.values[stage]));
    if (!values_there_) barrier_wait(shared_address(&all_.values_there[stage]), j / kStages & 1u);
    group_pin(out_);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < kKeyTile / 16; ++k) {
      group_multiply(out_, weights_[k], operand_behind(values, k / 4 * (D * 128) + k % 4 * 32), true);
    }
    group_commit();
  }
  TIERKV_DEVICE void pack() {
#pragma unroll
    for (int k = 0; k < static_cast<int>(kKeyTile) / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights_[k][i] = pack_halves(s_[2 * k + i / 2][i % 2 * 2], s_[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }

  const PromptLaunch& launch_;
  const PromptItem& item_;
  const QueryTileDesc& tile_;
  HopperShared<D>& all_;
  const uint32_t index_;
  uint32_t queries_[D / 16][4];  // operands: shared memory has enough to do with keys and values
  RowPair rows_;
  float s_[kKeyTile / 8][4];            // scores and weights of a tile
  uint32_t weights_[kKeyTile / 16][4];  // as operands
  float out_[D / 8][4];
  bool keys_there_ = false, values_there_ = false;
};

#endif

template <int D, bool kCapped>
__global__ void __launch_bounds__(kThreadsAll, 1) hopper_kernel(const __grid_constant__ PromptLaunch launch) {
#ifdef TIERKV_HAS_WARPGROUPS
  uint8_t* const memory = dynamic_shared();
  auto& all = *reinterpret_cast<HopperShared<D>*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const PromptItem item = launch.items[blockIdx.x];
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      barrier_init_for(shared_address(&all.keys_there[i]), 1), barrier_init_for(shared_address(&all.values_there[i]), 1);
      barrier_init_for(shared_address(&all.keys_read[i]), kWorkers / 32);
      barrier_init_for(shared_address(&all.values_read[i]), kWorkers / 32);
    }
    fence_copies();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) copy_tiles<D>(launch, item, all);
  } else {
    take_registers<240>();
    const QueryTileDesc tile = launch.tiles[item.tile];
    Worker<D, kCapped>(launch, item, tile, all).run();
  }
#endif
}

}  // namespace tierkv::cuda::hopper
