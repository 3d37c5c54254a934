// isa.h — which instruction set the kernels use: the widest this processor has, checked once before it is trusted.
//
// "scalar" is the plain C++ of the codecs themselves, the reference all others are tested against; it runs anywhere.
// TIERKV_FORCE_ISA=scalar|avx2|avx512|avx512vnni|neon|neon_dotprod in the environment picks one (a name this machine cannot run, or
// that is none, is ignored: the library never prints; `tierkv-bench` and the tests say what runs).
// Threads: active_kernels() is an atomic load; set_active_isa() is for tests and benchmarks, while nothing else runs.
#pragma once

#include <string_view>
#include <vector>

#include "quant/kernels.h"

namespace tierkv::quant {

// Null: scalar.
const Kernels* active_kernels();
std::string_view active_isa();

// What this processor can run, best first; "scalar" is always the last.
std::vector<std::string_view> available_isas();

// False: not available here, nothing changed.
bool set_active_isa(std::string_view name);

// Whether the kernels agree with plain C++ on a small problem: a miscompiled or misreported instruction set must not reach a model.
bool kernels_work(const Kernels& kernels);

}  // namespace tierkv::quant
