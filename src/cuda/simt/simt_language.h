// simt_language.h — the words of CUDA's C++ that the kernels use, on simt_machine.h: qualifiers, vectors, halves, intrinsics.
// For tests of kernels alone: a source that includes it may include nothing of the standard library after it.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/f16.h"
#include "cuda/simt/simt_machine.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

namespace tierkv::cuda {

struct ThreadIndex {
  struct X {
    operator uint32_t() const { return simt::Machine::now().thread(); }
  } x;
};
struct BlockIndex {
  struct X {
    operator uint32_t() const { return simt::Machine::now().block().x; }
  } x;
  struct Y {
    operator uint32_t() const { return simt::Machine::now().block().y; }
  } y;
};
struct GridSize {
  struct X {
    operator uint32_t() const { return simt::Machine::now().grid().x; }
  } x;
  struct Y {
    operator uint32_t() const { return simt::Machine::now().grid().y; }
  } y;
};
struct BlockSize {
  struct X {
    operator uint32_t() const { return simt::Machine::now().threads(); }
  } x;
};
inline constexpr ThreadIndex threadIdx{};
inline constexpr BlockIndex blockIdx{};
inline constexpr BlockSize blockDim{};
inline constexpr GridSize gridDim{};

inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float a, float b) { return a / b; }
using std::isfinite;

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline __half __ushort_as_half(uint16_t x) { return {x}; }
inline uint16_t __half_as_ushort(__half x) { return x.bits; }
inline float __half2float(__half x) { return f16_to_f32(x.bits); }
inline __half __float2half(float x) { return {f32_to_f16(x)}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __float2half2_rn(float x) { return {__float2half(x), __float2half(x)}; }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline float __low2float(__half2 x) { return __half2float(x.x); }
inline float __high2float(__half2 x) { return __half2float(x.y); }
inline __half2 __hadd2(__half2 a, __half2 b) {
  return {__float2half(__half2float(a.x) + __half2float(b.x)), __float2half(__half2float(a.y) + __half2float(b.y))};
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return {__float2half(__half2float(a.x) - __half2float(b.x)), __float2half(__half2float(a.y) - __half2float(b.y))};
}
inline __half2 __hmax2(__half2 a, __half2 b) {
  return {__float2half(std::fmax(__half2float(a.x), __half2float(b.x))),
          __float2half(std::fmax(__half2float(a.y), __half2float(b.y)))};
}
// As PTX has it for .NaN: not a number where either is none.
inline __half2 __hmax2_nan(__half2 a, __half2 b) {
  const auto most = [](__half x, __half y) {
    const float p = __half2float(x), q = __half2float(y);
    return __float2half(p != p || q != q ? NAN : std::fmax(p, q));
  };
  return {most(a.x, b.x), most(a.y, b.y)};
}
inline __half2 __habs2(__half2 x) {
  return {{static_cast<uint16_t>(x.x.bits & 0x7FFFu)}, {static_cast<uint16_t>(x.y.bits & 0x7FFFu)}};
}

inline int __popc(uint32_t x) { return std::popcount(x); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) out |= static_cast<uint32_t>(both >> (selector >> (4 * i) & 7u) * 8 & 255u) << (8 * i);
  return out;
}

template <class T>
T __ldg(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) simt::Machine::now().fail("a load at an address that it may not have");
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T atomicAdd(T* at, T by) {
  return std::atomic_ref<T>(*at).fetch_add(by, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* at, T to) {
  return std::atomic_ref<T>(*at).exchange(to, std::memory_order_relaxed);
}
inline void __threadfence() {}
inline void __syncthreads() { simt::Machine::now().meet_block(); }
inline void __syncwarp() {
  simt::Machine::now().meet<char>(
      "syncwarp", char{}, [](const char*, char*) {}, true);
}
inline void __syncwarp(uint32_t mask) { simt::Machine::now().meet_some(mask); }

template <class T>
T __shfl_sync(uint32_t, T x, uint32_t from) {
  struct Given {
    T x;
    uint32_t from;
  };
  return simt::Machine::now().meet<T>("shfl", Given{x, from}, [](const Given* in, T* out) {
    for (uint32_t l = 0; l < simt::kWarp; ++l) out[l] = in[in[l].from % simt::kWarp].x;
  });
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T x, uint32_t other) {
  return __shfl_sync(mask, x, simt::Machine::now().thread() % simt::kWarp ^ other);
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
  return simt::Machine::now().meet<uint32_t>("vote", x, [](const bool* in, uint32_t* out) {
    uint32_t all = 0;
    for (uint32_t l = 0; l < simt::kWarp; ++l) all |= in[l] ? 1u << l : 0u;
    for (uint32_t l = 0; l < simt::kWarp; ++l) out[l] = all;
  });
}
inline bool __any_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) == ~0u; }
inline uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
  return simt::Machine::now().meet<uint32_t>("redux", x, [](const uint32_t* in, uint32_t* out) {
    uint32_t most = 0;
    for (uint32_t l = 0; l < simt::kWarp; ++l) most = max(most, in[l]);
    for (uint32_t l = 0; l < simt::kWarp; ++l) out[l] = most;
  });
}

}  // namespace tierkv::cuda
