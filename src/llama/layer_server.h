// layer_server.h — what an attention node of libllama's graph becomes: rows into the cache, queries to it, outputs out.
//
// All sequences of the micro-batch are served together, a chunk of each at a time: their rows are appended, then one attention call
// takes them all, so that many short sequences keep all threads busy. A sequence that fails is left out from there on, with zeros
// for outputs, and the others go on; when `all_or_nothing`, or when none is left, the computation stops.
//
// Errors:  nothing is thrown through ggml's threads. What is no sequence's fault, want of memory for lists of the server's own say,
//          is status(), and the computation stops.
// Threads: serve() by all of ggml's threads for each node (nth of them), the rest when no node is being computed. The first thread
//          leads and the others help it (crew.h).
#pragma once

#include <ggml.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "llama/crew.h"
#include "llama/micro_batches.h"
#include "llama/node.h"
#include "llama/pages.h"
#include "tierkv/llama.h"

namespace tierkv::llama {

constexpr size_t kOpParams = GGML_MAX_OP_PARAMS / sizeof(int32_t);
using OpParams = std::array<int32_t, kOpParams>;

int64_t now_ns();

// One sequence's part in the micro-batch that libllama is computing.
struct Work {
  SeqId id = 0;
  const SequenceRows* rows = nullptr;
  Status status;
};

class LayerServer {
 public:
  // `chunk` as in HostOptions.
  LayerServer(const ModelShape& shape, AdaptiveKVCache& cache, AttentionObserver observer, uint32_t chunk = 0);

  // libllama computes `rows` rows of these sequences next.
  void begin(std::vector<Work> work, uint32_t rows, bool all_or_nothing);
  // The part of thread `ith` of `nth` in a layer's node, whose parameters as an attention node were `params`.
  void serve(uint32_t layer, const ggml_tensor* tensor, const OpParams& params, int ith, int nth) noexcept;
  // The computation goes on to no purpose.
  void fail(Status reason) noexcept;
  bool failed() const { return failed_; }
  // libllama has returned: its pages go back to the kernel.
  void end() { pages_.flush(); }

  // What became of it: each sequence's own, and what is no sequence's.
  std::vector<Work>& work() { return work_; }
  const Status& status() const { return status_; }
  uint32_t layers_served() const { return layers_served_; }

  size_t resident_bytes() const { return pages_.resident_bytes(); }
  int64_t append_ns() const { return append_ns_; }
  int64_t attention_ns() const { return attention_ns_; }
  int64_t own_ns() const { return own_ns_; }

 private:
  // Consecutive rows of one sequence that are served at a time.
  struct Chunk {
    Work* work;
    uint32_t row, count, position;
  };
  // How far a sequence is in the layer being served.
  struct Progress {
    size_t run = 0;
    uint32_t done = 0;
  };

  uint32_t chunk_of(const LayerConfig& layer) const;
  Status serve_node(uint32_t layer, const ggml_tensor* tensor, const OpParams& params, int nth);
  void lead(uint32_t layer, const AttentionNode& node, bool crew);
  bool next_round(uint32_t layer);
  void append(uint32_t layer, const AttentionNode& node, bool crew);
  void attend(uint32_t layer, const AttentionNode& node, bool crew);
  void observe(uint32_t layer, const AttentionNode& node);
  void settle_failures(const AttentionNode& node);

  AdaptiveKVCache& cache_;
  const AttentionObserver observer_;
  std::vector<uint32_t> chunks_;  // of each layer: rows to append before their queries are served
  CellPages pages_;
  Crew crew_;
  const Executor crew_executor_;

  // The micro-batch being computed.
  std::vector<Work> work_;
  uint32_t rows_ = 0;
  bool all_or_nothing_ = false;
  std::atomic<bool> failed_{false};
  std::mutex status_mutex_;
  Status status_;
  uint32_t layers_served_ = 0;

  // The leader's, for one layer.
  std::vector<Progress> progress_;
  std::vector<Chunk> round_;
  std::vector<AttentionItem> items_;

  int64_t append_ns_ = 0, attention_ns_ = 0, own_ns_ = 0;
};

}  // namespace tierkv::llama
