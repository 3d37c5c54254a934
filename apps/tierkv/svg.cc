// svg.cc — axes and the four kinds of plot.
#include "svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "terminal.h"

namespace tierkv::cli::svg {
namespace {

// Colours that people with colour-blindness can tell apart, also on white paper.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#7b3294", "#444444"};
const char* colour(int style) { return kColours[static_cast<size_t>(std::abs(style)) % std::size(kColours)]; }

constexpr double kCharacter = 6.3;  // mean width at 11 px: labels are placed without knowing the font

double text_width(const std::string& text) {
  const auto continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return kCharacter * static_cast<double>(text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), continuation)));
}

std::string n(double value) {
  std::string text = format("%.1f", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

class Canvas {
 public:
  Canvas(double width, double height) : width_(width), height_(height) {}
  void text(double x, double y, const std::string& what, const char* anchor = "start", const std::string& more = "") {
    body_ += "<text x=\"" + n(x) + "\" y=\"" + n(y) + "\" text-anchor=\"" + anchor + "\"" + (more.empty() ? "" : " " + more) + ">" +
             escape(what) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    body_ += "<line x1=\"" + n(x1) + "\" y1=\"" + n(y1) + "\" x2=\"" + n(x2) + "\" y2=\"" + n(y2) + "\" " + style + "/>\n";
  }
  void rect(double x, double y, double w, double h, const std::string& style) {
    body_ += "<rect x=\"" + n(x) + "\" y=\"" + n(y) + "\" width=\"" + n(w) + "\" height=\"" + n(h) + "\" " + style + "/>\n";
  }
  void raw(const std::string& markup) { body_ += markup; }
  void title(const std::string& what) { text(width_ / 2, 20, what, "middle", "font-size=\"14\" font-weight=\"bold\""); }
  std::string str() const {
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + n(width_) + "\" height=\"" + n(height_) + "\" viewBox=\"0 0 " +
           n(width_) + " " + n(height_) +
           "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" "
           "fill=\"#fff\"/>\n" +
           body_ + "</svg>\n";
  }

 private:
  double width_, height_;
  std::string body_;
};

// One of a few shapes, so that series can be told apart in grey.
std::string shape(double x, double y, int style) {
  const std::string fill = std::string("fill=\"") + colour(style) + "\"";
  switch (std::abs(style) % 3) {
    case 1: return "<rect x=\"" + n(x - 4) + "\" y=\"" + n(y - 4) + "\" width=\"8\" height=\"8\" " + fill + "/>\n";
    case 2:
      return "<path d=\"M" + n(x) + " " + n(y - 5) + "L" + n(x + 5) + " " + n(y + 4) + "L" + n(x - 5) + " " + n(y + 4) + "Z\" " +
             fill + "/>\n";
    default: return "<circle cx=\"" + n(x) + "\" cy=\"" + n(y) + "\" r=\"4.5\" " + fill + "/>\n";
  }
}

std::string tick_text(double value) {
  if (std::fabs(value) >= 10000) return format("%gK", value / 1000);
  return format("%g", std::fabs(value) < 1e-12 ? 0.0 : value);
}

double transform(const Axis& axis, double value) {
  switch (axis.scale) {
    case Scale::log: return std::log10(value);
    case Scale::symlog: return std::asinh(value / axis.knee);
    default: return value;
  }
}

bool drawable(const Axis& axis, double value) { return std::isfinite(value) && (axis.scale != Scale::log || value > 0); }

// Values to pixels along one direction.
class Range {
 public:
  Range(const Axis& axis, std::vector<double> values, double from, double to) : axis_(axis), from_(from), to_(to) {
    std::erase_if(values, [&](double value) { return !drawable(axis, value); });
    if (axis.from_zero && axis.scale == Scale::linear) values.push_back(0.0);
    if (values.empty()) values = {axis.scale == Scale::log ? 1.0 : 0.0};
    low_ = transform(axis, *std::min_element(values.begin(), values.end()));
    high_ = transform(axis, *std::max_element(values.begin(), values.end()));
    double margin = 0.06 * (high_ - low_);
    if (margin <= 0) margin = axis.scale == Scale::log ? 0.15 : std::max(1.0, 0.1 * std::fabs(high_));
    if (!(axis.from_zero && axis.scale == Scale::linear && low_ == 0.0)) low_ -= margin;
    high_ += margin;
  }
  double at(double value) const { return from_ + (transform(axis_, value) - low_) / (high_ - low_) * (to_ - from_); }
  // Ticks that are apart enough to be read.
  std::vector<double> marks(double spacing) const {
    std::vector<double> kept;
    for (const double value : ticks(axis_, back(low_), back(high_))) {
      if (kept.empty() || std::fabs(at(value) - at(kept.back())) >= spacing) kept.push_back(value);
    }
    return kept;
  }

 private:
  double back(double t) const {
    return axis_.scale == Scale::log ? std::pow(10.0, t) : axis_.scale == Scale::symlog ? axis_.knee * std::sinh(t) : t;
  }
  Axis axis_;
  double from_, to_, low_ = 0.0, high_ = 1.0;
};

struct Box {
  double x, y, w, h;
  bool meets(const Box& o) const { return x < o.x + o.w && o.x < x + w && y < o.y + o.h && o.y < y + h; }
};

// The frame that scatter and lines have in common.
struct Frame {
  double left = 64, top = 36, width = 560, height = 340;
  double right() const { return left + width; }
  double bottom() const { return top + height; }
};

void draw_y_axis(Canvas& canvas, const Frame& f, const Axis& axis, const Range& y) {
  for (const double value : y.marks(18)) {
    const bool zero = value == 0.0 && axis.scale == Scale::symlog;
    canvas.line(f.left, y.at(value), f.right(), y.at(value), zero ? "stroke=\"#999\"" : "stroke=\"#e6e6e6\"");
    canvas.text(f.left - 6, y.at(value) + 4, tick_text(value), "end");
  }
  canvas.rect(f.left, f.top, f.width, f.height, "fill=\"none\" stroke=\"#888\"");
  const double middle = f.top + f.height / 2;
  canvas.text(16, middle, axis.label, "middle", "font-size=\"12\" transform=\"rotate(-90 16 " + n(middle) + ")\"");
}

void draw_axes(Canvas& canvas, const Frame& f, const Axis& x_axis, const Axis& y_axis, const Range& x, const Range& y) {
  for (const double value : x.marks(26)) {
    canvas.line(x.at(value), f.top, x.at(value), f.bottom(), "stroke=\"#e6e6e6\"");
    canvas.text(x.at(value), f.bottom() + 16, tick_text(value), "middle");
  }
  canvas.text(f.left + f.width / 2, f.bottom() + 36, x_axis.label, "middle", "font-size=\"12\"");
  draw_y_axis(canvas, f, y_axis, y);
}

// A place for a label that covers no mark and no other label, as near to its mark as possible.
Box place_label(const Frame& f, double x, double y, double width, const std::vector<Box>& taken) {
  constexpr double kPi = 3.14159265358979;
  const Box fallback{x + 8, y - 6, width, 12};
  for (double distance = 8; distance <= 240; distance += 8) {
    for (const double turn : {0.0, 1.0, 0.25, 0.75, 1.75, 1.25, 0.5, 1.5}) {
      const double cx = x + std::cos(turn * kPi) * distance, cy = y - std::sin(turn * kPi) * distance;
      const double lean = std::cos(turn * kPi);
      const Box box{lean > 0.1 ? cx : lean < -0.1 ? cx - width : cx - width / 2, cy - 6, width, 12};
      const bool inside =
          box.x >= f.left + 2 && box.x + box.w <= f.right() - 2 && box.y >= f.top + 2 && box.y + box.h <= f.bottom() - 2;
      if (inside && std::none_of(taken.begin(), taken.end(), [&](const Box& other) { return box.meets(other); })) return box;
    }
  }
  return fallback;
}

void draw_frontier(Canvas& canvas, const Range& x, const Range& y, std::vector<Mark> marks) {
  std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.x != b.x ? a.x < b.x : a.y < b.y; });
  std::string path;
  double best = std::numeric_limits<double>::infinity();
  for (const Mark& mark : marks) {
    if (mark.y >= best) continue;
    best = mark.y;
    path += (path.empty() ? "M" : "L") + n(x.at(mark.x)) + " " + n(y.at(mark.y));
  }
  canvas.raw("<path d=\"" + path + "\" fill=\"none\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>\n");
}

