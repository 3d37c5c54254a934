#include "cache/learning_text.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace tierkv::cache {
namespace {

std::string with_commas(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

// Of the first layer that has one, or where layers choose "even3/mid2 in 24 layers, even4/mid2 in 6"; empty: none has.
std::string archive_of(const plan::Plans& plans) {
  std::vector<std::pair<std::string, uint32_t>> names;  // with how many layers have it
  for (uint32_t l = 0; l < plans.num_layers(); ++l) {
    const std::string name = plans.archive_codec(l);
    if (name.empty() || plans.layer(l, 0).ring) continue;
    const auto known = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == name; });
    if (known == names.end()) names.emplace_back(name, 1);
    else ++known->second;
  }
  if (names.empty()) return std::string();
  if (names.size() == 1 || plans.chosen().of == 0) return names[0].first;
  std::string text;
  for (const auto& [name, layers] : names) {
    text += (text.empty() ? name + " in " : ", " + name + " in ") + std::to_string(layers);
    if (&name == &names[0].first) text += layers == 1 ? " layer" : " layers";
  }
  return text;
}

// Why the archive is what it is, where the model's rows decide.
std::string choice_text(const plan::Plans& plans) {
  const plan::Plans::Chosen chosen = plans.chosen();
  if (chosen.of == 0) return std::string();
  if (chosen.layers == 0) return ", until the first old rows of each layer choose";
  if (chosen.layers == chosen.of) return ", chosen by the model's own rows";
  return ", chosen by the model's own rows in " + std::to_string(chosen.layers) + " of " + std::to_string(chosen.of) + " layers";
}

std::string meanwhile(const plan::Plans& plans) {
  for (uint32_t l = 0; l < plans.num_layers(); ++l) {
    const plan::LayerPlan plan = plans.layer(l, 0);
    if (!plan.waiting) continue;
    const int bits = quant::whole_bits(plan.warm_codec->pair.key);
    return "; older tokens wait at " + std::to_string(bits != 0 ? bits : 16) + " bits";
  }
  const std::string archive = archive_of(plans);
  return archive.empty() ? archive : "; archive " + archive + " meanwhile";
}

bool is_calibrated(const plan::Plans& plans) {
  for (uint32_t l = 0; l < plans.num_layers(); ++l) {
    if (const plan::LayerPlan plan = plans.layer(l, 0); plan.archive_codec && plan.archive_codec->calibration) return true;
  }
  return false;
}

std::string bits_text(double bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f bits", bits);
  return text;
}

std::string archive_text(const plan::Plans& plans) {
  const std::string archive = archive_of(plans);
  if (archive.empty()) return "no archive";
  return "archive " + archive + (is_calibrated(plans) ? ", calibrated, " : ", not calibrated, ") + bits_text(plans.archive_bits()) +
         choice_text(plans);
}

}  // namespace

std::string learning_sentence(const LearningReport& report, const std::string& note, const plan::Plans& plans) {
  const std::string more = note.empty() ? note : "; " + note;
  switch (report.phase) {
    case LearningPhase::gathering:
      return "learning this model: " + with_commas(report.tokens) + " of " + with_commas(report.wanted) + " tokens" +
             meanwhile(plans) + more;
    case LearningPhase::solving:
      return "learning this model: making tables of " + with_commas(report.tokens) + " tokens" + meanwhile(plans) + more;
    case LearningPhase::done: return "calibrated; archive " + bits_text(plans.archive_bits()) + more;
    case LearningPhase::refused: return archive_text(plans) + ": nothing was learned: " + note;
    case LearningPhase::off: break;
  }
  return archive_text(plans) + more;
}

}  // namespace tierkv::cache
