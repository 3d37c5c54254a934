// recall_output.cc — sums, tables, JSON.
#include "recall_output.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "output.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr size_t kMissesShown = 40;

struct Sum {
  size_t total = 0, correct = 0, free_correct = 0, changed = 0, leading = 0, words = 0;
  uint64_t read_blocks = 0, skipped_blocks = 0;
  double skipped_mass = 0.0;                          // the most
  double p_digits = 0.0, p_all = 0.0, p_token = 0.0;  // added up

  void add(const RecallCell& cell) {
    for (const RecallRecord& record : cell.records) {
      const RecallAnswer& answer = record.answer;
      ++total;
      correct += answer.correct, free_correct += answer.free_correct, changed += record.changed;
      leading += answer.leading, words += answer.words;
      read_blocks += answer.read_blocks, skipped_blocks += answer.skipped_blocks;
      skipped_mass = std::max(skipped_mass, answer.skipped_mass);
      p_digits += answer.p_digits, p_all += answer.p_all, p_token += answer.p_token;
    }
  }
  double mean(double sum) const { return total == 0 ? 0.0 : sum / static_cast<double>(total); }
  double leading_share() const { return words == 0 ? 0.0 : static_cast<double>(leading) / static_cast<double>(words); }
  std::string found() const {
    const std::string text = format("%zu/%zu", correct, total);
    return total == 0 ? dim("-") : correct == total ? green(text) : correct == 0 ? red(text) : text;
  }
};

// In quotation marks, in one line, and printable whatever was said: a token may be half a character.
std::string quoted(const std::string& said) { return json(said).dump(-1, ' ', false, json::error_handler_t::replace); }

template <class Value, class Member>
std::vector<Value> distinct(const std::vector<RecallCell>& cells, const std::string& task, Member member) {
  std::vector<Value> values;
  for (const RecallCell& cell : cells) {
    if (cell.task == task && std::find(values.begin(), values.end(), cell.*member) == values.end()) values.push_back(cell.*member);
  }
  return values;
}

// A row for each setting and length; a column for each value of a member of the cells, and what they come to in all.
template <class Value, class Member, class Name>
void print_table(const std::vector<RecallCell>& cells, const std::string& task, Member member, Name name) {
  std::vector<Value> columns = distinct<Value>(cells, task, member);
  std::vector<std::string> headers = {"<" + task, "ctx"};
  for (const Value& column : columns) headers.push_back(name(column));
  const bool quote = task == "quote";
  headers.insert(headers.end(),
                 {"in all", quote ? "leading words" : "p, digits", quote ? "p, token" : "p, all", "free", "changed"});
  Table table(headers);
  std::vector<std::pair<SettingSpec, uint32_t>> rows;
  for (const RecallCell& cell : cells) {
    const std::pair row(cell.setting, cell.ctx);
    if (cell.task == task && std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
  }
  for (const auto& [setting, ctx] : rows) {
    Sum all;
    std::vector<Sum> sums(columns.size());
    for (const RecallCell& cell : cells) {
      if (cell.task != task || !(cell.setting == setting) || cell.ctx != ctx) continue;
      all.add(cell);
      sums[static_cast<size_t>(std::find(columns.begin(), columns.end(), cell.*member) - columns.begin())].add(cell);
    }
    std::vector<std::string> row = {setting.label(), human_count(ctx)};
    for (const Sum& sum : sums) row.push_back(sum.found());
    row.push_back(bold(format("%zu/%zu", all.correct, all.total)));
    row.push_back(quote ? format("%.1f%%", 100.0 * all.leading_share()) : format("%.4f", all.mean(all.p_digits)));
    row.push_back(format("%.4f", all.mean(quote ? all.p_token : all.p_all)));
    row.push_back(format("%zu", all.free_correct));
    row.push_back(format("%zu", all.changed));
    table.add(row);
  }
  std::printf("%s\n", table.str().c_str());
}

void print_misses(const std::vector<RecallCell>& cells) {
  size_t misses = 0;
  for (const RecallCell& cell : cells) {
    for (const RecallRecord& record : cell.records) {
      if (record.answer.correct || ++misses > kMissesShown) continue;
      if (misses == 1) std::printf("Missed:\n");
      const RecallAnswer& answer = record.answer;
      const std::string where =
          format("  %s, %s, %s at %g%%", cell.setting.label().c_str(), cell.task.c_str(), cell.kind.c_str(), cell.depth);
      if (cell.task == "quote") {
        std::printf("%s: %u of %u words, then %s\n", where.c_str(), answer.leading, answer.words, quoted(answer.said).c_str());
      } else {
        std::printf("%s: %s for %s (p %.4f); freely %s\n", where.c_str(), quoted(answer.said).c_str(),
                    record.question->expected.c_str(), answer.p_digits, quoted(answer.free).c_str());
      }
    }
  }
  if (misses > kMissesShown) std::printf("  and %zu more, in --json\n", misses - kMissesShown);
  if (misses > 0) std::printf("\n");
}

json answer_json(const RecallRecord& record) {
  const RecallAnswer& answer = record.answer;
  json value = {{"trial", record.reading->trial},
                {"stretch", record.reading->stretch},
                {"away", record.question->away},
                {"expected", record.question->expected},
                {"said", answer.said},
                {"correct", answer.correct},
                {"p_all", answer.p_all},
                {"p_token", answer.p_token},
                {"changed", record.changed}};
  if (record.question->task == "quote") {
    value["leading_words"] = answer.leading;
    value["words"] = answer.words;
  } else {
    value["p_digits"] = answer.p_digits;
    value["free"] = answer.free;
    value["free_correct"] = answer.free_correct;
  }
  return value;
}

}  // namespace

