// serve_check.h — `tierkv serve --check`: everything that a start needs is tried, and everything that is wrong is said at once.
#pragma once

#include "options.h"
#include "serve/service.h"

namespace tierkv::cli {

// One line for each thing that was tried. The exit code: 0 when the server would start and serve, 2 when something is wrong.
// What only costs quality or speed (no calibration) is a remark.
int check_serve(const Options& options, const serve::Settings& settings);

}  // namespace tierkv::cli