std::string no_data(const std::string& title) {
  Canvas canvas(640, 80);
  canvas.title(title);
  canvas.text(320, 52, "no data", "middle", "fill=\"#888\"");
  return canvas.str();
}

// Names beside their colours, on the right.
void draw_legend(Canvas& canvas, double x, double y, const std::vector<std::pair<std::string, int>>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    const double at = y + 18.0 * static_cast<double>(i);
    canvas.raw(shape(x + 5, at, names[i].second));
    canvas.text(x + 16, at + 4, names[i].first);
  }
}

double legend_width(const std::vector<std::pair<std::string, int>>& names) {
  double width = 0;
  for (const auto& [name, style] : names) width = std::max(width, text_width(name));
  return width + 32;
}

// Pale for nothing, dark for everything: reads the same in grey.
std::string heat_colour(double value) {
  const double v = std::clamp(value, 0.0, 1.0);
  auto mix = [&](double from, double to) { return static_cast<int>(std::lround(from + (to - from) * v)); };
  return format("#%02x%02x%02x", mix(253, 20), mix(231, 120), mix(224, 140));
}

}  // namespace

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::vector<double> ticks(const Axis& axis, double low, double high) {
  std::vector<double> values;
  auto keep = [&](double value) {
    if (value >= low - 1e-12 * std::fabs(low) && value <= high + 1e-12 * std::fabs(high)) values.push_back(value);
  };
  if (!(high > low)) return {low};
  if (!axis.labelled.empty()) {
    for (const double value : axis.labelled) keep(value);
    return values;
  }
  if (axis.scale == Scale::linear) {
    const double rough = (high - low) / 6.0, power = std::pow(10.0, std::floor(std::log10(rough)));
    const double share = rough / power;
    const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
    for (double i = std::ceil(low / step); i * step <= high + 1e-9 * step; ++i) keep(i * step);
    return values;
  }
  const double edge = std::max(std::fabs(low), std::fabs(high));
  if (axis.scale == Scale::log) {
    const bool narrow = high / low < 60.0;
    for (double p = std::floor(std::log10(low)); p <= std::log10(high); ++p) {
      if (narrow)
        for (const double m : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0}) keep(m * std::pow(10.0, p));
      if (!narrow)
        for (const double m : {1.0, 3.0}) keep(m * std::pow(10.0, p));
    }
    return values;
  }
  for (double p = std::floor(std::log10(axis.knee)); std::pow(10.0, p) <= edge; ++p) {
    for (const double m : {1.0, 3.0}) {
      const double value = m * std::pow(10.0, p);
      if (value < axis.knee) continue;
      keep(value);
      keep(-value);
    }
  }
  keep(0.0);
  std::sort(values.begin(), values.end());
  return values;
}

