// relax.h — what a spinning thread says to its processor: this is a wait, let the other hardware thread run.
#pragma once

namespace tierkv {

inline void relax_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tierkv
