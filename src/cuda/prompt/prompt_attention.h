// prompt_attention.h — attention of many queries on a machine: what is planned, sent and launched for it. Host code.
//
// Queries and results are in the device's memory, wherever the caller has them; so are blocks and hot rows (mirror.h, tails.h).
// A call is one parcel of descriptors and, for every round (prompt.h), two launches; then one that merges. Nothing waits but a
// second pass: queries beyond kMostRows rows are attended to one pass after the other, to bound what states need.
//
// Numbers:  queries are halves times a power of two of their own, decoded rows and weights are halves, scores and sums floats. What
//           leaves the range of halves sets `failed`: the processor has to do such a work again.
// Memory:   scratch of at most kScratchBytes and a row of queries' state, which stay from call to call.
// Errors:   those of the machine. resource_exhausted: no memory even for a small scratch.
#pragma once

#include <span>
#include <vector>

#include "cuda/memory/codec_tables.h"
#include "cuda/plan/prompt_plan.h"

namespace tierkv::cuda {

struct PromptWork {
  std::span<const PromptHead> heads;    // placed: the machine's addresses
  std::span<const uint32_t> positions;  // one a query
  PromptRows rows;                      // queries, strides, out, lse, type and query_heads; the rest is written by the call
};

struct PromptCall {
  std::span<const PromptWork> works;
  attn::AttendParams params;
  uint32_t group = 1;
  const float* sink_logits = nullptr;  // of the host: one a query head; or null
  uint32_t* failed = nullptr;          // of the device: one a work, zeros before
};

class PromptAttention {
 public:
  static constexpr size_t kScratchBytes = size_t{144} << 20;  // two heads of 128 channels and 128K tokens
  static constexpr uint32_t kMostRows = 1u << 18;

  PromptAttention(Machine& machine, const CodecTables& tables)
      : machine_(machine), tables_(tables), scratch_(machine), states_(machine), parcel_(machine), parcel_host_(machine) {}

  // Bounds for tests: of scratch, and of rows in a pass.
  void set_limits(size_t scratch_bytes, uint32_t rows) { scratch_bytes_ = scratch_bytes, most_rows_ = rows; }

  // REQUIRES: head_dim a multiple of 16, at most 256; a group of at most kMostGroup; all works of one shape; what an earlier call
  // sent has arrived.
  Status attend(const PromptCall& call);

  size_t bytes() const { return scratch_.size() + states_.size() + parcel_.size(); }
  uint64_t rounds() const { return rounds_; }  // so far

 private:
  struct Pass;
  Status run(const PromptCall& call, const Pass& pass);
  Status make_room(const Pass& pass, const PromptCall& call, PromptPlan& plan, PromptLaunch& launch);
  Status send(const PromptPlan& plan, const Pass& pass, const PromptCall& call, PromptLaunch& launch);

  Machine& machine_;
  const CodecTables& tables_;
  DeviceMemory scratch_, states_, parcel_;
  Staging parcel_host_;
  size_t scratch_bytes_ = kScratchBytes;
  uint32_t most_rows_ = kMostRows;
  uint64_t rounds_ = 0;
};

}  // namespace tierkv::cuda
