// residual_tap.h — how large the residual stream is before each layer, seen in the first micro-batches that a host computes: an
// error of attention counts by its size against that.
//
// Reads the nodes that libllama calls l_out-N (embd or inp_scaled before the first layer) and, where a norm follows a layer's
// output projection, what comes out of that. To look at a node splits the graph there, so it looks at a thousand tokens and no
// more.
//
// Errors:   none: without memory, and where nodes have other names, the cache is told nothing.
// Threads:  the one that computes the graph.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tierkv/llama.h"

namespace tierkv::llama {

// Of each layer, by the names of the nodes before it: where a model has two, the second to be computed counts.
using ResidualNodes = std::map<std::string, uint32_t, std::less<>>;
ResidualNodes residual_nodes(const ModelShape& shape);

class ResidualTap {
 public:
  explicit ResidualTap(const ModelShape& shape);

  // A micro-batch of so many tokens comes next.
  void begin(int32_t tokens) { rows_ = tokens; }
  bool wants(const ggml_tensor* node) const noexcept;
  void read(const ggml_tensor* node) noexcept;
  // Tells the cache what was seen so far. True: that is enough.
  bool report(AdaptiveKVCache& cache);

 private:
  // Of one layer, over tokens. One token in a text may be a hundred times as large as the others: means are of the inverse.
  struct Layer {
    double inverse = 0.0, square = 0.0;
    uint64_t tokens = 0, outputs = 0;
  };
  // The mean over tokens of f(sum of squares).
  template <class Add>
  void for_each_square(const ggml_tensor* node, const Add& add);

  const ResidualNodes layer_of_;
  std::map<const ggml_tensor*, uint32_t> normed_;  // by the weights of a projection that a norm follows
  std::vector<Layer> layers_;
  std::vector<float> row_;
  int64_t rows_ = 0;
  uint64_t seen_ = 0;
};

}  // namespace tierkv::llama
