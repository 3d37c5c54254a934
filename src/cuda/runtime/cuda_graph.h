// cuda_graph.h — places in a CUDA graph (graph.h): kernel nodes that a capture gets, and their parameters in what is made of it.
//
// Attention is three nodes side by side, one a kind of kernel; one that a step does not need is switched off.
#pragma once

#include <memory>
#include <vector>

#include "cuda/memory/graph.h"
#include "cuda/runtime/kernels.h"
#include "cuda/runtime/runtime.h"

namespace tierkv::cuda {

// An event that may outlive its graph.
struct GraphEvent {
  ~GraphEvent() {
    if (event) cudaEventDestroy(event);
  }
  cudaEvent_t event = nullptr;
};

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(bool tensor_paths) : tensor_paths_(tensor_paths) {}
  Status make();

  Result<bool> captures(void* stream) override;
  Status follow(void* stream) override;
  Status add_moves(size_t most) override;
  Status add_attend(uint32_t group, uint32_t head_dim) override;
  Status add_end() override;
  Status set_end(void* exec, Progress* progress, uint64_t number) override;
  Status set_moves(uint32_t place, std::span<const RowMove> moves, uint32_t head_dim) override;
  Status set_attend(uint32_t place, const Launch& launch, const Plan& plan) override;
  Status wait() const override;

  // Behind everything of the launches so far.
  const std::shared_ptr<GraphEvent>& done() const { return done_; }

 private:
  // A kernel node, and what it was told last.
  struct Node {
    cudaGraphNode_t node = nullptr;  // null: such launches have none
    bool enabled = true;
    std::vector<std::byte> told;
    bool same(std::span<const std::byte> bytes) const;
  };
  struct Attend {
    Node nodes[kAttendKernels];
  };

  // What was captured last on the stream.
  Status take_node(Node& out);
  Status enable(Node& node, bool enabled);
  template <class Set>
  Status tell(Node& node, std::span<const std::byte> bytes, const Set& set);

  const bool tensor_paths_;
  std::shared_ptr<GraphEvent> done_;
  cudaStream_t stream_ = nullptr;
  unsigned long long capture_ = 0;
  bool captured_ = false;
  std::vector<std::vector<Node>> moves_;
  std::vector<Attend> attends_;
  Node end_;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<std::byte> bytes_;
};

}  // namespace tierkv::cuda
