// simt_instructions.h — the instructions of warp.cuh on simt_machine.h: what each does, as the manual of PTX has it.
//
// Products of tensor cores are summed in double precision and rounded to a float once: a device rounds more often.
#pragma once

#include "cuda/simt/simt_language.h"

#define TIERKV_DEVICE inline

namespace tierkv::cuda {
namespace simt {

inline float half_of(uint32_t word, uint32_t i) { return f16_to_f32(static_cast<uint16_t>(word >> (16 * i))); }
inline uint32_t two_halves(float low, float high) {
  return static_cast<uint32_t>(f32_to_f16(high)) << 16 | static_cast<uint32_t>(f32_to_f16(low));
}

// What a lane gives to a product and has of its result.
template <class Sum, int A, int B>
struct Operands {
  Sum c[4];
  uint32_t a[A], b[B];
};
template <class Sum>
struct Product {
  Sum c[4];
};

// D += A·B: 16 rows, 8 columns. Register r of A has row g or g + 8 (r odd), of B column g; `per` numbers a register, which are
// numbers per·t .. of the first or the second half of the sum.
template <class Sum, class Wide, int A, int B, class NumberA, class NumberB>
void product(Sum (&c)[4], const Operands<Sum, A, B>& mine, uint32_t per, NumberA number_a, NumberB number_b, const char* name) {
  const auto work = [&](const Operands<Sum, A, B>* in, Product<Sum>* out) {
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        Wide sum = in[lane].c[i];
        for (uint32_t part = 0; part < B; ++part) {
          for (uint32_t t = 0; t < 4; ++t) {
            const uint32_t a = in[row % 8 * 4 + t].a[2 * part + row / 8], b = in[column * 4 + t].b[part];
            for (uint32_t k = 0; k < per; ++k) sum += static_cast<Wide>(number_a(a, k)) * static_cast<Wide>(number_b(b, k));
          }
        }
        out[lane].c[i] = static_cast<Sum>(sum);
      }
    }
  };
  const Product<Sum> result = Machine::now().meet<Product<Sum>>(name, mine, work);
  for (int i = 0; i < 4; ++i) c[i] = result.c[i];
}

inline uint32_t unsigned_byte(uint32_t word, uint32_t i) { return word >> (8 * i) & 255u; }
inline int32_t signed_byte(uint32_t word, uint32_t i) { return static_cast<int8_t>(word >> (8 * i) & 255u); }

template <class T>
T load(uint32_t at) {
  T v;
  std::memcpy(&v, Machine::now().at(at, sizeof v), sizeof v);
  return v;
}
template <class T>
void store(uint32_t at, const T& v) {
  std::memcpy(Machine::now().at(at, sizeof v), &v, sizeof v);
}

// Four 8x8 matrices of halves between shared memory and registers: lane 8m + r has the address of row r of matrix m; lane (g, t)
// has halves 2t and 2t + 1 of row g of each in its registers, of column g if they are transposed.
struct Matrices {
  uint32_t at;
  uint4 v;
};
inline uint32_t* register_of(uint4& v, uint32_t m) { return m == 0 ? &v.x : m == 1 ? &v.y : m == 2 ? &v.z : &v.w; }
inline uint4 load_four(uint32_t at, bool transpose, const char* name) {
  const auto work = [&](const uint32_t* in, uint4* out) {
    for (uint32_t m = 0; m < 4; ++m) {
      for (uint32_t l = 0; l < kWarp; ++l) {
        uint32_t halves[2];
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t row = transpose ? l % 4 * 2 + i : l / 4, column = transpose ? l / 4 : l % 4 * 2 + i;
          if (in[8 * m + row] % 16 != 0) Machine::now().fail("ldmatrix: a row is not aligned");
          halves[i] = load<uint16_t>(in[8 * m + row] + 2 * column);
        }
        *register_of(out[l], m) = halves[1] << 16 | halves[0];
      }
    }
  };
  return Machine::now().meet<uint4>(name, at, work);
}

}  // namespace simt

TIERKV_DEVICE uint8_t* dynamic_shared() { return simt::Machine::now().shared(); }

TIERKV_DEVICE void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const simt::Operands<float, 4, 2> mine{{c[0], c[1], c[2], c[3]}, {a0, a1, a2, a3}, {b0, b1}};
  simt::product<float, double>(c, mine, 2, simt::half_of, simt::half_of, "mma 16x8x16");
}
TIERKV_DEVICE void multiply8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  const simt::Operands<float, 2, 1> mine{{c[0], c[1], c[2], c[3]}, {a0, a1}, {b0}};
  simt::product<float, double>(c, mine, 2, simt::half_of, simt::half_of, "mma 16x8x8");
}
TIERKV_DEVICE void multiply_signed(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const simt::Operands<int, 4, 2> mine{{c[0], c[1], c[2], c[3]}, {a0, a1, a2, a3}, {b0, b1}};
  simt::product<int, int64_t>(c, mine, 4, simt::unsigned_byte, simt::signed_byte, "mma 16x8x32, signed");
}
TIERKV_DEVICE void multiply_unsigned(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const simt::Operands<int, 4, 2> mine{{c[0], c[1], c[2], c[3]}, {a0, a1, a2, a3}, {b0, b1}};
  simt::product<int, int64_t>(c, mine, 4, simt::unsigned_byte, simt::unsigned_byte, "mma 16x8x32, unsigned");
}

TIERKV_DEVICE uint32_t lane_now() { return simt::Machine::now().thread() % simt::kWarp; }
TIERKV_DEVICE uint32_t thread_now() { return simt::Machine::now().thread(); }

