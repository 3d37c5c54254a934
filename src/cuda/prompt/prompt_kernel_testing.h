// prompt_kernel_testing.h — the kernels for many queries on simt_machine.h: unpacking, attention as capabilities 8.0 and 9.0 have
// it, merging.
#pragma once

#include "cuda/prompt/prompt_attend.cuh"
#include "cuda/prompt/prompt_hopper.cuh"
#include "cuda/prompt/prompt_unpack.cuh"
#include "cuda/prompt/prompt_unpack_tile.cuh"

namespace tierkv::cuda::testing {

class PromptKernels {
 public:
  // `hopper`: as capability 9.0 has it, where heads are not too wide for that.
  PromptKernels(const PromptLaunch& launch, simt::Machine& machine, simt::Machine::Order order, bool hopper)
      : launch_(launch), machine_(machine), order_(order), hopper_(hopper) {}

  void run(PromptStep step) const {
    const uint32_t dim = prompt_dim(launch_.head_dim);
    if (step == PromptStep::merge) {
      dim == 64 ? merge<64>() : dim == 128 ? merge<128>() : merge<256>();
    } else if (step == PromptStep::unpack) {
      if (launch_.tile_views != 0) {
        // Fewer thread blocks than views: some take several.
        const uint32_t blocks = (launch_.tile_views + 1) / 2;
        machine_.run(blocks, kTileThreads, kUnpackTileBytes<true>, order_, [&] { unpack_tile_kernel<true>(launch_); });
        machine_.run(blocks, kTileThreads, kUnpackTileBytes<false>, order_, [&] { unpack_tile_kernel<false>(launch_); });
      }
      if (launch_.view_count == launch_.tile_views) return;
      dim == 64 ? unpack<64>() : dim == 128 ? unpack<128>() : unpack<256>();
    } else if (hopper_ && dim <= 128) {
      dim == 64 ? attend_hopper<64>() : attend_hopper<128>();
    } else {
      dim == 64 ? attend<64>() : dim == 128 ? attend<128>() : attend<256>();
    }
  }

 private:
  template <int D>
  void unpack() const {
    machine_.run({launch_.view_count - launch_.tile_views, 2}, kUnpackThreads, sizeof(UnpackShared<D>), order_,
                 [&] { unpack_kernel<D>(launch_); });
  }
  template <int D>
  void attend() const {
    machine_.run(launch_.item_count, kPromptThreads, sizeof(PromptShared<D>), order_, [&] {
      if (launch_.softcap > 0.0f) prompt_kernel<D, true>(launch_);
      else prompt_kernel<D, false>(launch_);
    });
  }
  template <int D>
  void merge() const {
    if (launch_.tile_count == 0) return;
    machine_.run({launch_.tile_count, 2}, 256, 0, order_, [&] { prompt_merge_kernel<D>(launch_); });
  }
  template <int D>
  void attend_hopper() const {
    machine_.run(launch_.item_count, hopper::kThreadsAll, hopper::kHopperBytes<D>, order_, [&] {
      if (launch_.softcap > 0.0f) hopper::hopper_kernel<D, true>(launch_);
      else hopper::hopper_kernel<D, false>(launch_);
    });
  }

  const PromptLaunch& launch_;
  simt::Machine& machine_;
  const simt::Machine::Order order_;
  const bool hopper_;
};

}  // namespace tierkv::cuda::testing
