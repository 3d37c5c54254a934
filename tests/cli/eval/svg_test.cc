// svg_test.cc — plots are well-formed, show what they were given, and survive what no plot can show.
#include "svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

namespace tierkv::cli::svg {
namespace {

Axis axis(const char* label, Scale scale = Scale::linear) {
  Axis result;
  result.label = label;
  result.scale = scale;
  return result;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Elements open and close in order, and numbers are numbers.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), tag); it != std::sregex_iterator(); ++it) {
    const auto& m = *it;
    if (m[1].length() > 0) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), m[2].str());
      open.pop_back();
    } else if (m[3].length() == 0) {
      open.push_back(m[2].str());
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Svg, ScatterShowsEveryMarkAndLabel) {
  const std::string svg = scatter("Title", axis("bits", Scale::log), axis("delta", Scale::symlog),
                                  {{2, 0.5, 0.1, "two", 0}, {4, 0.01, 0.0, "four", 0}, {16, 0, 0.0, "fp16", 0}}, true);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<circle"), 3u);
  for (const char* label : {"two", "four", "fp16", "Title", "bits", "delta"})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
}

TEST(Svg, MarksThatCannotBeDrawnAreLeftOut) {
  const std::string svg = scatter("T", axis("x", Scale::log), axis("y", Scale::log),
                                  {{0, 1, 0.0, "zero", 0}, {1, NAN, 0.0, "nan", 0}, {2, 3, NAN, "good", 0}}, true);
  EXPECT_EQ(count(svg, "<circle"), 1u);
  EXPECT_EQ(svg.find("zero"), std::string::npos);
  EXPECT_EQ(count(scatter("T", {}, {}, {}, true), "no data"), 1u);
  EXPECT_EQ(count(lines("T", {}, {}, {}), "no data"), 1u);
  EXPECT_EQ(count(bars("T", "x", "y", {}, {}, NAN), "no data"), 1u);
  EXPECT_EQ(count(heat_maps("T", "x", "y", {}, 2), "no data"), 1u);
}

TEST(Svg, LabelsDoNotCoverEachOther) {
  std::vector<Mark> marks;
  for (int i = 0; i < 12; ++i) marks.push_back({3.0 + 0.02 * i, 1.0 + 0.01 * (i % 3), 0.0, "label-" + std::to_string(10 + i), 0});
  marks.push_back({16, 0, 0.0, "far", 0});
  const std::string svg = scatter("T", axis("x"), axis("y"), marks, false);
  expect_well_formed(svg);
  std::vector<std::pair<double, double>> places;
  const std::regex label("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" text-anchor=\"start\">label");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), label); it != std::sregex_iterator(); ++it) {
    places.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  ASSERT_EQ(places.size(), 12u);
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_TRUE(std::fabs(places[a].first - places[b].first) > 40 || std::fabs(places[a].second - places[b].second) > 11)
          << a << " and " << b;
    }
  }
}

TEST(Svg, LinesBarsAndHeatMapsAreWellFormed) {
  expect_well_formed(lines("T", axis("x"), axis("y"), {{"a", {{0, 1}, {10, 3}}, 0}, {"b & <c>", {{0, 2}, {10, NAN}}, 1, true}}));
  expect_well_formed(bars("T", "x", "y", {"0", "1024"}, {{"a", {1, 2}, 0}, {"b", {0.5, NAN}, 1}}, 1.0));
  const std::string map = heat_maps("T", "x", "y",
                                    {{"first", {"5", "95"}, {"2048"}, {{1.0, NAN}}, {{"2/2", ""}}},
                                     {"second", {"5", "95"}, {"2048"}, {{0.5, 0}}, {{"1/2", "0/2"}}}},
                                    2);
  expect_well_formed(map);
  for (const char* text : {"2/2", "1/2", "0/2", "first", "second", "2048"}) EXPECT_NE(map.find(text), std::string::npos) << text;
}

TEST(Svg, TextIsEscaped) {
  EXPECT_EQ(escape("a<b & \"c\">\n"), "a&lt;b &amp; &quot;c&quot;&gt; ");
  EXPECT_EQ(scatter("<script>", {}, {}, {{1, 1, 0.0, "<b>", 0}}, false).find("<script>"), std::string::npos);
}

TEST(Svg, TicksAreRoundAndInside) {
  EXPECT_EQ(ticks(axis("", Scale::linear), 0, 10), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const auto log = ticks(axis("", Scale::log), 1.8, 17);
  EXPECT_EQ(log, (std::vector<double>{2, 3, 4, 6, 8, 10, 15}));
  Axis chosen = axis("", Scale::log);
  chosen.labelled = {1, 2, 4, 16};
  EXPECT_EQ(ticks(chosen, 1.8, 17), (std::vector<double>{2, 4, 16}));
  const auto sym = ticks(axis("", Scale::symlog), -0.02, 0.5);
  ASSERT_EQ(sym.size(), 6u);
  EXPECT_DOUBLE_EQ(sym[0], -0.01);
  EXPECT_DOUBLE_EQ(sym[1], 0.0);
  EXPECT_DOUBLE_EQ(sym[5], 0.3);
}

}  // namespace
}  // namespace tierkv::cli::svg
