// backend.cu — a CUDA device as a machine (machine.h), and tierkv/cuda.h.
#include "cuda/backend.h"

#include <atomic>

#include "base/guarded.h"
#include "cuda/device_attention.h"
#include "cuda/runtime/cuda_graph.h"
#include "cuda/runtime/kernels.h"
#include "cuda/runtime/prompt_kernels.h"
#include "cuda/runtime/runtime.h"

namespace tierkv::cuda {
namespace {

struct Event {
  Event() = default;
  ~Event() {
    if (event) cudaEventDestroy(event);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

Result<std::shared_ptr<Event>> make_event() {
  auto made = std::make_shared<Event>();
  TIERKV_RETURN_IF_ERROR(status_of(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming), "making an event"));
  return made;
}

class CudaMark final : public Mark {
 public:
  explicit CudaMark(std::shared_ptr<Event> of) : event(std::move(of)) {}
  // What was seen to be done is not asked again.
  bool reached() const override {
    if (done.load(std::memory_order_acquire)) return true;
    const cudaError_t said = cudaEventQuery(event->event);
    if (said == cudaSuccess) done.store(true, std::memory_order_release);
    return said != cudaErrorNotReady;
  }
  Status wait() const override {
    if (done.load(std::memory_order_acquire)) return {};
    return status_of(cudaEventSynchronize(event->event), "what was asked for");
  }

  const std::shared_ptr<Event> event;
  mutable std::atomic<bool> done{false};
};

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(const DeviceFacts& facts) : facts_(facts) {}
  ~CudaMachine() override {
    if (own_) cudaStreamDestroy(own_);
    if (beside_) cudaStreamDestroy(beside_);
  }

