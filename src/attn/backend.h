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
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attn/attention.h"
#include "attn/mass.h"
#include "base/far_bytes.h"
#include "quant/codec.h"
#include "tierkv/cache.h"

namespace tierkv::attn {

// Rows as they lie in a hot tail, one behind the other, 16 bits an element.
struct TailRows {
  const uint16_t* rows = nullptr;
  bool bf16 = false;  // fp16 otherwise
  // Whose they are, for a backend that keeps tails from call to call: as TakeWork's, of a KV head and a side, and their positions
  // follow one another. Null: it cannot have them.
  const void* owner = nullptr;
  uint64_t version = 0;
  uint32_t head = 0;
  bool values = false;
};

// Rows first..first+count-1 of a block, as its codec decodes them: of its keys or of its values, whichever somebody wants.
struct BlockRows {
  BlockView block;
  uint32_t first = 0, count = 0;
};

// One side of one block to be made of codec->shape().tokens rows, exactly codec->bytes() bytes.
struct EncodeWork {
  const quant::Codec* codec = nullptr;
  const float* rows = nullptr;  // null: those of `blocks`, or where there are none of `tail`
  quant::BlockContext ctx;
  std::span<std::byte> out;
  // resource_exhausted: no memory for scratch. Anything else that is not ok: the codec refused these rows. `out` is undefined then.
  Status status;
  TailRows tail = {};
  std::span<const BlockRows> blocks = {};  // one behind the other, of the codec's side
};
// The rows of these blocks' `side`, [rows][head_dim]. Throws bad_alloc: no memory for scratch.
void decode_blocks(std::span<const BlockRows> blocks, quant::Side side, float* out);

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
  uint64_t before = 0;  // a version of the same owner, of whose views the first `same` are as they were; 0: not known
  uint32_t same = 0;
};

// The calls of a step that is launched many times as a graph (tierkv/cuda.h: StepGraph), as a backend knows them.
//
// While it is recorded, in order, each call takes its places in the graph that is being captured, and the next number, from 0 on.
// A step is begin(), then take() of all appends and attend() of all attention calls with their numbers, which ask for nothing but
// say what their places have to do, and finish().
class StepCalls {
 public:
  virtual ~StepCalls() = default;

  // False: nobody captures that stream.
  virtual Result<bool> captures(void* stream) = 0;
  // REQUIRES: a stream that is captured, the items are fine. failed_precondition: another capture than that of the calls before.
  virtual Status add_append(std::span<const AppendItem> items) = 0;
  virtual Status add_attention(std::span<const AttentionItem> items, uint32_t kv_heads) = 0;
  virtual Status end() = 0;

  // `exec`: what was made of the graph; `stream`: on which it will be launched. invalid_argument: it is another graph's.
  virtual Status begin(void* exec, void* stream) = 0;
  // False: the attention calls have to be made again, because what they stand on has moved.
  virtual Result<bool> finish() = 0;
  // Instead of it, or when it failed.
  virtual void give_up() noexcept = 0;
};

// One sequence's part in the attention of a layer. Query head h looks at KV head h / (query heads / KV heads).
struct AttendWork {
  std::vector<std::span<const BlockView>> heads;  // views of each KV head, oldest first
  std::vector<Settled> settled;                   // one per KV head, or none
  RowsView queries;
  const uint32_t* positions = nullptr;  // one per query
  // [queries][query heads][head_dim], in the queries' place; null: the mass alone is wanted (params.weigh_only). In a device's
  // memory it is valid for work that comes after on the queries' stream, and what goes wrong there is said by a later call.
  float* out = nullptr;
  DType out_type = DType::f32;         // of what `out` is the address of; in host memory always this one
  float* lse = nullptr;                // [queries][query heads]: the log of the sum of e^score (attention.h), or null
  const float* sink_logits = nullptr;  // one per query head, or null
  std::vector<HeadMass> mass;          // one per KV head, or none
  // [queries][query heads]: the views are a part of what the queries look at, and these the lse of all of it, which mass is taken
  // against. Null: they are all.
  const float* whole = nullptr;
  AttendParams params;
  // Where rows of the tail are still on their way (Arrival): to be called before the processor reads any; the backend has taken
  // them. Empty: all are there.
  std::function<Status()> land;
  // Of a step's graph, and the number of the call there; null: it is asked for now. unsupported: it cannot be done in a graph.
  StepCalls* step = nullptr;
  uint32_t call = 0;
  // resource_exhausted: no memory for scratch. invalid_argument: scores or sums overflowed 32-bit floats.
  Status status;
};

