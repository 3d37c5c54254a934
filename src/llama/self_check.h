// self_check.h — proof, before a host is used, that its attention is libllama's.
//
// A few tokens go through stock libllama and through each path with a plain FP16 cache, in two micro-batches so that the second
// depends on what the cache kept of the first. What is compared are the logits of the last token.
#pragma once

#include <llama.h>

#include "tierkv/llama.h"

namespace tierkv::llama {

// The fastest path that agrees with stock attention. unsupported: not even Path::overwrite does.
Result<Path> self_check(const llama_context_params& params, const ModelShape& shape, bool allow_patch);

// |a - b| / |b|, 1 if either is not finite.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace tierkv::llama
