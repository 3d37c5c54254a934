#include "cuda/runtime/cuda_graph.h"

#include <cstring>

#include "base/status_macros.h"

namespace tierkv::cuda {
namespace {

// Progress::end(), by one thread, of memory that the processor reads meanwhile.
__global__ void end_kernel(Progress* progress, uint64_t number) {
  volatile uint64_t* const done = &progress->done;
  volatile uint64_t* const broken = &progress->broken;
  const uint64_t before = *done;
  if (before + 1 != number && *broken == 0) *broken = before < number ? before + 1 : number;
  __threadfence_system();  // what was moved to host memory is there before it is said
  *done = number;
}

cudaStream_t stream_of(void* handle) { return handle ? static_cast<cudaStream_t>(handle) : cudaStreamLegacy; }

struct Ends {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};

// Where the stream's next node goes.
Status ends_of(cudaStream_t stream, Ends& out) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count), "asking a capture"));
  if (status != cudaStreamCaptureStatusActive) return error(StatusCode::failed_precondition, "the stream is not captured any more");
  out.nodes.assign(nodes, nodes + count);
  if (edges) out.edges.assign(edges, edges + count);
  else out.edges.assign(count, cudaGraphEdgeData{});
  return {};
}

Status go_on_from(cudaStream_t stream, Ends& ends) {
  return status_of(cudaStreamUpdateCaptureDependencies(stream, ends.nodes.data(), ends.edges.data(), ends.nodes.size(),
                                                       cudaStreamSetCaptureDependencies),
                   "capturing");
}

template <class T>
void add_bytes(std::vector<std::byte>& to, const T& from) {
  to.resize(to.size() + sizeof(T));
  std::memcpy(to.data() + to.size() - sizeof(T), &from, sizeof(T));
}

}  // namespace

Status CudaGraph::make() {
  done_ = std::make_shared<GraphEvent>();
  return status_of(cudaEventCreateWithFlags(&done_->event, cudaEventDisableTiming), "making an event");
}

Result<bool> CudaGraph::captures(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TIERKV_RETURN_IF_ERROR(status_of(cudaStreamIsCapturing(stream_of(stream), &status), "asking the stream"));
  return status == cudaStreamCaptureStatusActive;
}

Status CudaGraph::follow(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaStreamGetCaptureInfo(stream_of(stream), &status, &id, nullptr, nullptr, nullptr, nullptr), "asking a capture"));
  if (captured_ && (id != capture_ || stream_of(stream) != stream_)) {
    return error(StatusCode::failed_precondition, "the calls of a recorded step are on one stream, in one capture");
  }
  captured_ = true, capture_ = id, stream_ = stream_of(stream);
  return {};
}

Status CudaGraph::take_node(Node& out) {
  Ends ends;
  TIERKV_RETURN_IF_ERROR(ends_of(stream_, ends));
  if (ends.nodes.size() != 1) return error(StatusCode::internal, "a capture has no last node");
  out.node = ends.nodes[0];
  return {};
}

Status CudaGraph::add_moves(size_t most) {
  std::vector<Node> nodes((most + kMovesANode - 1) / kMovesANode);
  for (Node& node : nodes) {
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(capture_moves(stream_)), "capturing"));
    TIERKV_RETURN_IF_ERROR(take_node(node));
  }
  moves_.push_back(std::move(nodes));
  return {};
}

Status CudaGraph::add_attend(uint32_t group, uint32_t head_dim) {
  AttendKernel kernels[kAttendKernels];
  some_kernels(group, head_dim, tensor_paths_, kernels);
  Ends after;
  Attend attend;
  // Each begins beside the one before it, as launches do. What comes behind waits for every one: where the last is switched off it
  // says nothing of those before it.
  for (uint32_t i = 0; i < kAttendKernels; ++i) {
    if (!kernels[i].kernel) continue;
    const int captured = capture_attend(kernels[i], !after.nodes.empty(), stream_);
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(captured), "capturing"));
    TIERKV_RETURN_IF_ERROR(take_node(attend.nodes[i]));
    after.nodes.push_back(attend.nodes[i].node);
  }
  after.edges.assign(after.nodes.size(), cudaGraphEdgeData{});
  TIERKV_RETURN_IF_ERROR(go_on_from(stream_, after));
  attends_.push_back(std::move(attend));
  return {};
}

