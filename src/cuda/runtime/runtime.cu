#include "cuda/runtime/runtime.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::cuda {

Status status_of(cudaError_t error_code, const char* what) {
  if (error_code == cudaSuccess) return {};
  if (error_code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: forget it
    return error(StatusCode::resource_exhausted, "no device memory for ", what,
                 "; set a smaller byte_limit, drop sequences, or detach from the device");
  }
  return error(StatusCode::io_error, what, " failed on the device: ", cudaGetErrorString(error_code),
               "; attach again, or detach and go on with the processor");
}

Result<DeviceFacts> open_device(int ordinal) {
  int count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return error(StatusCode::failed_precondition, "there is no CUDA driver on this machine; install NVIDIA's, 580 or later");
  }
  if (driver < 13000) {
    return error(StatusCode::failed_precondition, "the driver knows CUDA ", driver / 1000, ".", driver % 1000 / 10,
                 ", this build needs 13.0; install driver 580 or later");
  }
  if (const cudaError_t found = cudaGetDeviceCount(&count); found != cudaSuccess || count == 0) {
    return error(StatusCode::failed_precondition,
                 "no CUDA device was found: ", found == cudaSuccess ? "the driver lists none" : cudaGetErrorString(found));
  }
  if (ordinal < 0 || ordinal >= count) {
    return error(StatusCode::invalid_argument, "device ", ordinal, " does not exist; there are ", count, ", counted from 0");
  }
  DeviceFacts facts;
  facts.ordinal = ordinal;
  int major = 0, minor = 0;
  TIERKV_RETURN_IF_ERROR(status_of(cudaSetDevice(ordinal), "choosing the device"));
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking the device"));
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking the device"));
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaDeviceGetAttribute(&facts.multiprocessors, cudaDevAttrMultiProcessorCount, ordinal), "asking the device"));
  if (major < 8) {
    return error(StatusCode::unsupported, "device ", ordinal, " has compute capability ", major, ".", minor,
                 "; this build is for 8.0 and later");
  }
  facts.tensor_paths = major >= 9, facts.hopper = major == 9 && minor == 0;
  return facts;
}

Buffer::~Buffer() { cudaFree(data_); }

Status Buffer::reserve(size_t bytes, bool zeroed) {
  if (bytes <= size_) return {};
  const size_t wanted = std::max(bytes, size_ + size_ / 2);
  uint8_t* fresh = nullptr;
  TIERKV_RETURN_IF_ERROR(status_of(cudaMalloc(&fresh, wanted), "what a call needs"));
  cudaFree(data_);
  data_ = fresh, size_ = wanted;
  return zeroed ? status_of(cudaMemset(data_, 0, wanted), "clearing memory") : Status();
}

HostBuffer::~HostBuffer() { cudaFreeHost(data_); }

Status HostBuffer::reserve(size_t bytes) {
  if (bytes <= size_) return {};
  const size_t wanted = std::max(bytes, size_ + size_ / 2);
  uint8_t* fresh = nullptr;
  TIERKV_RETURN_IF_ERROR(status_of(cudaMallocHost(&fresh, wanted), "what a call sends"));
  cudaFreeHost(data_);
  data_ = fresh, size_ = wanted;
  return {};
}

}  // namespace tierkv::cuda