// Rows that are on their way from a device's memory to host memory. Threads: any.
class Arrival {
 public:
  virtual ~Arrival() = default;
  virtual bool arrived() const = 0;
  // io_error: the device failed, and they will not come.
  virtual Status wait() const = 0;
};

// The newest rows of one sequence and layer, which are in a device's memory: behind those of the tail that the backend keeps there.
struct TakeWork {
  RowsView keys, values;
  const void* owner = nullptr;          // as Settled's, of the first KV head
  std::vector<uint64_t> tail_versions;  // of each KV head
  uint32_t tail_first = 0;              // position of the tail's first row
  uint32_t position = 0;                // of the first new one
  bool bf16 = false;                    // what a tail's rows are; fp16 otherwise
  bool taken = false;                   // written: false, it has not all of the tail's rows, or no room
  const uint16_t* rows = nullptr;       // written: where they arrive, [KV head][keys, values][tokens][head_dim]
  StepCalls* step = nullptr;            // as AttendWork's, of all works of a call: then all of them are taken, or none is
  uint32_t call = 0;
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

  // Where sealed blocks may be whose bytes nobody else has; null: it keeps none. Views of such blocks are away(). REQUIRES: the
  // backend outlives what it holds.
  virtual const FarBytes* far() const { return nullptr; }

  // Heads whose blocks it codes best at a time. The processor's: what threads share out, and not so many that their rows as floats
  // leave its caches.
  virtual uint32_t heads_at_once() const { return 16; }

  // unsupported: these rows are in memory that the backend cannot read. `what` names them.
  virtual Status accepts(const RowsView& rows, const char* what) const = 0;

  // Rows in a device's memory, all ready after the same work, to host memory: waits for them. The views become those of copies,
  // [tokens][heads][head_dim] of the same type, which are there for as long as what is returned. REQUIRES: accepted, and of one
  // head_dim.
  virtual Result<std::shared_ptr<const void>> bring(std::span<RowsView> rows) const;
  // And back: bytes of host memory to `to`, in a device's, for work that comes after on the stream `ready`.
  virtual Status put(const void* from, size_t bytes, void* to, void* ready) const;

  // Takes rows without waiting for them: all that it can, and says which. What is returned is of all that were taken, and keeps
  // their memory; null: none was. Refused, nothing was taken. REQUIRES: accepted, all ready after the same work.
  // `attended`: attend() of queries on the same stream comes next, or at least settle() does: what is left to ask for may go with
  // it, and who waits for the rows meanwhile asks for it. What fails then is said when the rows arrive.
  virtual Result<std::shared_ptr<const Arrival>> take(std::span<TakeWork> works, bool attended = false) const;
  virtual void settle() const noexcept {}

  // A recording of a step. unsupported: the backend has no graphs. What is returned is of this backend, which outlives it.
  virtual Result<std::unique_ptr<StepCalls>> record() const;
  // Hot rows that a step's appends go on to, to where take() wants them, with room for theirs. Works without queries, of a layer
  // whose rows have landed. failed_precondition: a tail without rows, or with gaps.
  virtual Status make_ready(std::span<AttendWork> works, StepCalls& step) const;

  // Each work is done, or says why not; bytes do not depend on who does it nor on what else is in the call. decode() throws
  // std::bad_alloc when one of them had no memory for scratch; outputs are undefined then. `run` shares tasks out.
  virtual void encode(std::span<EncodeWork> blocks, const Executor& run) const = 0;
  virtual void decode(std::span<const DecodeWork> blocks, const Executor& run) const = 0;

  // `run` shares tasks out. Throws std::bad_alloc before any work is done, not after.
  virtual void attend(std::span<AttendWork> works, const Executor& run) const = 0;
};

}  // namespace tierkv::attn