std::vector<RecallCell> cells_of(const std::vector<SettingSpec>& settings, const std::vector<Reading>& readings,
                                 const std::vector<std::vector<std::vector<RecallAnswer>>>& answers) {
  std::vector<RecallCell> cells;
  for (size_t s = 0; s < settings.size(); ++s) {
    std::map<std::tuple<std::string, uint32_t, std::string, double>, size_t> index;
    for (size_t r = 0; r < readings.size(); ++r) {
      for (size_t q = 0; q < readings[r].questions.size(); ++q) {
        const Question& question = readings[r].questions[q];
        const auto [found, is_new] =
            index.emplace(std::tuple(question.task, readings[r].ctx, readings[r].kind, question.depth), cells.size());
        if (is_new) cells.push_back({settings[s], question.task, readings[r].kind, readings[r].ctx, question.depth, {}});
        const RecallAnswer& answer = answers[s][r][q];
        cells[found->second].records.push_back({&readings[r], &question, answer, answer.free != answers[0][r][q].free});
      }
    }
  }
  return cells;
}

json cell_json(const RecallCell& cell, const Engine& engine, const RecallRequest& request) {
  Sum sum;
  sum.add(cell);
  json wrong = json::array(), answers = json::array();
  for (const RecallRecord& record : cell.records) {
    if (!record.answer.correct) wrong.push_back(record.answer.said + " for " + record.question->expected);
    answers.push_back(answer_json(record));
  }
  const bool generated = std::find(request.kinds.begin(), request.kinds.end(), cell.kind) != request.kinds.end();
  json value = {{"command", "recall"},
                {"model", engine.name()},
                {"title", engine.title()},
                {"task", cell.task},
                {"kind", generated ? cell.kind : "file"},
                {"haystack", generated ? "generated" : cell.kind},
                {"kv", cell.setting.kv},
                {"stock", cell.setting.stock},
                {"reference", "fp16"},
                {"ctx", cell.ctx},
                {"depth", cell.depth},
                {"correct", sum.correct},
                {"total", sum.total},
                {"free_correct", sum.free_correct},
                {"free_changed", sum.changed},
                {"p_all", sum.mean(sum.p_all)},
                {"p_token", sum.mean(sum.p_token)},
                {"wrong", wrong},
                {"answers", answers},
                {"seed", request.options.seed},
                {"by_token", request.by_token},
                {"question", request.question_by_token() ? "token" : "prompt"},
                {"keys", cell.task == "lines" ? std::max<size_t>(request.keys, request.depths.size()) : 1}};
  if (cell.task == "quote") {
    value["leading_words"] = sum.leading;
    value["words"] = sum.words;
    value["leading_share"] = sum.leading_share();
  } else {
    value["p_digits"] = sum.mean(sum.p_digits);
  }
  if (chooses_blocks(cell.setting)) add_skipped(value, sum.read_blocks, sum.skipped_blocks, sum.skipped_mass);
  if (request.deep > 0.0 && !cell.setting.stock) value["deep"] = request.deep;
  return value;
}

void print_recall(const std::vector<RecallCell>& cells, const RecallRequest& request) {
  for (const std::string& task : request.tasks) {
    print_table<std::string>(cells, task, &RecallCell::kind, [](const std::string& kind) { return kind; });
    if (request.depths.size() > 1)
      print_table<double>(cells, task, &RecallCell::depth, [](double depth) { return format("%g%%", depth); });
  }
  print_misses(cells);
  std::printf("%s\n",
              dim("Found with nothing but digits to choose from; p: probability of the right number among those, and among all "
                  "tokens.\nfree: right without that constraint; changed: said something else than FP16.")
                  .c_str());
}

}  // namespace tierkv::cli
