// rope_options.h — the options of RoPE as the engine takes them.
#pragma once

#include "options.h"
#include "tierkv/llama.h"

namespace tierkv::cli {

// Throws Error, bad_input, where two options contradict each other.
llama::RopeSettings rope_settings(const RopeOptions& rope);

}  // namespace tierkv::cli
