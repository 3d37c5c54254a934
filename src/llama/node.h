// node.h — an attention node of libllama's graph, as far as the cache needs it.
//
// Layout: Q is f32 [head_dim, tokens, heads]; K and V are f16 views of libllama's own cache tensors, [head_dim, cells, kv heads],
//         whose cells 0..tokens-1 hold this micro-batch's rows in the batch's order; the result is f32 [head_dim, heads, tokens].
// Threads: stateless.
#pragma once

#include <ggml.h>

#include <cstdint>

#include "tierkv/cache.h"

namespace tierkv::llama {

struct AttentionNode {
  int32_t layer = -1;              // libllama's number of the layer whose cache it reads
  RowsView queries, keys, values;  // rows of the whole micro-batch
  float* out = nullptr;
  float scale = 0.0f;
  float max_bias = 0.0f;  // ALiBi
  float softcap = 0.0f;
  const ggml_tensor* mask = nullptr;
  const float* sink_logits = nullptr;  // a logit per query head, or null
};

// The layer of a tensor that is a view of libllama's key cache; -1 if it is not one.
int32_t cache_layer(const ggml_tensor* keys);

// Reads a node that is or was a GGML_OP_FLASH_ATTN_EXT; `op_params` are the parameters it had as one.
// unsupported: the node is not attention over plain keys and values in host memory, and the message says why.
Result<AttentionNode> read_node(const ggml_tensor* node, const int32_t* op_params);

}  // namespace tierkv::llama
