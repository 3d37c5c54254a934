// report_plots.h — results as plots, each with a name for its file.
#pragma once

#include <string>
#include <vector>

#include "report_data.h"

namespace tierkv::cli {

struct Plot {
  std::string name;  // of the file, without its ending
  std::string svg;
  std::string caption;
};

// One model's results at a time: these draw whatever they are given.
std::vector<Plot> quality_plots(const std::vector<QualityResult>& results);  // a set for each context length
std::vector<Plot> speed_plots(const std::vector<SpeedResult>& results);
// What was missed against the bits of the archive, one plot a task: settings that both commands measured.
std::vector<Plot> recall_by_bits(const std::vector<QualityResult>& quality, const std::vector<RecallResult>& recall);
std::string recall_plot(const std::vector<RecallResult>& results);  // a panel for each task and setting

// A setting's label, short enough for a plot.
std::string short_label(const ResultName& name);

}  // namespace tierkv::cli