Status CudaGraph::add_end() {
  end_kernel<<<1, 1, 0, stream_>>>(nullptr, 0);
  TIERKV_RETURN_IF_ERROR(status_of(cudaGetLastError(), "capturing"));
  TIERKV_RETURN_IF_ERROR(take_node(end_));
  return status_of(cudaEventRecordWithFlags(done_->event, stream_, cudaEventRecordExternal), "capturing");
}

bool CudaGraph::Node::same(std::span<const std::byte> bytes) const {
  return told.size() == bytes.size() && std::memcmp(told.data(), bytes.data(), bytes.size()) == 0;
}

template <class Set>
Status CudaGraph::tell(Node& node, std::span<const std::byte> bytes, const Set& set) {
  if (node.same(bytes)) return {};
  node.told.clear();
  TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(set()), "changing a graph"));
  node.told.assign(bytes.begin(), bytes.end());
  return {};
}

Status CudaGraph::enable(Node& node, bool enabled) {
  if (node.enabled == enabled) return {};
  TIERKV_RETURN_IF_ERROR(status_of(cudaGraphNodeSetEnabled(exec_, node.node, enabled), "changing a graph"));
  node.enabled = enabled;
  return {};
}

Status CudaGraph::set_end(void* exec, Progress* progress, uint64_t number) {
  void* parameters[] = {&progress, &number};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(&end_kernel);
  params.gridDim = dim3(1), params.blockDim = dim3(1), params.kernelParams = parameters;
  const auto wanted = static_cast<cudaGraphExec_t>(exec);
  if (const cudaError_t set = cudaGraphExecKernelNodeSetParams(wanted, end_.node, &params); set != cudaSuccess) {
    (void)cudaGetLastError();
    return error(StatusCode::invalid_argument,
                 "the executable graph is not of the graph that was recorded, or that is gone: ", cudaGetErrorString(set));
  }
  if (exec_ == wanted) return {};
  exec_ = wanted;
  for (std::vector<Node>& nodes : moves_) {
    for (Node& node : nodes) node.told.clear();
  }
  for (Attend& attend : attends_) {
    for (Node& node : attend.nodes) {
      node.told.clear();
      if (!node.node) continue;
      unsigned enabled = 1;
      TIERKV_RETURN_IF_ERROR(status_of(cudaGraphNodeGetEnabled(exec_, node.node, &enabled), "asking a graph"));
      node.enabled = enabled != 0;
    }
  }
  return {};
}

Status CudaGraph::set_moves(uint32_t place, std::span<const RowMove> moves, uint32_t head_dim) {
  for (size_t i = 0; i < moves_[place].size(); ++i) {
    const auto some = moves.subspan(i * kMovesANode).first(std::min<size_t>(kMovesANode, moves.size() - i * kMovesANode));
    Node& node = moves_[place][i];
    TIERKV_RETURN_IF_ERROR(tell(node, std::as_bytes(some), [&] { return cuda::set_moves(exec_, node.node, some, head_dim); }));
  }
  return {};
}

Status CudaGraph::set_attend(uint32_t place, const Launch& launch, const Plan& plan) {
  AttendKernel kernels[kAttendKernels];
  TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(kernels_of(launch, plan.fast, kernels)), "the launch"));
  for (uint32_t i = 0; i < kAttendKernels; ++i) {
    Node& node = attends_[place].nodes[i];
    if (!node.node) {
      if (kernels[i].ctas != 0) return error(StatusCode::internal, "a launch has a kernel that its graph has no place for");
      continue;
    }
    TIERKV_RETURN_IF_ERROR(enable(node, kernels[i].ctas != 0));
    if (kernels[i].ctas == 0) continue;
    bytes_.clear();
    add_bytes(bytes_, kernels[i]);
    add_bytes(bytes_, launch);
    if (i == kAttendKernels - 1) add_bytes(bytes_, plan.firsts);  // the fast ones' alone
    TIERKV_RETURN_IF_ERROR(tell(node, bytes_, [&] { return cuda::set_attend(exec_, node.node, kernels[i], launch, plan.firsts); }));
  }
  return {};
}

Status CudaGraph::wait() const { return status_of(cudaEventSynchronize(done_->event), "a graph"); }

}  // namespace tierkv::cuda
