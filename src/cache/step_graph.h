// step_graph.h — a step of decoding that is recorded once and launched many times as a graph (tierkv/cuda.h: StepGraph).
//
// While it is recorded the calls are checked and remembered, and their backend has places for them in the caller's graph. advance()
// then makes a step of them: all appends, which take room for rows that the graph will bring, and settle what is due, and all
// attention calls, which say what their places read. The appends of a layer come before its attention in the graph, so that no
// attention reads what a later append of the same step has changed; between layers there is nothing to keep in order.
// What fails takes back the appends before it.
#pragma once

#include <optional>
#include <span>

#include "cache/impl.h"
#include "tierkv/cuda.h"

namespace tierkv::cache {

// Nothing: no step is recorded, or not on the stream of these rows. REQUIRES, of appends: the layer is checked, and no sequence is
// there twice.
std::optional<Status> record_append(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items);
std::optional<Status> record_attention(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AttentionItem> items,
                                       const AttentionOptions& options);

// append_there.cc
Status check_step_append(const AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items);
// False: the backend has not the rows before them, and nothing has changed. Throws bad_alloc before anything has.
Result<bool> append_in_step(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items, attn::StepCalls& step,
                            uint32_t call);

// attend.cc
Status check_step_attention(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AttentionItem> items,
                            const AttentionOptions& options);
Status attend_in_step(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options,
                      attn::StepCalls& step, uint32_t call);
// The backend has the hot rows of these sequences, and room behind them. What is on its way is waited for.
Status make_ready(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items, attn::StepCalls& step);

}  // namespace tierkv::cache