TIERKV_DEVICE uint32_t shared_address(const void* p) { return simt::Machine::now().address(p); }
TIERKV_DEVICE uint2 load2(uint32_t at) { return simt::load<uint2>(at); }
TIERKV_DEVICE uint4 load4(uint32_t at) { return simt::load<uint4>(at); }
TIERKV_DEVICE float2 load2f(uint32_t at) { return simt::load<float2>(at); }
TIERKV_DEVICE float load1f(uint32_t at) { return simt::load<float>(at); }
TIERKV_DEVICE uint32_t load1(uint32_t at) { return simt::load<uint32_t>(at); }
TIERKV_DEVICE float load_half(uint32_t at) { return f16_to_f32(simt::load<uint16_t>(at)); }
TIERKV_DEVICE void store_half(uint32_t at, float x) { simt::store(at, f32_to_f16(x)); }
TIERKV_DEVICE void store1(uint32_t at, uint32_t x) { simt::store(at, x); }
TIERKV_DEVICE void store2(uint32_t at, uint32_t x, uint32_t y) { simt::store(at, uint2{x, y}); }
TIERKV_DEVICE void store4f(uint32_t at, float x, float y, float z, float w) { simt::store(at, float4{x, y, z, w}); }
TIERKV_DEVICE void prefetch_line(const void*) {}
TIERKV_DEVICE float power2(float x) { return std::exp2(x); }
TIERKV_DEVICE void fetch4(uint32_t to, const void* from) { simt::Machine::now().fetch(to, from, 4); }
TIERKV_DEVICE void fetch8(uint32_t to, const void* from) { simt::Machine::now().fetch(to, from, 8); }
TIERKV_DEVICE void fetch16(uint32_t to, const void* from) { simt::Machine::now().fetch(to, from, 16); }
TIERKV_DEVICE void wait_for_fetched() { simt::Machine::now().wait_for_fetched(); }
TIERKV_DEVICE void end_fetches() { simt::Machine::now().end_fetches(); }
template <int kLeft>
TIERKV_DEVICE void wait_for_fetches() {
  simt::Machine::now().wait_for_fetches(kLeft);
}
TIERKV_DEVICE float reciprocal(float x) { return 1.0f / x; }
TIERKV_DEVICE uint32_t pack_halves(float low, float high) { return simt::two_halves(low, high); }
TIERKV_DEVICE float2 halves_of(uint32_t x) { return {simt::half_of(x, 0), simt::half_of(x, 1)}; }
TIERKV_DEVICE uint32_t times(uint32_t a, uint32_t b) {
  return simt::two_halves(simt::half_of(a, 0) * simt::half_of(b, 0), simt::half_of(a, 1) * simt::half_of(b, 1));
}
TIERKV_DEVICE uint32_t times_plus(uint32_t a, uint32_t b, uint32_t c) {
  return simt::two_halves(std::fma(simt::half_of(a, 0), simt::half_of(b, 0), simt::half_of(c, 0)),
                          std::fma(simt::half_of(a, 1), simt::half_of(b, 1), simt::half_of(c, 1)));
}

TIERKV_DEVICE uint32_t transposed(uint32_t x) {
  return simt::Machine::now().meet<uint32_t>("movmatrix", x, [](const uint32_t* in, uint32_t* out) {
    const auto number = [&](uint32_t row, uint32_t column) { return in[row * 4 + column / 2] >> (column % 2 * 16) & 0xFFFFu; };
    for (uint32_t l = 0; l < simt::kWarp; ++l) out[l] = number(l % 4 * 2 + 1, l / 4) << 16 | number(l % 4 * 2, l / 4);
  });
}

TIERKV_DEVICE uint4 load_matrices(uint32_t at) { return simt::load_four(at, false, "ldmatrix"); }
TIERKV_DEVICE uint4 load_matrices_transposed(uint32_t at) { return simt::load_four(at, true, "ldmatrix, transposed"); }
TIERKV_DEVICE void store_transposed(uint32_t at, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const auto work = [](simt::Matrices* in, char*) {
    for (uint32_t m = 0; m < 4; ++m) {
      for (uint32_t l = 0; l < simt::kWarp; ++l) {
        const uint32_t word = *simt::register_of(in[l].v, m);
        for (uint32_t i = 0; i < 2; ++i)
          simt::store(in[8 * m + l % 4 * 2 + i].at + l / 4 * 2, static_cast<uint16_t>(word >> (16 * i)));
      }
    }
  };
  simt::Machine::now().meet<char>("stmatrix", simt::Matrices{at, {x, y, z, w}}, work);
}

TIERKV_DEVICE void let_next_begin() {}
TIERKV_DEVICE void wait_for_previous() {}
TIERKV_DEVICE void barrier_init(uint32_t at) { simt::Machine::now().make_barrier(at, 1); }
TIERKV_DEVICE void barrier_end(uint32_t) {}
TIERKV_DEVICE void barrier_arrive(uint32_t at) { simt::Machine::now().arrive(at, 0); }
TIERKV_DEVICE void barrier_wait(uint32_t at, uint32_t parity) { simt::Machine::now().wait_at(at, parity); }
TIERKV_DEVICE bool barrier_passed(uint32_t, uint32_t) { return false; }  // nothing is there before somebody waits for it
TIERKV_DEVICE void fence_writes() {}
TIERKV_DEVICE void fence_copies() {}
TIERKV_DEVICE void expect_bytes(uint32_t barrier, uint32_t bytes) { simt::Machine::now().arrive(barrier, bytes); }
TIERKV_DEVICE void copy_more(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  simt::Machine::now().copy(to, from, bytes, barrier);
}
TIERKV_DEVICE void copy_in(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  expect_bytes(barrier, bytes);
  copy_more(to, from, bytes, barrier);
}

}  // namespace tierkv::cuda
