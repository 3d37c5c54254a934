// png.h — pictures for who cannot show an SVG.
#pragma once

#include <string>

namespace tierkv::cli {

// A PNG from an SVG where rsvg-convert is installed; false and no file otherwise.
bool convert_to_png(const std::string& svg, const std::string& png);

}  // namespace tierkv::cli