  Status start() {
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_kernels(facts_.tensor_paths)), "loading the kernels"));
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_prompt_kernels(facts_.hopper)), "loading the kernels"));
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_mass()), "loading the kernels"));
    TIERKV_ASSIGN_OR_RETURN(own_last_, make_event());
    last_ = own_last_;
    TIERKV_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "making a stream"));
    TIERKV_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "making a stream"));
    stream_ = own_;
    return {};
  }

  MachineFacts facts() const override { return {static_cast<uint32_t>(facts_.multiprocessors), facts_.tensor_paths}; }
  Status enter() override {
    int now = -1;
    if (cudaGetDevice(&now) == cudaSuccess && now == facts_.ordinal) return {};
    return status_of(cudaSetDevice(facts_.ordinal), "choosing the device");
  }

  // What was asked for ends at an event, so that a stream that may be no more is never asked again.
  Status follow(const StreamName& name) override {
    if (!name.callers) return go_on(own_);
    const cudaStream_t wanted = name.handle ? static_cast<cudaStream_t>(name.handle) : cudaStreamLegacy;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    TIERKV_RETURN_IF_ERROR(status_of(cudaStreamIsCapturing(wanted, &capturing), "asking the stream"));
    if (capturing != cudaStreamCaptureStatusNone) {
      return error(StatusCode::failed_precondition,
                   "the stream is being captured, and a call of the cache decides anew every time; record the step (tierkv/cuda.h: "
                   "record()), "
                   "or capture what is between the calls");
    }
    return go_on(wanted);
  }
  Status leave() override {
    if (left_) return {};
    // A mark behind all of it says the same.
    if (!marked_) TIERKV_RETURN_IF_ERROR(status_of(cudaEventRecord(own_last_->event, stream_), "putting an event"));
    last_ = marked_ ? std::move(marked_) : own_last_;
    left_ = true, marked_ = nullptr;
    return {};
  }

  void go_aside() noexcept override { aside_ = true; }
  void come_back() noexcept override { aside_ = false; }

  Result<std::unique_ptr<Mark>> make_mark() override {
    TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, make_event());
    return std::unique_ptr<Mark>(std::make_unique<CudaMark>(std::move(event)));
  }
  Status put(Mark& mark) override {
    auto& to = static_cast<CudaMark&>(mark);
    to.done.store(false, std::memory_order_relaxed);
    TIERKV_RETURN_IF_ERROR(status_of(cudaEventRecord(to.event->event, now()), "putting an event"));
    if (!aside_) marked_ = to.event;
    return {};
  }

  Result<std::unique_ptr<Graph>> make_graph() override {
    auto graph = std::make_unique<CudaGraph>(facts_.tensor_paths);
    TIERKV_RETURN_IF_ERROR(graph->make());
    return std::unique_ptr<Graph>(std::move(graph));
  }
  Status leave_to(Graph& graph) override {
    TIERKV_RETURN_IF_ERROR(leave());
    launched_ = static_cast<CudaGraph&>(graph).done();
    return {};
  }

  Result<uint8_t*> take_memory(size_t bytes) override {
    void* memory = nullptr;
    TIERKV_RETURN_IF_ERROR(status_of(cudaMalloc(&memory, bytes), "what a call needs"));
    auto* const made = static_cast<uint8_t*>(memory);
    // In the stream's own order: another stream's zeros could come after the first copy.
    if (const Status cleared = clear(made, bytes); !cleared.ok()) {
      cudaFree(made);
      return cleared;
    }
    return made;
  }
  void give_memory(uint8_t* memory) noexcept override { cudaFree(memory); }
  Result<uint8_t*> allocate_staging(size_t bytes) override {
    void* memory = nullptr;
    TIERKV_RETURN_IF_ERROR(status_of(cudaMallocHost(&memory, bytes), "what a call sends"));
    return static_cast<uint8_t*>(memory);
  }
  void release_staging(uint8_t* memory) noexcept override { cudaFreeHost(memory); }

  Status send(uint8_t* to, const void* from, size_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, now()), "copying to the device");
  }
  Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) override {
    return status_of(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, count, cudaMemcpyHostToDevice, now()),
                     "copying hot rows");
  }
  Status clear(uint8_t* at, size_t bytes) override { return status_of(cudaMemsetAsync(at, 0, bytes, now()), "clearing memory"); }
  Status attend(const Launch& launch, const Plan& plan) override {
    return status_of(static_cast<cudaError_t>(launch_attend(launch, plan.firsts, plan.fast, now())), "the launch");
  }
  Status weigh(const MassLaunch& launch) override {
    return status_of(static_cast<cudaError_t>(launch_mass(launch, now())), "adding up what rows receive");
  }
  Status encode(const EncodeLaunch& launch) override {
    return status_of(static_cast<cudaError_t>(launch_encode(launch, now())), "encoding blocks");
  }
  Status prompt(const PromptLaunch& launch, PromptStep step) override {
    return status_of(static_cast<cudaError_t>(launch_prompt(launch, step, facts_.hopper, now())), "a prompt's launch");
  }
  Status fetch(void* to, const uint8_t* from, size_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, now()), "reading results");
  }
  Status move_rows(std::span<const RowMove> moves, uint32_t head_dim) override {
    return status_of(static_cast<cudaError_t>(launch_moves(moves, head_dim, now())), "moving rows");
  }
  Status wait() override { return status_of(cudaStreamSynchronize(now()), "attention"); }

 private:
  Status go_on(cudaStream_t wanted) {
    if (wanted == stream_ && !left_) return {};
    TIERKV_RETURN_IF_ERROR(leave());
    // The default one is there for ever, and what was asked for on it comes before; another handle may be another stream by now.
    const bool same = wanted == stream_ && (wanted == cudaStreamLegacy || wanted == own_);
    stream_ = wanted, left_ = false;
    if (const auto launched = std::move(launched_)) {  // what a caller launched since comes before
      TIERKV_RETURN_IF_ERROR(status_of(cudaStreamWaitEvent(wanted, launched->event, 0), "waiting for a graph"));
    }
    return same ? Status() : status_of(cudaStreamWaitEvent(wanted, last_->event, 0), "waiting for a stream");
  }

  // Where things are asked for: after leave() on the machine's own.
  cudaStream_t now() {
    if (aside_) return beside_;
    if (left_) (void)go_on(own_);
    marked_ = nullptr;
    return stream_;
  }

  const DeviceFacts facts_;
  cudaStream_t own_ = nullptr, beside_ = nullptr, stream_ = nullptr;
  std::shared_ptr<Event> own_last_;
  std::shared_ptr<Event> last_;    // behind what was asked for, of a stream that was left: the machine's own, or a mark's
  std::shared_ptr<Event> marked_;  // a mark's behind which nothing was asked for
  std::shared_ptr<GraphEvent> launched_;
  bool left_ = false, aside_ = false;
};

}  // namespace

Result<std::unique_ptr<Machine>> open_machine(int ordinal) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(ordinal));
  auto machine = std::make_unique<CudaMachine>(facts);
  TIERKV_RETURN_IF_ERROR(machine->start());
  return std::unique_ptr<Machine>(std::move(machine));
}

Result<std::shared_ptr<DeviceBackend>> make_backend(const Options& options) {
  return guarded("attach a device", [&]() -> Result<std::shared_ptr<DeviceBackend>> {
    TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Machine> machine, open_machine(options.device));
    return std::shared_ptr<DeviceBackend>(
        std::make_shared<DeviceAttention>(std::move(machine), options.byte_limit, kFewRows, options.keep_on_host));
  });
}

Status available(int device) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(device));
  (void)facts;
  return {};
}

Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache& cache, const Options& options) {
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBackend> backend, make_backend(options));
  const Status here = cache.attend_here();  // what another device has comes back first
  if (here.code() == StatusCode::resource_exhausted) return here;
  cache.attend_with(backend);
  if (!here.ok()) return here;
  return std::shared_ptr<const Device>(backend);
}

Status detach(AdaptiveKVCache& cache) { return cache.attend_here(); }

Result<std::unique_ptr<StepGraph>> record(AdaptiveKVCache& cache) { return cache.record_step(); }

}  // namespace tierkv::cuda
