// prompt_kernel_testing.h — the kernels for many queries on simt_machine.h: unpacking, attention as capability 8.0 has it, merging.
// What 9.0 alone has (prompt_hopper.cu) needs a device.
#pragma once

#include "cuda/prompt_attend.cuh"
#include "cuda/prompt_unpack.cuh"
#include "cuda/prompt_unpack_tile.cuh"

namespace tierkv::cuda::testing {

class PromptKernels {
 public:
  PromptKernels(const PromptLaunch& launch, simt::Machine& machine, simt::Machine::Order order)
      : launch_(launch), machine_(machine), order_(order) {}

  void run(PromptStep step) const {
    const uint32_t dim = prompt_dim(launch_.head_dim);
    if (step == PromptStep::merge) {
      if (launch_.tile_count != 0) machine_.run({launch_.tile_count, 2}, 256, 0, order_, [&] { prompt_merge_kernel(launch_); });
    } else if (step == PromptStep::unpack) {
      if (launch_.tile_views != 0) {
        // Fewer thread blocks than views: some take several.
        machine_.run({(launch_.tile_views + 1) / 2, 2}, kTileThreads, sizeof(UnpackTileShared), order_,
                     [&] { unpack_tile_kernel(launch_); });
      }
      if (launch_.view_count == launch_.tile_views) return;
      dim == 64 ? unpack<64>() : dim == 128 ? unpack<128>() : unpack<256>();
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

  const PromptLaunch& launch_;
  simt::Machine& machine_;
  const simt::Machine::Order order_;
};

}  // namespace tierkv::cuda::testing
