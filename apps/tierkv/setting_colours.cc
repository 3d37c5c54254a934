// setting_colours.cc — the table of the build, then a hash.
#include "setting_colours.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

namespace tierkv::cli {

extern const char* const kEmbeddedColours;  // made by the build

namespace {

// FNV-1a: the same on every machine, and short enough to say again in tools/plots.py.
uint32_t hash_of(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace

SettingColours::SettingColours(std::vector<std::string> names) {
  static const nlohmann::json table = nlohmann::json::parse(kEmbeddedColours);
  const auto others = table.at("others").get<std::vector<std::string>>();
  std::sort(names.begin(), names.end());  // so that the order of results decides nothing
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::set<size_t> taken;
  for (const std::string& name : names) {
    if (const auto known = table.at("settings").find(name); known != table.at("settings").end()) {
      colours_[name] = known->get<std::string>();
      continue;
    }
    size_t at = hash_of(name) % others.size();
    while (taken.size() < others.size() && taken.contains(at)) at = (at + 1) % others.size();
    taken.insert(at);
    colours_[name] = others[at];
  }
}

std::string SettingColours::of(const std::string& name) const {
  const auto found = colours_.find(name);
  return found == colours_.end() ? "#808080" : found->second;
}

}  // namespace tierkv::cli
