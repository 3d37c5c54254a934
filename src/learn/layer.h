// layer.h — what is gathered of one layer: moments of all its keys, a sample of its rows, and the metric of their errors.
//
// Sample:   a token is in it when a hash of its sequence and position lies below a threshold. All of them at first; when the room
//           is full the threshold halves and those above it go. So short texts keep every token, long ones an even share, and every
//           layer the same ones.
// Pairs:    a looked-at query meets the sampled keys of its sequence that lie at least `distance` before it. What they add up to is
//           divided by the share that is sampled. Blocks that hardly count are drawn by lot and stand for those left out: the sums'
//           expectation stays as it is.
// Finite:   rows and queries that are not finite add nothing; finite() tells that there were some.
// Memory:   rows of the sample are untouched pages until they are used. Beside that nothing grows.
// Threads:  any. A lock of the layer's own guards its sums and its sample; pairs are worked out without it, in parts that do not
//           depend on the number of threads, and added up in order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "calib/rope.h"
#include "learn/pairs.h"
#include "learn/sums.h"
#include "tierkv/cache.h"

namespace tierkv::learn {

// Rows of one head's sample, f32: [n][dim].
struct HeadSample {
  std::vector<float> keys[kKinds];  // in the frame of their blocks
  std::vector<float> values;        // of the tokens that are held out
};

class LayerLearner {
 public:
  // `gram`: [heads][dim][dim], empty: the identity. Throws std::bad_alloc.
  LayerLearner(const LearnShape& shape, const calib::Turner& turner, uint32_t window, const std::vector<float>& gram,
               uint32_t capacity);

  // These throw std::bad_alloc, and have then added some of it or nothing.
  void add_rows(uint64_t seq, uint32_t position, const RowsView& keys, const RowsView& values);
  void add_queries(uint64_t seq, const QueryRows& queries, const Executor& run);
  void forget(uint64_t seq) noexcept;

  bool finite() const;
  size_t bytes() const;
  LayerSums sums() const;
  HeadSample sample(uint32_t head) const;
  uint32_t sampled() const;
  double gram_trace(uint32_t head) const { return traces_[head]; }

  // Bytes that do not depend on the sample, and of one token of it.
  static size_t fixed_bytes(const LearnShape& shape, bool has_gram);
  static size_t token_bytes(const LearnShape& shape);

 private:
  struct Slot {
    uint64_t seq = 0;
    uint32_t position = 0, hash = 0;
    bool gone = false;  // its sequence is: no query meets it
  };
  void add_moments(uint32_t head, uint32_t position, const RowsView& keys);
  void take(uint64_t seq, uint32_t position, const RowsView& keys, const RowsView& values);
  void measure(size_t first, size_t count);
  void thin();
  void gather(uint64_t seq, uint32_t head, uint32_t first, uint32_t last, SampledRows& out) const;
  uint16_t* key_row(size_t slot, uint32_t head) const { return rows_.get() + ((slot * shape_.kv_heads + head) * 2) * shape_.dim; }
  uint16_t* value_row(size_t slot, uint32_t head) const { return key_row(slot, head) + shape_.dim; }

  const LearnShape shape_;
  const calib::Turner& turner_;
  const uint32_t window_, capacity_;
  std::vector<uint16_t> gram_;  // fp16, over its largest entry: [heads][dim][dim]
  float gram_unit_ = 1.0f;
  std::vector<double> traces_;  // of each query head's gram

  mutable std::mutex mutex_;
  bool finite_ = true;
  LayerSums sums_;
  std::vector<Slot> slots_;
  uint32_t level_ = 0;                // one in 2^level tokens is sampled
  std::unique_ptr<uint16_t[]> rows_;  // fp16 [capacity][kv heads][key, value][dim]
  std::unique_ptr<float[]> lengths_;  // |W_O v|² [capacity][heads]
};

}  // namespace tierkv::learn
