// svg.h — plots as SVG text: scatter, lines, bars, heat maps. No dependencies, no scripts; what is drawn depends on the data alone.
//
// Every function gives one complete <svg> element that stands alone in a file or inside an HTML page. Text is escaped. Points that
// are not finite, or not positive on a logarithmic axis, are left out; with no points the plot says that there is no data.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tierkv::cli::svg {

// symlog is linear around 0 and logarithmic further out on both sides: `knee` is where it turns.
enum class Scale { linear, log, symlog };

struct Axis {
  std::string label;
  Scale scale = Scale::linear;
  double knee = 0.01;
  bool from_zero = false;        // linear: 0 is always shown
  std::vector<double> labelled;  // the values to label; empty: round ones
};

// A series' colour and shape, by number; the same number looks the same in every plot.
struct Mark {
  double x = 0.0, y = 0.0;
  double error = 0.0;  // half the length of the error bar; 0 or NaN: none
  std::string label;
  int style = 0;
};
// With `frontier`, a line joins the marks that no other beats in both x and y (less is better).
std::string scatter(const std::string& title, const Axis& x, const Axis& y, const std::vector<Mark>& marks, bool frontier);

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
  int style = 0;
  bool dashed = false;
};
std::string lines(const std::string& title, const Axis& x, const Axis& y, const std::vector<Line>& lines);

struct BarSeries {
  std::string name;
  std::vector<double> values;  // one for each group
  int style = 0;
};
// `baseline`: a dashed line across at that value; NaN: none.
std::string bars(const std::string& title, const std::string& x_label, const std::string& y_label,
                 const std::vector<std::string>& groups, const std::vector<BarSeries>& series, double baseline);

struct HeatMap {
  std::string title;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<double>> values;      // [row][column], 0..1; NaN: empty
  std::vector<std::vector<std::string>> texts;  // shown in the cells
};
// Panels side by side, `across` in a row.
std::string heat_maps(const std::string& title, const std::string& x_label, const std::string& y_label,
                      const std::vector<HeatMap>& maps, int across);

std::string escape(const std::string& text);
// Values at which an axis from `low` to `high` is labelled.
std::vector<double> ticks(const Axis& axis, double low, double high);

}  // namespace tierkv::cli::svg
