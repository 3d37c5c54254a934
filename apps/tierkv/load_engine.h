// load_engine.h — the model that -m means, loaded with a progress bar and stopped by Ctrl-C.
#pragma once

#include "engine/engine.h"
#include "options.h"

namespace tierkv::cli {

Engine load_engine(const Options& options);

}  // namespace tierkv::cli
