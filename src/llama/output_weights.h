// output_weights.h — what an error in a head's output does to the residual stream: the Gram matrices of the attention's output
// projection.
//
// |W_O,h x|² = x'·G_h·x with G_h = W_O,h'·W_O,h, head_dim x head_dim. The weights are read from the model's GGUF file (libllama
// does not hand them out) and dequantized by ggml.
// Some models (Gemma) normalise what comes out of the projection before it joins the residual stream: an error then arrives
// multiplied by the norm's weights, which are in G, and divided by the size of the whole output, which depends on the token and
// needs the projection itself.
// Threads:  output_weights() uses the pool; the result is immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "tierkv/llama.h"

namespace tierkv::llama {

struct OutputWeights {
  std::vector<float> gram;        // [heads][head_dim][head_dim]; empty: not known, take the identity
  std::vector<float> projection;  // [rows][heads·head_dim] where a norm follows, otherwise empty

  // What |h|² has to be multiplied with: the mean square of the projection of `out` ([heads][head_dim]) where a norm follows,
  // otherwise 1.
  float scale(const float* out, size_t columns) const;
};

// Of every layer. Layers whose projection is not in the file (another name, a file in parts) or has another shape get an empty one,
// and so do all when `path` is empty or cannot be read.
std::vector<OutputWeights> output_weights(const ModelShape& shape, const std::string& path, ThreadPool& pool);

}  // namespace tierkv::llama
