// warp.cuh — the instructions that the tensor-core paths are made of, one function each. Compute capability 9.0.
//
// With TIERKV_SIMT, in tests, they are the processor's (simt_instructions.h).
#pragma once

#ifdef TIERKV_SIMT
#include "cuda/simt/simt_instructions.h"
#else

#include <cuda_fp16.h>

#include <cstdint>

namespace tierkv::cuda {

#define TIERKV_DEVICE __device__ __forceinline__

// D += A·B, 16x8x16, halves in, floats out.
TIERKV_DEVICE void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same, 16x8x8.
TIERKV_DEVICE void multiply8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// The same of bytes, 16x8x32, whole numbers: A unsigned, B signed or not.
TIERKV_DEVICE void multiply_signed(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
TIERKV_DEVICE void multiply_unsigned(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The lane, read anew: what is computed from it is not kept in registers over a loop, where there are none to spare.
TIERKV_DEVICE uint32_t lane_now() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// And the thread, for the same reason: what ends a segment is in a loop with what begins one, and its addresses would be made
// before the loops over codes and kept over them.
TIERKV_DEVICE uint32_t thread_now() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The shared memory that a launch asked for.
TIERKV_DEVICE uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) uint8_t memory[];
  return memory;
}
TIERKV_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
TIERKV_DEVICE uint2 load2(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
TIERKV_DEVICE uint4 load4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
TIERKV_DEVICE float2 load2f(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}
TIERKV_DEVICE float load1f(uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
  return v;
}
TIERKV_DEVICE uint32_t load1(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
TIERKV_DEVICE float load_half(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return __half2float(__ushort_as_half(v));
}
TIERKV_DEVICE void store_half(uint32_t at, float x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(__half_as_ushort(__float2half(x))) : "memory");
}
TIERKV_DEVICE void store1(uint32_t at, uint32_t x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
TIERKV_DEVICE void store2(uint32_t at, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
TIERKV_DEVICE void store4f(uint32_t at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
TIERKV_DEVICE void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
TIERKV_DEVICE float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TIERKV_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TIERKV_DEVICE uint32_t pack_halves(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TIERKV_DEVICE float2 halves_of(uint32_t x) { return __half22float2(*reinterpret_cast<const __half2*>(&x)); }
TIERKV_DEVICE uint32_t times(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
TIERKV_DEVICE uint32_t times_plus(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// A few bytes into shared memory, without a register in between; and a wait until all that this thread asked for are there.
TIERKV_DEVICE void fetch4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
TIERKV_DEVICE void fetch8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// Sixteen bytes, past the first cache: what another multiprocessor has just written.
TIERKV_DEVICE void fetch16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
TIERKV_DEVICE void wait_for_fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// What was asked for so far is a group of its own; and a wait until no more than so many groups, the last ones, are on their way.
TIERKV_DEVICE void end_fetches() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
TIERKV_DEVICE void wait_for_fetches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// An 8x8 matrix of halves, transposed within the registers of a warp.
TIERKV_DEVICE uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Four 8x8 matrices of halves out of shared memory: lane l has the address of row l % 8 of matrix l / 8.
TIERKV_DEVICE uint4 load_matrices(uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
// The same, each transposed.
TIERKV_DEVICE uint4 load_matrices_transposed(uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Four 8x8 matrices of halves, transposed on their way to shared memory.
TIERKV_DEVICE void store_transposed(uint32_t at, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// A barrier that one thread's copies complete.
TIERKV_DEVICE void barrier_init(uint32_t at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory"); }
TIERKV_DEVICE void barrier_end(uint32_t at) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(at) : "memory"); }
TIERKV_DEVICE void barrier_arrive(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
TIERKV_DEVICE void barrier_wait(uint32_t at, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
// Asks once: no may also mean that it is not known yet. Who asks early has the answer when it is wanted.
TIERKV_DEVICE bool barrier_passed(uint32_t at, uint32_t parity) {
  uint32_t passed;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(passed)
               : "r"(at), "r"(parity)
               : "memory");
  return passed != 0;
}
// What a thread wrote to shared memory comes before copies into it that follow; and so do barriers that it made.
TIERKV_DEVICE void fence_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TIERKV_DEVICE void fence_copies() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_writes();
}
// One thread has `bytes` (a multiple of 16) copied into shared memory; the barrier completes its phase when all that it was told to
// expect are there.
TIERKV_DEVICE void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
TIERKV_DEVICE void copy_more(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}
TIERKV_DEVICE void copy_in(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  expect_bytes(barrier, bytes);
  copy_more(to, from, bytes, barrier);
}
#endif

// Where several kernels have work they run side by side: one begins while the one before it is still at work, and ends after it.
TIERKV_DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
TIERKV_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tierkv::cuda

#endif
