// cpu_backend.h — the processor as a backend: host memory, the codecs' own kernels, threads of an Executor.
//
// Few rows of queries (decoding) are cut along the tokens, about 1,024 of a KV head a task, and the parts are merged by whoever
// finishes a head's last one; many rows (prompts) are cut along the queries. Mass (mass.h) is summed up on the way, in either.
//
// Threads: it has no state. Scratch is per thread (base/per_thread.h).
#pragma once

#include "attn/backend.h"

namespace tierkv::attn {

const Backend& cpu_backend();

}  // namespace tierkv::attn