std::string scatter(const std::string& title, const Axis& x_axis, const Axis& y_axis, const std::vector<Mark>& given,
                    bool frontier) {
  std::vector<Mark> marks = given;
  std::erase_if(marks, [&](const Mark& mark) { return !drawable(x_axis, mark.x) || !drawable(y_axis, mark.y); });
  if (marks.empty()) return no_data(title);
  std::vector<double> xs, ys;
  for (const Mark& mark : marks) xs.push_back(mark.x), ys.push_back(mark.y);
  if (y_axis.scale == Scale::symlog) ys.push_back(0.0);
  const Frame f;
  const Range x(x_axis, xs, f.left, f.right()), y(y_axis, ys, f.bottom(), f.top);
  Canvas canvas(f.right() + 16, f.bottom() + 48);
  canvas.title(title);
  draw_axes(canvas, f, x_axis, y_axis, x, y);
  if (frontier) draw_frontier(canvas, x, y, marks);

  std::vector<Box> taken;
  for (const Mark& mark : marks) taken.push_back({x.at(mark.x) - 5, y.at(mark.y) - 5, 10, 10});
  for (const Mark& mark : marks) {
    const double px = x.at(mark.x), py = y.at(mark.y);
    if (mark.error > 0 && std::isfinite(mark.error)) {
      const double high = std::max(f.top, y.at(mark.y + mark.error));
      const double lower = mark.y - mark.error;
      const double low = drawable(y_axis, lower) ? std::min(f.bottom(), y.at(lower)) : f.bottom();
      canvas.line(px, high, px, low, std::string("stroke=\"") + colour(mark.style) + "\" stroke-width=\"1.5\"");
    }
    canvas.raw(shape(px, py, mark.style));
    if (mark.label.empty()) continue;
    const Box box = place_label(f, px, py, text_width(mark.label), taken);
    taken.push_back(box);
    const double nearest_x = std::clamp(px, box.x, box.x + box.w), nearest_y = std::clamp(py, box.y, box.y + box.h);
    if (std::hypot(nearest_x - px, nearest_y - py) > 12) canvas.line(px, py, nearest_x, nearest_y, "stroke=\"#bbb\"");
    canvas.text(box.x, box.y + 10, mark.label);
  }
  return canvas.str();
}

