// report_page_test.cc — the report shows every result, in one colour a setting, and asks nobody for anything.
#include "report_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "report_charts.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

const RunRecord kSelf{"2026-03-01 14:05 UTC", "a processor, 2 cores, 8.0 GiB of memory", "9.9", "tierkv report x.json"};

Results results_of(const json& values) {
  Results results;
  for (const json& value : values) add_result(results, value, "entry");
  return results;
}

json ppl(const char* kv, double delta, double bits, bool stock = false) {
  return {{"command", "ppl"},   {"model", "M"},     {"kv", kv},          {"stock", stock},
          {"ppl", 10 + delta},  {"delta", delta},   {"kld", delta / 10}, {"bits_archive", bits},
          {"bits_total", bits}, {"delta_se", 0.01}, {"ctx", 4096},       {"windows", 4}};
}

json bench(const char* kv, double depth, double ratio, bool stock = false) {
  return {{"command", "bench"},  {"model", "M"},          {"kv", kv},
          {"stock", stock},      {"depth", depth},        {"p50_ms", 3},
          {"ttft_seconds", 0.5}, {"decode_ratio", ratio}, {"decode_tokens_per_second", 20}};
}

json recall(const char* kv, double ctx, double depth, int correct) {
  return {{"command", "recall"}, {"model", "M"},   {"kv", kv},           {"task", "passkey"},
          {"ctx", ctx},          {"depth", depth}, {"correct", correct}, {"total", 2}};
}

// Everything with a name and a colour in a page: the data of its charts, and the dots of its keys and tables.
std::map<std::string, std::set<std::string>> colours_in(const std::string& page) {
  std::map<std::string, std::set<std::string>> found;
  const std::regex data("id=\"charts\">([^<]*)</script>"), dot("background:(#[0-9a-f]{6})\"></span>([^<]+)<");
  std::smatch match;
  if (std::regex_search(page, match, data)) {
    for (const json& chart : json::parse(match[1].str())) {
      for (const json& one : chart["series"]) found[one["name"]].insert(one["colour"]);
    }
  }
  for (auto it = std::sregex_iterator(page.begin(), page.end(), dot); it != std::sregex_iterator(); ++it)
    found[(*it)[2]].insert((*it)[1]);
  return found;
}

TEST(ReportPage, ASettingHasOneColourThroughoutAndNoOtherHasIt) {
  const std::string page =
      make_page(results_of({ppl("fp16", 0, 16), ppl("balanced", 0.1, 3), ppl("mine", 0.2, 2), ppl("q4_0", 1, 4.5, true),
                            bench("mine", 0, 1), bench("balanced", 0, 2), bench("f16", 0, 1, true)}),
                kSelf, "library");
  const auto colours = colours_in(page);
  std::set<std::string> used;
  for (const char* name : {"fp16", "balanced", "mine", "stock q4_0", "stock f16"}) {
    ASSERT_TRUE(colours.contains(name)) << name;
    EXPECT_EQ(colours.at(name).size(), 1u) << name;
    EXPECT_TRUE(used.insert(*colours.at(name).begin()).second) << name;
  }
}

TEST(ReportPage, ColoursDependOnNamesAndNotOnTheirOrder) {
  std::vector<std::string> names = {"balanced"};
  for (const char* name : {"a", "q", "A", "Q", "1"}) names.push_back(name);  // their hashes point at the same colour
  const SettingColours forwards(names);
  std::reverse(names.begin(), names.end());
  const SettingColours backwards(names);
  std::set<std::string> used;
  for (const std::string& name : names) {
    EXPECT_EQ(forwards.of(name), backwards.of(name));
    EXPECT_TRUE(used.insert(forwards.of(name)).second) << name;
  }
  EXPECT_EQ(SettingColours({"balanced"}).of("balanced"), forwards.of("balanced"));
}

