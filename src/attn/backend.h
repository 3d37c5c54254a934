// backend.h — who encodes and decodes blocks, attends over them and merges: the processor today (cpu_backend.h), a device later.
//
// A backend takes whole pieces of work. A piece of attention is one layer: the views of all its KV heads, of one sequence or of
// many, with their queries and outputs. How it is cut up for threads, or launched, is the backend's own affair; the cut and the
// order of sums depend on lengths alone, so that results do not depend on the number of threads nor on what else is in the piece.
//
// Memory:   accepts() says which rows of a caller's a backend can read. Views are of blocks that the backend can read.
// Errors:   a piece that fails has its own status and leaves the others alone. Its outputs are undefined then.
// Threads:  every method is const and may run on many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/attention.h"
#include "attn/mass.h"
#include "quant/codec.h"
#include "tierkv/cache.h"

namespace tierkv::attn {

// One side of one block to be made of codec->shape().tokens rows, exactly codec->bytes() bytes.
struct EncodeWork {
  const quant::Codec* codec = nullptr;
  const float* rows = nullptr;
  quant::BlockContext ctx;
  std::span<std::byte> out;
  // resource_exhausted: no memory for scratch. Anything else that is not ok: the codec refused these rows. `out` is undefined then.
  Status status;
};

// Rows first..first+count-1 of one side of one block.
struct DecodeWork {
  const quant::Codec* codec = nullptr;
  std::span<const std::byte> in;
  quant::BlockContext ctx;
  uint32_t first = 0;
  uint32_t count = 0;
  float* out = nullptr;  // [count][head_dim]
};

// What whoever makes the works knows of a head's views from call to call. Equal versions mean equal things: of the first `views`
// views their blocks, rows and positions, and of the tail behind them every row of a position that both calls have. A version is
// never that of anything else, and one that differs says nothing. 0: not known.
struct Settled {
  const void* owner = nullptr;  // whose views they are: what was made of its earlier ones can go
  uint64_t version = 0;
  uint32_t views = 0;
  uint64_t tail_version = 0;
};

// One sequence's part in the attention of a layer. Query head h looks at KV head h / (query heads / KV heads).
struct AttendWork {
  std::vector<std::span<const BlockView>> heads;  // views of each KV head, oldest first
  std::vector<Settled> settled;                   // one per KV head, or none
  RowsView queries;
  const uint32_t* positions = nullptr;  // one per query
  float* out = nullptr;                 // [queries][query heads][head_dim]; null: the mass alone is wanted (params.weigh_only)
  float* lse = nullptr;                 // [queries][query heads]: the log of the sum of e^score (attention.h), or null
  const float* sink_logits = nullptr;   // one per query head, or null
  std::vector<HeadMass> mass;           // one per KV head, or none
  // [queries][query heads]: the views are a part of what the queries look at, and these the lse of all of it, which mass is taken
  // against. Null: they are all.
  const float* whole = nullptr;
  AttendParams params;
  // resource_exhausted: no memory for scratch. invalid_argument: scores or sums overflowed 32-bit floats.
  Status status;
};

// What is left to do for a call whose attention was done without its mass: `wanted` of the same views, against the lse of the whole
// call, [queries][query heads]. Values are not read, and nothing but the sums is written.
AttendWork mass_alone(const AttendWork& done, std::vector<HeadMass> wanted, const float* lse);

// One after the other, on the caller's thread: for a few works, and inside of a task.
const Executor& in_turn();

class Backend {
 public:
  virtual ~Backend() = default;

  // It keeps things from call to call and wants to be told what is settled.
  virtual bool remembers() const { return false; }

  // unsupported: these rows are in memory that the backend cannot read. `what` names them.
  virtual Status accepts(const RowsView& rows, const char* what) const = 0;

  // Each work is done, or says why not; bytes do not depend on who does it nor on what else is in the call. decode() throws
  // std::bad_alloc when one of them had no memory for scratch; outputs are undefined then. `run` shares tasks out.
  virtual void encode(std::span<EncodeWork> blocks, const Executor& run) const = 0;
  virtual void decode(std::span<const DecodeWork> blocks, const Executor& run) const = 0;

  // `run` shares tasks out. Throws std::bad_alloc before any work is done, not after.
  virtual void attend(std::span<AttendWork> works, const Executor& run) const = 0;
};

}  // namespace tierkv::attn
