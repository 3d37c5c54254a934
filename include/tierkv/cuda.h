// cuda.h — a cache whose attention runs on a CUDA device.
//
//   auto device = tierkv::cuda::attach(*cache);         // the first device
//   if (!device.ok()) std::puts(device.status().message().c_str());
//
// From then on attention() of up to kMostQueries queries a sequence is one launch over all sequences and all tiers. Sealed blocks
// are copied to the device once and stay there, and so do hot rows. More queries a sequence, a prompt, are attended to in rounds:
// some heads of the past are unpacked into at most 144 MiB of 16-bit floats, once for all queries, and never the whole of it.
// Blocks are coded on the device too, to the bits that the processor makes. What the device does not do, the processor does, with
// the same results: codecs without a device reader (kvquant), and prompts whose rows 16-bit floats cannot hold. What rows receive a
// launch behind attention says, of up to kMostQueries queries; of prompts, and where few rows are asked about, the processor adds
// it up beside the device's attention. Eviction, snapshots and all errors are the cache's own.
//
// Rows and queries may be in host memory, or in the device's (RowsView::place, ready):
//   Queries:  results are in the device's memory too, for work that comes after on the queries' stream, which the call works on. It
//             does not wait for the device, unless somebody wants to know what rows receive (AttentionOptions::observe, mass): that
//             comes down, or the queries do for the processor to add it up. A prompt is waited for too. What the processor does
//             comes down and goes up again: right, and slow.
//   Rows:     up to kMostQueries tokens a sequence that go on to hot rows which the device has are moved there and do not wait;
//             their contents come to host memory in time for whoever reads them there, and he waits. So does a step that makes
//             new blocks, for their bytes, which are made on a stream of their own: not for what he has asked for. Others are
//             copied to host memory and waited for, once a call, whatever the number of items: prompts, the first step of a
//             sequence, layers with a window, caches that evict, spill, skip or learn a model. Rows that did not wait and are not
//             finite are found when they land: from then on calls on the sequence are refused with invalid_argument, which says
//             where, until truncate() takes that position back. What was on its way when the device failed is lost in the same
//             way, with io_error.
//   Later:    what can only be known when the device is done is said by the next call that works on it, which does nothing else
//             then, or by Device::check(), once: out_of_range for queries that were not finite or scores beyond the range of 16-bit
//             floats, whose results are zeros; io_error for a stream that failed.
//   Graphs:   a call decides what to launch by the lengths of the moment, so it cannot simply be captured: failed_precondition
//             while its stream is. A whole step of decoding can be, once it is recorded (record(), StepGraph).
//
// Host memory: with Options::keep_on_host = false sealed blocks that the device has give up their bytes in host memory once a call
// has attended to them: archive blocks, and warm ones where nothing is archived. Not those that other sequences share at that
// moment, nor promoted ones, and none where `skip` is set. Whoever needs the bytes here fetches them: get(), save(), freeze(),
// park(), verify(), eviction that merges blocks, work that the processor takes. They are compared with their checksums whenever
// they come back. MemoryStats::device_bytes and Usage::only_bytes say what is there alone. When the device has no room for the
// blocks of a call, those of sequences that are not in it come back to host memory first. What was there alone when the device
// failed is lost: from then on calls that need it are refused with io_error, and with data_loss once the device was detached.
//
// Build:   -DTIERKV_CUDA=ON. Without it every call here is `unsupported`.
// Errors:  unsupported: no CUDA in this build, or a device older than compute capability 8.0. failed_precondition: no device, or a
//          driver too old for CUDA 13. resource_exhausted: no device memory left for what a call needs; the cache is as it was, and
//          detaching goes on without the device. io_error: the device or its stream failed; attach again, or detach.
// Threads: calls of one cache take turns on its device.
#pragma once

#include <cstdint>
#include <memory>

#include "tierkv/cache.h"