TEST(ReportPage, WithoutTheLibraryThereAreTablesAndAReason) {
  const Results results = results_of({ppl("fp16", 0, 16), ppl("balanced", 0.125, 3)});
  const std::string page = make_page(results, kSelf, "");
  EXPECT_NE(page.find("+0.1250"), std::string::npos);
  EXPECT_NE(page.find("could not be fetched"), std::string::npos);
  EXPECT_EQ(page.find("<canvas"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(make_page(results, kSelf, "library").find("could not be fetched"), std::string::npos);
}

TEST(ReportPage, SaysHowItWasMeasured) {
  json value = ppl("balanced", 0.1, 3);
  value["model"] = "Smollm2 135M 8k Lc100K Mix1 Ep2";
  value["title"] = "SmolLM2-135M-Instruct";
  value["text"] = "book.txt";
  value["run"] = {
      {"date", "2026-02-03 04:05 UTC"}, {"machine", "fast one"}, {"version", "1.2.3"}, {"arguments", "tierkv ppl -f book.txt"}};
  const std::string page = make_page(results_of({value, value, bench("fp16", 0, 1)}), kSelf, "");
  for (const char* part :
       {"SmolLM2-135M-Instruct", "book.txt", "4 windows of 4,096 tokens", "2026-02-03 04:05 UTC", "fast one", "tierkv 1.2.3",
        "<code>tierkv ppl -f book.txt</code>", "2026-03-01 14:05 UTC", "tierkv report x.json", "not recorded"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  const size_t first = page.find("fast one");
  EXPECT_EQ(page.find("fast one", first + 1), std::string::npos);  // one run, two settings
}

TEST(ReportPage, NamesCannotBecomeMarkup) {
  const std::string page = make_page(
      results_of({ppl("</script><b>", 0.1, 3), ppl("fp16", 0, 16), recall("</script><b>", 1024, 5, 1)}), kSelf, "library");
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_NE(page.find("&lt;/script&gt;&lt;b&gt;"), std::string::npos);
}

TEST(ReportPage, TheLibraryIsWholeAndLooksForNothing) {
  const std::string library = chart_library();
  if (library.empty()) GTEST_SKIP() << "this build has no Chart.js";
  EXPECT_EQ(library.rfind("/*!", 0), 0u);
  EXPECT_NE(library.find("MIT License"), std::string::npos);
  EXPECT_GT(library.size(), 200000u);
  EXPECT_EQ(library.find("sourceMappingURL"), std::string::npos);
  EXPECT_EQ(library.find("</script"), std::string::npos);
}

TEST(ReportPage, RecallAddsUpOverRuns) {
  const std::string page = make_page(
      results_of({recall("balanced", 1024, 5, 1), recall("balanced", 1024, 5, 2), recall("balanced", 1024, 95, 2)}), kSelf, "");
  EXPECT_NE(page.find("<td class=\"part\">3/4</td>"), std::string::npos);
  EXPECT_NE(page.find("<td class=\"found\">2/2</td>"), std::string::npos);
  EXPECT_NE(page.find("passkey, balanced: 5/6"), std::string::npos);
}

TEST(ReportCharts, WhatCannotBeDrawnIsLeftOut) {
  json none = ppl("none", 0.1, 3);
  none["bits_total"] = nullptr;
  const Results results = results_of({ppl("fp16", 0, 16), ppl("balanced", 0.1, 3), none});
  const SettingColours colours({"fp16", "balanced", "none"});
  const auto charts = quality_charts(results.quality, colours);
  ASSERT_EQ(charts.size(), 2u);
  EXPECT_EQ(charts[0].data["series"].size(), 2u);  // no bits: nowhere to put it
  EXPECT_EQ(charts[1].data["series"].size(), 1u);  // FP16 does not diverge from itself, and there is no logarithm of 0
  EXPECT_EQ(charts[0].data["frontier"], json::parse("[[3.0, 0.1], [16.0, 0.0]]"));
}

TEST(ReportCharts, BarsHaveAPlaceForEachDepth) {
  const Results results = results_of({bench("fp16", 4096, 1.5), bench("fp16", 0, 1), bench("late", 4096, 2)});
  const auto charts = speed_charts(results.speed, SettingColours({"fp16", "late"}));
  const json bars = charts.back().data;
  EXPECT_EQ(bars["groups"], json({"0", "4,096"}));
  EXPECT_EQ(bars["series"][0]["points"][1][1], 1.5);
  EXPECT_EQ(bars["series"][1]["points"][0][1], nullptr);
  EXPECT_EQ(bars["series"][1]["points"][1][1], 2);
}

}  // namespace
}  // namespace tierkv::cli
