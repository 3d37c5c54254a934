// works.h — what the parts of DeviceAttention ask of a piece of work.
#pragma once

#include "attn/backend.h"
#include "cuda/memory/machine.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {

inline bool is_prompt(const attn::AttendWork& work) { return work.queries.tokens > kMostQueries; }

inline bool same_shape(const attn::AttendWork& a, const attn::AttendWork& b) {
  return a.params.head_dim == b.params.head_dim && a.params.scale == b.params.scale && a.params.softcap == b.params.softcap &&
         a.params.causal == b.params.causal && a.params.window == b.params.window && a.sink_logits == b.sink_logits &&
         a.heads.size() == b.heads.size() && a.queries.heads == b.queries.heads && stream_of(a.queries) == stream_of(b.queries) &&
         a.out_type == b.out_type && is_prompt(a) == is_prompt(b);
}

inline uint32_t group_of(const attn::AttendWork& work) { return work.queries.heads / static_cast<uint32_t>(work.heads.size()); }

inline uint8_t* out_bytes(const attn::AttendWork& work) { return reinterpret_cast<uint8_t*>(work.out); }
inline size_t out_size(const attn::AttendWork& work) {
  return size_t{work.queries.tokens} * work.queries.heads * work.params.head_dim * element_bytes(work.out_type);
}

inline uint32_t layer_of(const attn::AttendWork& work) { return work.heads[0].empty() ? 0 : work.heads[0][0].ctx.layer; }

}  // namespace tierkv::cuda
