// prompt_hopper.cuh — a query tile against key tiles on compute capability 9.0, with its products of four warps (wgmma): heads of
// up to 128 channels.
//
// Three groups of four warps. One thread of the first has key tiles copied as they lie in scratch, two of each side under way. The
// other two groups have 64 rows of queries each: while the products of weights and values of a tile are under way they make weights
// of the next tile's scores, and while one group does that the other's products are issued. Queries are on their way while the last
// tiles are still unpacked.
#pragma once

#include "cuda/prompt/prompt_queries.cuh"
#include "cuda/prompt/prompt_rows.cuh"
#include "cuda/simt/warpgroup.cuh"

namespace tierkv::cuda::hopper {

inline constexpr uint32_t kGroup = 128, kThreadsAll = 3 * kGroup, kWorkers = 2 * kGroup;
inline constexpr uint32_t kStages = 2;
inline constexpr uint32_t kFirstTurn = 2, kQueriesThere = 1;  // barriers by number

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
    load_queries<D, kWorkers / 32>(launch_, tile_, all_.queries, all_.factors, threadIdx.x / 32 - 4);
    wait_for_previous();
    meet(kQueriesThere, kWorkers);
    const uint32_t first_row = index_ * 64 + threadIdx.x % kGroup / 32 * 16, row = first_row + threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k) {
      const uint4 a = load_matrices(operand_a(shared_address(all_.queries) + k / 4 * (kQueryTile * 128), first_row, k % 4 * 2));
      queries_[k][0] = a.x, queries_[k][1] = a.y, queries_[k][2] = a.z, queries_[k][3] = a.w;
    }
    RowPair rows = row_pair(launch_, tile_, all_.factors, row);
    float out[D / 8][4] = {};
    float s[kKeyTile / 8][4];
    uint32_t weights[kKeyTile / 16][4];
    if (index_ == 1) let_pass(kFirstTurn, kWorkers);
    const KeyTileDesc first = key_tile(0);
    KeyTileDesc ahead = key_tile(1);
    take_turn();
    score(0, false, s);
    end_turn(item_.keys == 1);
    group_wait<0>();
    group_pin(s);
    read(all_.keys_read[0]);
    There next = there(0);
    weigh<kKeyTile, kCapped>(launch_, rows, s, needs_mask(launch_, tile_, first), positions(0));
    pack(s, weights);
#pragma unroll 1
    for (uint32_t j = 1; j < item_.keys; ++j) {
      take_turn();
      score(j, next.keys, s);
      add_values(j - 1, next.values, weights, out);
      end_turn(j + 1 == item_.keys);
      const bool masked = needs_mask(launch_, tile_, ahead);
      ahead = key_tile(j + 1);
      group_wait<1>();
      group_pin(s);
      read(all_.keys_read[j % kStages]);
      next = there(j);
      const Shrink shrink = weigh<kKeyTile, kCapped>(launch_, rows, s, masked, positions(j));
      hold_before_wait(rows);
      group_wait<0>();
      group_pin(out);
      read(all_.values_read[(j - 1) % kStages]);
      shrink_rows(shrink, out);
      pack(s, weights);
    }
    add_values(item_.keys - 1, next.values, weights, out);
    group_wait<0>();
    group_pin(out);
    keep_state<D>(launch_, item_, tile_, rows, row, out);
  }

 private:
  // Asked for a tile ahead: what is far is not to be waited for between products and weights. Behind the last one, the last.
  TIERKV_DEVICE KeyTileDesc key_tile(uint32_t j) const { return launch_.key_tiles[item_.first_key + min(j, item_.keys - 1)]; }
  TIERKV_DEVICE const uint32_t* positions(uint32_t j) const {
    return launch_.key_positions + static_cast<size_t>(item_.first_key + j) * kKeyTile;
  }
  // Groups issue their products in turn.
  TIERKV_DEVICE void take_turn() const { meet(kFirstTurn + index_, kWorkers); }
  TIERKV_DEVICE void end_turn(bool last) const {
    if (index_ == 0 || !last) let_pass(kFirstTurn + 1 - index_, kWorkers);
  }
  // A branch that depends on all weights, and is taken where one is not a number: the compiler would otherwise move the wait for
  // the products that are under way to before the weights, which are to be made meanwhile.
  TIERKV_DEVICE void hold_before_wait(const RowPair& rows) const {
    if (__any_sync(~0u, !(rows.sum[0] + rows.sum[1] >= 0.0f))) {
      uint32_t* const failed = launch_.failed + launch_.rows[tile_.rows_of].work;
      while (atomicExch(failed, 1u) == 0) {
      }
    }
  }
  // A warp has read a tile: the next one may be copied there.
  TIERKV_DEVICE static void read(const uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
  }

  // Asked while a tile's weights are made: whether the next products, of values of tile j and keys behind it, could begin.
  struct There {
    bool keys, values;
  };
  TIERKV_DEVICE There there(uint32_t j) const {
    return {barrier_passed(shared_address(&all_.keys_there[(j + 1) % kStages]), (j + 1) / kStages & 1u),
            barrier_passed(shared_address(&all_.values_there[j % kStages]), j / kStages & 1u)};
  }

  TIERKV_DEVICE void score(uint32_t j, bool there, float (&s)[kKeyTile / 8][4]) const {
    const uint32_t stage = j % kStages;
    const uint64_t keys = operand_desc(shared_address(all_.keys[stage]));
    if (!there) barrier_wait(shared_address(&all_.keys_there[stage]), j / kStages & 1u);
    group_pin(s);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < D / 16; ++k) {
      group_multiply(s, queries_[k], operand_behind(keys, k / 4 * (kKeyTile * 128) + k % 4 * 32), k != 0);
    }
    group_commit();
  }
  TIERKV_DEVICE void add_values(uint32_t j, bool there, const uint32_t (&weights)[kKeyTile / 16][4], float (&out)[D / 8][4]) const {
    const uint32_t stage = j % kStages;
    const uint64_t values = operand_desc(shared_address(all_.values[stage]));
    if (!there) barrier_wait(shared_address(&all_.values_there[stage]), j / kStages & 1u);
    group_pin(out);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < kKeyTile / 16; ++k) {
      group_multiply(out, weights[k], operand_behind(values, k / 4 * (D * 128) + k % 4 * 32), true);
    }
    group_commit();
  }
  TIERKV_DEVICE static void pack(const float (&s)[kKeyTile / 8][4], uint32_t (&weights)[kKeyTile / 16][4]) {
#pragma unroll
    for (int k = 0; k < static_cast<int>(kKeyTile) / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[k][i] = pack_halves(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }

  const PromptLaunch& launch_;
  const PromptItem& item_;
  const QueryTileDesc& tile_;
  HopperShared<D>& all_;
  const uint32_t index_;
  uint32_t queries_[D / 16][4];  // operands: shared memory has enough to do with keys and values
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
