// vec.h — four floats at a time in the compiler's own vector type (GCC and Clang): an SSE2 register, and plain code elsewhere.
//
// Only what the tile loops need. Loops over float[16] would do, but compilers unroll them before they vectorise and spill the sums.
#pragma once

#include <cstdint>
#include <cstring>

namespace tierkv::quant {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Word4 __attribute__((vector_size(16)));

template <class V, class T>
inline V load4(const T* at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

inline void store4(float* at, Float4 v) { std::memcpy(at, &v, sizeof v); }

inline Float4 splat4(float x) { return Float4{x, x, x, x}; }

inline Float4 to_float4(Word4 v) { return __builtin_convertvector(reinterpret_cast<Int4>(v), Float4); }  // below 2^31

// NaN in `a` gives b.
inline Float4 min4(Float4 a, Float4 b) { return a < b ? a : b; }
inline Float4 max4(Float4 a, Float4 b) { return a > b ? a : b; }

inline float sum4(Float4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

}  // namespace tierkv::quant
