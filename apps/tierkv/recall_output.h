// recall_output.h — answers counted in cells, and shown: tables by kind of text and by depth, misses, JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval_common.h"
#include "recall_run.h"

namespace tierkv::cli {

// An answer, with where it belongs.
struct RecallRecord {
  const Reading* reading = nullptr;
  const Question* question = nullptr;
  RecallAnswer answer;
  bool changed = false;  // the free answer is not the reference's
};

// The answers of one setting to one task in one kind of text, at one length and one depth.
struct RecallCell {
  SettingSpec setting;
  std::string task, kind;
  uint32_t ctx = 0;
  double depth = 0.0;
  std::vector<RecallRecord> records;
};

// By setting, task, length, kind and depth, in order of appearance. answers[s][r] are setting s's to readings[r]; setting 0 is the
// reference.
std::vector<RecallCell> cells_of(const std::vector<SettingSpec>& settings, const std::vector<Reading>& readings,
                                 const std::vector<std::vector<std::vector<RecallAnswer>>>& answers);

nlohmann::json cell_json(const RecallCell& cell, const Engine& engine, const RecallRequest& request);
// To stdout: a table for each task, the misses behind them.
void print_recall(const std::vector<RecallCell>& cells, const RecallRequest& request);

}  // namespace tierkv::cli