std::string lines(const std::string& title, const Axis& x_axis, const Axis& y_axis, const std::vector<Line>& given) {
  std::vector<double> xs, ys;
  std::vector<std::pair<std::string, int>> names;
  for (const Line& line : given) {
    names.emplace_back(line.name, line.style);
    for (const auto& [px, py] : line.points) {
      if (drawable(x_axis, px) && drawable(y_axis, py)) xs.push_back(px), ys.push_back(py);
    }
  }
  if (xs.empty()) return no_data(title);
  const Frame f;
  const Range x(x_axis, xs, f.left, f.right()), y(y_axis, ys, f.bottom(), f.top);
  Canvas canvas(f.right() + 12 + legend_width(names), f.bottom() + 48);
  canvas.title(title);
  draw_axes(canvas, f, x_axis, y_axis, x, y);
  for (const Line& line : given) {
    std::string path, marks;
    for (const auto& [px, py] : line.points) {
      if (!drawable(x_axis, px) || !drawable(y_axis, py)) continue;
      path += (path.empty() ? "M" : "L") + n(x.at(px)) + " " + n(y.at(py));
      marks += shape(x.at(px), y.at(py), line.style);
    }
    if (path.empty()) continue;
    canvas.raw("<path d=\"" + path + "\" fill=\"none\" stroke=\"" + colour(line.style) + "\" stroke-width=\"1.8\"" +
               (line.dashed ? " stroke-dasharray=\"5 4\"" : "") + "/>\n" + marks);
  }
  draw_legend(canvas, f.right() + 12, f.top + 10, names);
  return canvas.str();
}

std::string bars(const std::string& title, const std::string& x_label, const std::string& y_label,
                 const std::vector<std::string>& groups, const std::vector<BarSeries>& series, double baseline) {
  std::vector<double> values;
  std::vector<std::pair<std::string, int>> names;
  for (const BarSeries& one : series) {
    names.emplace_back(one.name, one.style);
    for (const double value : one.values)
      if (std::isfinite(value)) values.push_back(value);
  }
  if (values.empty() || groups.empty()) return no_data(title);
  if (std::isfinite(baseline)) values.push_back(baseline);
  Frame f;
  f.width = std::clamp(static_cast<double>(groups.size() * (series.size() + 1)) * 22.0, 300.0, 900.0);
  const Axis axis{y_label, Scale::linear, 0.0, true, {}};
  const Range y(axis, values, f.bottom(), f.top);
  Canvas canvas(f.right() + 12 + legend_width(names), f.bottom() + 48);
  canvas.title(title);
  draw_y_axis(canvas, f, axis, y);
  canvas.text(f.left + f.width / 2, f.bottom() + 36, x_label, "middle", "font-size=\"12\"");
  const double group = f.width / static_cast<double>(groups.size());
  const double bar = group / (static_cast<double>(series.size()) + 1.0);
  for (size_t g = 0; g < groups.size(); ++g) {
    const double left = f.left + group * static_cast<double>(g);
    for (size_t s = 0; s < series.size(); ++s) {
      const double value = g < series[s].values.size() ? series[s].values[g] : std::numeric_limits<double>::quiet_NaN();
      if (!std::isfinite(value)) continue;
      const double from = std::max(y.at(value), y.at(0.0)), to = std::min(y.at(value), y.at(0.0));
      canvas.rect(left + bar * (static_cast<double>(s) + 0.5), to, bar * 0.9, std::max(0.5, from - to),
                  std::string("fill=\"") + colour(series[s].style) + "\"");
    }
    canvas.text(left + group / 2, f.bottom() + 16, groups[g], "middle");
  }
  if (std::isfinite(baseline))
    canvas.line(f.left, y.at(baseline), f.right(), y.at(baseline), "stroke=\"#444\" stroke-dasharray=\"4 3\"");
  draw_legend(canvas, f.right() + 12, f.top + 10, names);
  return canvas.str();
}

