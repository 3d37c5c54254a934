#define TIERKV_DEEP_TILE 8
#include <cmath>
#include <string_view>

#include "deep/kernels_body.h"
#include "quant/isa.h"

namespace tierkv::deep {

const Kernels kPlainKernels{"plain", dots, analyse, synthesise};

namespace {

// A small problem whose answers must be the same bits, and nearly the same where only the encoder looks.
[[maybe_unused]] bool works(const Kernels& k) {
  constexpr uint32_t kDim = 64, kTokens = 5, kTerms = 7;
  static_assert(kDim % 32 == 0);
  int16_t matrix[kDim * kDim], sources[kTokens * kDim];
  float floats[kDim * kDim], rows[kTokens * kDim];
  uint32_t state = 12345;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (int16_t& v : matrix) v = static_cast<int16_t>(static_cast<int32_t>(next() >> 16) % 800 - 400);
  for (int16_t& v : sources) v = static_cast<int16_t>(static_cast<int32_t>(next() >> 16) % 65535 - 32767);
  for (float& v : floats) v = static_cast<float>(static_cast<int32_t>(next() >> 8) - (1 << 23)) * 1e-6f;
  for (float& v : rows) v = static_cast<float>(static_cast<int32_t>(next() >> 8) - (1 << 23)) * 1e-6f;
  int64_t sums[2][kTokens * kDim] = {};
  float out[2][kTokens * kDim], built[2][kDim] = {};
  Term terms[kTerms];
  for (uint32_t i = 0; i < kTerms; ++i) terms[i] = {(next() >> 8) % kDim, rows[i]};
  const Kernels* both[2] = {&kPlainKernels, &k};
  for (int i = 0; i < 2; ++i) {
    both[i]->dots(matrix, sources, kDim, kTokens, sums[i]);
    both[i]->analyse(rows, floats, kDim, kTokens, out[i]);
    both[i]->synthesise(terms, kTerms, floats, kDim, built[i]);
  }
  for (uint32_t i = 0; i < kTokens * kDim; ++i) {
    if (sums[0][i] != sums[1][i] || !(std::fabs(out[0][i] - out[1][i]) <= 0.05f)) return false;
  }
  for (uint32_t i = 0; i < kDim; ++i) {
    if (built[0][i] != built[1][i]) return false;
  }
  return true;
}

}  // namespace

const Kernels& kernels() {
#if defined(TIERKV_KERNELS_X86)
  const std::string_view isa = quant::active_isa();
  if (isa.starts_with("avx512")) {
    static const bool ok = works(kAvx512Kernels);
    if (ok) return kAvx512Kernels;
  } else if (isa.starts_with("avx2")) {
    static const bool ok = works(kAvx2Kernels);
    if (ok) return kAvx2Kernels;
  }
#endif
  return kPlainKernels;
}

}  // namespace tierkv::deep