namespace tierkv::cuda {

inline constexpr uint32_t kMostQueries = 16;

struct Options {
  int device = 0;
  uint64_t byte_limit = 0;   // for copies of blocks; 0: what the device has. The longest unused go first when it is reached.
  bool keep_on_host = true;  // false: sealed blocks that the device has leave host memory
};

struct Usage {
  uint64_t block_bytes = 0;    // sealed blocks
  uint64_t scratch_bytes = 0;  // descriptors, hot rows, queries, partial results, tables
  uint64_t device_bytes = 0;   // all that is allocated there for this cache: the above, the rest of slabs, strips of hot rows
  uint64_t peak_bytes = 0;     // the most that was at any time
  uint64_t blocks = 0;
  uint64_t only_bytes = 0;   // of block_bytes, those that host memory does not have (Options::keep_on_host)
  uint64_t only_blocks = 0;  // and of blocks
  uint64_t uploads = 0;      // blocks copied so far
  uint64_t launches = 0;
  uint64_t on_processor = 0;  // pieces of work that the processor took
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Usage usage() const = 0;
  // Waits until everything is done that calls asked for, and says what went wrong there since somebody was told.
  virtual Status check() const = 0;
};

// A step of decoding as a CUDA graph: every layer's append_many() and attention() between the model's own kernels, captured once
// and launched for every token. Rows, queries and results are in the device's memory, at the same addresses every time.
//
//   auto step = tierkv::cuda::record(*cache);                        // before the capture
//   cudaStreamBeginCapture(stream, ...);
//   …                                                               // the model, with calls of the cache on that stream
//   step->end();                                                     // before the capture ends
//   cudaStreamEndCapture(stream, &graph), cudaGraphInstantiate(&exec, graph, 0);
//   for (;;) step->advance(exec, stream), cudaGraphLaunch(exec, stream);
//
// Recording: calls whose stream is captured are remembered and change nothing, and nothing is computed. advance() does the
//            processor's part of one step for all of them: positions of the rows that the launch will bring, blocks that are due,
//            what each kernel reads by the lengths of the moment. It asks for copies on `stream` and gives the graph's kernels
//            their parameters, and does not wait for the device, but where a call without a graph would: for the bytes of new
//            blocks, and for hot rows where a sequence was changed by anything but its steps (prompts, truncate(), fork()) since.
//            The processor is four launches ahead at most.
// What can:  up to kMostQueries tokens a sequence, the same number every time, its newest, of a fixed list of sequences, all calls
//            on one stream. A layer is appended to once, and then attended to. Refused with `unsupported`, by the call that is
//            recorded: what would wait for the device without a graph (windows, caches that evict, spill, skip or learn, prompts),
//            mass reports, observe = true where an archive keeps rows by what they receive. Rows in host memory are no part of a
//            capture: such a call is made at once.
// The rules: the cudaGraph_t lives as long as its executables are advanced: its nodes are their names. Nothing is launched
//            before the first advance(), and every one that succeeds is followed by one launch on `stream`, before any other
//            call of the cache that works on the device. The cache outlives the StepGraph. A launch that was left out, or came
//            twice, is found by the next: its rows are refused with failed_precondition, like rows that are not finite, until
//            truncate() takes them back, and so is this StepGraph. Several may be recorded, for batches of several sizes, one
//            after the other.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Nothing more is recorded. REQUIRES: the stream of the calls is still captured. failed_precondition: none were made.
  virtual Status end() = 0;
  // `exec`: a cudaGraphExec_t of the graph that was captured. `stream`: the cudaStream_t on which it is launched next. Refused, the
  // cache has the tokens that it had, and the graph must not be launched: not_found, failed_precondition: a sequence that is gone,
  // parked, without hot rows, or full; the device was detached; a launch is missing. invalid_argument: exec is of another graph.
  // What only the device knows is said as by other calls (Later, above).
  virtual Status advance(void* exec, void* stream) = 0;
};

// Whether attach() could work here, and if not, why.
Status available(int device = 0);

// The result reports on the device; the cache keeps what it needs of it. A device that was attached before is detached; errors of
// that are this call's, and with data_loss the new one is attached. REQUIRES: no other call on the cache is under way.
Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache& cache, const Options& options = {});
// Back to the processor, and to host memory what the device has alone. resource_exhausted: byte_budget has no room for that; the
// device stays attached. data_loss: it did not give all of it back; calls that need what is lost are refused from here on.
// REQUIRES: as attach().
Status detach(AdaptiveKVCache& cache);

// Calls on streams that are captured are recorded from here on, until end() or until it is given up. One at a time. REQUIRES: no
// stream is captured yet. unsupported: no device is attached.
Result<std::unique_ptr<StepGraph>> record(AdaptiveKVCache& cache);

}  // namespace tierkv::cuda
