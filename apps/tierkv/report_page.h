// report_page.h — results as one HTML page that loads nothing: tables, charts, and how it was all made.
//
// The charting library is in the page. Its content security policy forbids it to ask the network for anything.
#pragma once

#include <string>

#include "report_data.h"

namespace tierkv::cli {

// The text of Chart.js that the build embedded; empty where it could not be fetched.
std::string chart_library();

// `self` says when and by which command the page is made. With an empty library the page has its tables, and says why there is no
// chart.
std::string make_page(const Results& results, const RunRecord& self, const std::string& library);

}  // namespace tierkv::cli
