// simt_warpgroup.h — the instructions of warpgroup.cuh on simt_machine.h: what each does, as the manual of PTX has it.
//
// Products that are under way are made when they are waited for, as late as may be: who changes their operands before, or reads
// their sums, is found out. A warp makes its own rows of them. To others their operand in shared memory is read by the warp's first
// thread.
#pragma once

#include "cuda/simt/simt_instructions.h"

namespace tierkv::cuda {
namespace simt {

// Rows g and g + 8 of a warp's operand A, two halves a word.
struct TwoRows {
  uint32_t low[8], high[8];
};
inline TwoRows two_rows(const uint32_t (&a)[4]) {
  struct Given {
    uint32_t a[4];
  };
  return Machine::now().meet<TwoRows>("wgmma", Given{a[0], a[1], a[2], a[3]}, [](const Given* in, TwoRows* out) {
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      for (uint32_t t = 0; t < 4; ++t) {
        const Given& of = in[lane / 4 * 4 + t];
        out[lane].low[t] = of.a[0], out[lane].low[4 + t] = of.a[2];
        out[lane].high[t] = of.a[1], out[lane].high[4 + t] = of.a[3];
      }
    }
  });
}

// Half k of row n of operand B: rows of 128 bytes whose parts of 16 are exchanged by their address.
inline double operand_half(uint32_t base, uint32_t n, uint32_t k) {
  const uint32_t at = base + n * 128 + 2 * k;
  return f16_to_f32(load<uint16_t>(at ^ (at >> 7 & 7u) << 4));
}

inline double dot(const uint32_t (&row)[8], const double (&column)[16]) {
  double sum = 0.0;
  for (uint32_t k = 0; k < 16; ++k) sum += static_cast<double>(half_of(row[k / 2], k % 2)) * column[k];
  return sum;
}

template <int N>
void make_product(float (&c)[N][4], const TwoRows& a, uint32_t base, bool add) {
  const uint32_t t = Machine::now().thread() % 4;
  for (uint32_t n = 0; n < N; ++n) {
    for (uint32_t i = 0; i < 2; ++i) {
      double column[16];
      for (uint32_t k = 0; k < 16; ++k) column[k] = operand_half(base, 8 * n + 2 * t + i, k);
      c[n][i] = static_cast<float>((add ? c[n][i] : 0.0) + dot(a.low, column));
      c[n][2 + i] = static_cast<float>((add ? c[n][2 + i] : 0.0) + dot(a.high, column));
    }
  }
}

}  // namespace simt

TIERKV_DEVICE uint64_t operand_desc(uint32_t at) { return at; }
TIERKV_DEVICE uint64_t operand_behind(uint64_t desc, uint32_t bytes) { return desc + bytes; }
TIERKV_DEVICE void group_begin() {}
TIERKV_DEVICE void group_commit() { simt::Machine::now().end_put_off(); }
template <int kLeft>
TIERKV_DEVICE void group_wait() {
  simt::Machine& machine = simt::Machine::now();
  machine.do_put_off(kLeft);
  machine.meet<char>("wgmma.wait_group", char{}, [](const char*, char*) {});
}
template <int N>
TIERKV_DEVICE void group_pin(float (&)[N][4]) {}

template <int N>
TIERKV_DEVICE void group_multiply(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  simt::Machine& machine = simt::Machine::now();
  machine.put_off(
      [&c, rows = simt::two_rows(a), base = static_cast<uint32_t>(b), add, first = machine.thread() % simt::kWarp == 0] {
        if (first) {
          simt::make_product(c, rows, base, add);
        } else {
          const simt::Unwatched reads;
          simt::make_product(c, rows, base, add);
        }
      });
}

template <int kRegisters>
TIERKV_DEVICE void give_registers() {}
template <int kRegisters>
TIERKV_DEVICE void take_registers() {}

TIERKV_DEVICE void meet(uint32_t barrier, uint32_t threads) { simt::Machine::now().meet_numbered(barrier, threads, true); }
TIERKV_DEVICE void let_pass(uint32_t barrier, uint32_t threads) { simt::Machine::now().meet_numbered(barrier, threads, false); }

TIERKV_DEVICE void barrier_init_for(uint32_t at, uint32_t arrivals) { simt::Machine::now().make_barrier(at, arrivals); }

}  // namespace tierkv::cuda
