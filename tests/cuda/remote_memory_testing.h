// remote_memory_testing.h — memory of a real device for those who keep rows and results there, in the order of one stream.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/steps_testing.h"

namespace tierkv::cuda::testing {

class CudaMemory final : public RemoteMemory {
 public:
  // `own`: a stream of its own; false: the default one.
  explicit CudaMemory(bool own = true) {
    if (!own) return;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~CudaMemory() override {
    forget();
    if (stream_) cudaStreamDestroy(stream_);
  }
  void* send(const void* from, size_t bytes) override {
    void* const to = make(bytes);
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), cudaSuccess);
    return to;
  }
  void* make(size_t bytes) override {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocAsync(&memory, bytes, stream_), cudaSuccess);
    pieces_.push_back(memory);
    return memory;
  }
  void fetch(void* to, const void* from, size_t bytes) override {
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void forget() override {
    for (void* const piece : pieces_) EXPECT_EQ(cudaFreeAsync(piece, stream_), cudaSuccess);
    pieces_.clear();
  }
  void* stream() override { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> pieces_;
};

}  // namespace tierkv::cuda::testing
