// collector.h — calib::Statistics from the attention that goes by (HostOptions::observer), window by window.
//
//   Collector collector(shape, lengths_of_windows, options, weights, pool);
//   for each window: begin_window(); feed its tokens to the host (residual() and observe() are called); end_window();
//   auto statistics = collector.finish();
//
// Keeps the keys and values of the current window in FP16, the sample, and the sums: memory does not grow with the text.
// Queries:  every n-th position of a window is looked at (query_stride), all query heads of it; sums over pairs and
//           LayerSample::weight are multiplied by n, so that they stand for all of them. `weight` and `influence` count queries at
//           least `distance` later, like the pairs.
// Windows:  in a layer with a sliding window a query sees only what the window shows. Where it is no longer than `distance` nothing
//           is ever archived: the layer's sums stay zero, and only its sample is taken.
// Weights:  without the output projection |v_s - o_t|² takes the place of |W_O(v_s - o_t)|²; without residual(), |h_t|² is 1.
// Threads:  observe() shares its work out over `threads`, in parts that do not depend on their number, and adds them up in order:
//           the result is the same bits for any number. The calls themselves are one thread's at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "calib/rope.h"
#include "calib/statistics.h"
#include "llama/output_weights.h"
#include "llama/pair_sums.h"
#include "tierkv/llama.h"
#include "tierkv/status.h"

namespace tierkv::llama {

struct CollectorOptions {
  uint32_t block = 128;
  uint32_t sinks = 4;
  uint32_t distance = 512;
  uint32_t sample_tokens = 8192;
  uint32_t query_stride = 8;
};

// Who a calibration is for: the same for every quantization of a model.
calib::ModelId model_id(const ModelShape& shape);

class Collector {
 public:
  // `windows`: how many tokens each will have. `weights`: of every layer, or none at all.
  Collector(const ModelShape& shape, std::vector<uint32_t> windows, const CollectorOptions& options,
            std::vector<OutputWeights> weights, ThreadPool& pool);

  void begin_window();
  // |h|² before a layer, of consecutive positions; before the layer's observe() of the same ones.
  void residual(uint32_t layer, uint32_t position, std::span<const float> squares);
  void observe(const AttentionSeen& seen);
  // invalid_argument: something is not finite, and the message names the layer; or not all of the window went by.
  Status end_window();
  Result<calib::Statistics> finish();

  uint64_t pairs() const { return pairs_; }    // looked at
  double seconds() const { return seconds_; }  // in observe()
  // Layers that did without: |h|² taken as 1, the output projection as the identity.
  uint32_t without_residual() const;
  uint32_t without_projection() const;

 private:
  struct Layer {
    bool idle = false;  // a sliding window that never reaches the archive
    bool has_residual = false;
    std::vector<uint16_t> keys, values;    // [kv head][longest window][dim]
    std::vector<float> lengths;            // |W_O v|² [head][longest window]
    std::vector<float> residual;           // |h|² [longest window]
    std::vector<float> weight, influence;  // [kv head][longest window]
    uint32_t positions = 0;                // of this window, so far
    const calib::Turner* turner = nullptr;
  };
  void copy_rows(const AttentionSeen& seen, Layer& layer);
  void take_sample(const AttentionSeen& seen);
  void measure_values(Layer& layer, uint32_t index, uint32_t first, uint32_t count);
  void add_pairs(const AttentionSeen& seen, Layer& layer);
  void add_up(uint32_t layer, uint32_t head, std::span<const PairTask> parts);
  const float* gram(uint32_t layer, uint32_t head) const;
  HeadWindow head_window(const Layer& layer, uint32_t index, uint32_t head) const;

  ModelShape shape_;
  CollectorOptions options_;
  std::vector<uint32_t> windows_;
  std::vector<OutputWeights> weights_;
  ThreadPool& pool_;
  uint32_t longest_ = 0, group_ = 1;
  size_t window_ = 0;                   // being read; counts from 1
  std::vector<uint32_t> sample_first_;  // of each window: index of its first sampled token
  calib::Statistics statistics_;
  std::vector<std::vector<double>> value_;  // [layer][head]: sum of p²/|h|²
  std::vector<Layer> layers_;
  std::vector<std::unique_ptr<calib::Turner>> turners_;
  std::vector<PairTask> tasks_;
  uint64_t pairs_ = 0;
  double seconds_ = 0.0;
};

}  // namespace tierkv::llama
