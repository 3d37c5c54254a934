// engine_names.h — the commands call the engine's things (src/engine) by their plain names.
#pragma once

#include "engine/error.h"
#include "engine/text.h"

namespace tierkv::cli {

using namespace engine;

}  // namespace tierkv::cli