std::string heat_maps(const std::string& title, const std::string& x_label, const std::string& y_label,
                      const std::vector<HeatMap>& maps, int across) {
  if (maps.empty()) return no_data(title);
  size_t columns = 1, rows = 1;
  double label = 0, heading = 0;
  for (const HeatMap& map : maps) {
    heading = std::max(heading, 1.1 * text_width(map.title));  // bold
    columns = std::max(columns, map.columns.size());
    rows = std::max(rows, map.rows.size());
    for (const std::string& row : map.rows) label = std::max(label, text_width(row));
  }
  constexpr double kCell = 40, kCellHeight = 26;
  const double left = label + 40, panel_w = left + std::max(heading, kCell * static_cast<double>(columns)) + 16,
               panel_h = 76 + kCellHeight * static_cast<double>(rows);
  const size_t wide = std::min(maps.size(), static_cast<size_t>(std::max(1, across)));
  const size_t high = (maps.size() + wide - 1) / wide;
  const double least = text_width(title) * 1.4;
  Canvas canvas(std::max(least, panel_w * static_cast<double>(wide) + 8), 34 + panel_h * static_cast<double>(high));
  canvas.title(title);
  for (size_t m = 0; m < maps.size(); ++m) {
    const HeatMap& map = maps[m];
    const double x0 = panel_w * static_cast<double>(m % wide) + left, y0 = 34 + panel_h * static_cast<double>(m / wide) + 22;
    canvas.text(x0, y0 - 6, map.title, "start", "font-weight=\"bold\"");
    for (size_t r = 0; r < map.rows.size(); ++r) {
      const double y = y0 + kCellHeight * static_cast<double>(r);
      canvas.text(x0 - 6, y + kCellHeight / 2 + 4, map.rows[r], "end");
      for (size_t c = 0; c < map.columns.size(); ++c) {
        const double value = map.values[r][c], x = x0 + kCell * static_cast<double>(c);
        canvas.rect(x, y, kCell - 1, kCellHeight - 1, "fill=\"" + (std::isfinite(value) ? heat_colour(value) : "#eee") + "\"");
        if (!map.texts[r][c].empty())
          canvas.text(x + kCell / 2, y + kCellHeight / 2 + 4, map.texts[r][c], "middle", value > 0.6 ? "fill=\"#fff\"" : "");
      }
    }
    const double bottom = y0 + kCellHeight * static_cast<double>(map.rows.size());
    for (size_t c = 0; c < map.columns.size(); ++c)
      canvas.text(x0 + kCell * (static_cast<double>(c) + 0.5), bottom + 14, map.columns[c], "middle");
    canvas.text(x0 + kCell * static_cast<double>(map.columns.size()) / 2, bottom + 30, x_label, "middle", "fill=\"#666\"");
    const double middle = (y0 + bottom) / 2;
    canvas.text(x0 - left + 14, middle, y_label, "middle",
                "fill=\"#666\" transform=\"rotate(-90 " + n(x0 - left + 14) + " " + n(middle) + ")\"");
  }
  return canvas.str();
}

}  // namespace tierkv::cli::svg
