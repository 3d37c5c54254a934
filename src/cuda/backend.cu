// backend.cu — a CUDA device as a machine (machine.h), and tierkv/cuda.h.
#include "cuda/backend.h"

#include "base/guarded.h"
#include "cuda/device_attention.h"
#include "cuda/kernels.h"
#include "cuda/prompt_kernels.h"
#include "cuda/runtime.h"

namespace tierkv::cuda {
namespace {

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(const DeviceFacts& facts) : facts_(facts) {}
  ~CudaMachine() override {
    if (stream_) cudaStreamDestroy(stream_);
  }

  Status start() {
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_kernels(facts_.tensor_paths)), "loading the kernels"));
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_prompt_kernels(facts_.hopper)), "loading the kernels"));
    return status_of(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }

  MachineFacts facts() const override { return {static_cast<uint32_t>(facts_.multiprocessors), facts_.tensor_paths}; }
  Status enter() override { return status_of(cudaSetDevice(facts_.ordinal), "choosing the device"); }

  Result<uint8_t*> allocate(size_t bytes) override {
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
  void release(uint8_t* memory) noexcept override { cudaFree(memory); }
  Result<uint8_t*> allocate_staging(size_t bytes) override {
    void* memory = nullptr;
    TIERKV_RETURN_IF_ERROR(status_of(cudaMallocHost(&memory, bytes), "what a call sends"));
    return static_cast<uint8_t*>(memory);
  }
  void release_staging(uint8_t* memory) noexcept override { cudaFreeHost(memory); }

  Status send(uint8_t* to, const void* from, size_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
  }
  Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) override {
    return status_of(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, count, cudaMemcpyHostToDevice, stream_),
                     "copying hot rows");
  }
  Status clear(uint8_t* at, size_t bytes) override { return status_of(cudaMemsetAsync(at, 0, bytes, stream_), "clearing memory"); }
  Status attend(const Launch& launch, const Plan& plan) override {
    return status_of(static_cast<cudaError_t>(launch_attend(launch, plan.firsts, plan.fast, stream_)), "the launch");
  }
  Status prompt(const PromptLaunch& launch, PromptStep step) override {
    return status_of(static_cast<cudaError_t>(launch_prompt(launch, step, facts_.hopper, stream_)), "a prompt's launch");
  }
  Status fetch(void* to, const uint8_t* from, size_t bytes) override {
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "reading results");
  }
  Status wait() override { return status_of(cudaStreamSynchronize(stream_), "attention"); }

 private:
  const DeviceFacts facts_;
  cudaStream_t stream_ = nullptr;
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
    return std::shared_ptr<DeviceBackend>(std::make_shared<DeviceAttention>(std::move(machine), options.byte_limit));
  });
}

Status available(int device) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(device));
  (void)facts;
  return {};
}

Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache& cache, const Options& options) {
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBackend> backend, make_backend(options));
  cache.attend_with(backend);
  return std::shared_ptr<const Device>(backend);
}

void detach(AdaptiveKVCache& cache) { cache.attend_with(nullptr); }

}  // namespace tierkv::cuda
