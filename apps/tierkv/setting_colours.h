// setting_colours.h — one colour for each cache setting, by its name, in every chart.
//
// Settings that are often shown have a colour of their own (report_assets/colours.json, which tools/plots.py reads as well). Others
// take the colour of the list that a hash of their name points at, or the next one that no other of `names` has: one page never
// shows two settings in one colour while there are colours left, and the same names get the same colours in any order.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tierkv::cli {

class SettingColours {
 public:
  explicit SettingColours(std::vector<std::string> names);
  // "#rrggbb"; a name that was not among `names` is grey.
  std::string of(const std::string& name) const;

 private:
  std::map<std::string, std::string> colours_;
};

}  // namespace tierkv::cli
