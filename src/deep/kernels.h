// kernels.h — the inner loops of the deep archive, once per instruction set; what the decoder needs is the same bits in all of
// them.
//
// dots() is integer arithmetic; synthesise() adds the same products in the same order whatever the width, because lanes are
// channels and a channel's sum is never split (the build turns off fused multiply-adds). analyse() is the encoder's alone and may
// differ in the last bit. Files that implement it are compiled for wider instruction sets than the rest: raw pointers and plain
// structs only.
// Threads:  pure functions of their arguments.
#pragma once

#include <cstdint>

namespace tierkv::deep {

struct Term {
  uint32_t row = 0;
  float factor = 0.0f;
};

struct Kernels {
  const char* name;
  // out[t][i] += sum over j of matrix[i][j]·sources[t][j]. REQUIRES: no sum leaves 32 bits.
  void (*dots)(const int16_t* matrix, const int16_t* sources, uint32_t dim, uint32_t tokens, int64_t* out);
  // out[t][j] = sum over c of rows[t][c]·matrix[c][j].
  void (*analyse)(const float* rows, const float* matrix, uint32_t dim, uint32_t tokens, float* out);
  // out[c] += factor·matrix[row][c], term by term.
  void (*synthesise)(const Term* terms, uint32_t count, const float* matrix, uint32_t dim, float* out);
};

extern const Kernels kPlainKernels;
#if defined(TIERKV_KERNELS_X86)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif

// Those of the instruction set that quant/isa.h says is active (base/cpu.h looks at the processor, once for all rooms), if they do
// what the plain ones do.
const Kernels& kernels();

}  // namespace tierkv::deep
