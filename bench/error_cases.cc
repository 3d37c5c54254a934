// Attention error by codec: softmax(q·K^T)·V on codes against double precision on the rows as they were.
#include <cstdio>

#include "base/status_macros.h"
#include "bench/blocks.h"
#include "bench/data.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kDim = 128, kBlock = 128, kQueries = 32;
constexpr double kSpread = 2.0;

struct ErrorFigures {
  double key_bits = 0, value_bits = 0;
  double key_only = 0, value_only = 0, both = 0;  // relative error of the output with keys, values or both in the codec
};

struct Problem {
  Shape shape;  // of the keys
  std::vector<float> keys, values, queries;
  std::vector<double> exact;
};

Problem make_problem(Shape shape, uint32_t tokens) {
  Problem p;
  p.shape = shape;
  p.keys = make_rows(shape, tokens, kDim, 11);
  // Values of real models have no outlier channels to speak of.
  p.values = make_rows(shape == Shape::outlier ? Shape::gaussian : shape, tokens, kDim, 12);
  p.queries = make_queries(p.keys, kQueries, kDim, kSpread, 13);
  p.exact = attention_reference(p.queries.data(), kQueries, p.keys.data(), p.values.data(), tokens, kDim, kDim);
  return p;
}

Result<ErrorFigures> measure_error(const quant::CodecPair& spec, const Problem& p) {
  TIERKV_ASSIGN_OR_RETURN(const BlockRun keys, BlockRun::encode(spec.key, quant::Side::key, p.shape, p.keys, kBlock, kDim));
  TIERKV_ASSIGN_OR_RETURN(const BlockRun values, BlockRun::encode(spec.value, quant::Side::value, p.shape, p.values, kBlock, kDim));
  TIERKV_RETURN_IF_ERROR(check_on_codes(keys, values, p.queries, kQueries, kDim));
  ErrorFigures figures;
  figures.key_bits = keys.bits_per_value();
  figures.value_bits = values.bits_per_value();
  figures.both = relative_error(attention_on_codes(keys, values, p.queries, kQueries, kDim), p.exact);
  const std::vector<float> key_rows = keys.decode(), value_rows = values.decode();
  const uint32_t tokens = keys.tokens();
  const auto with = [&](const std::vector<float>& k, const std::vector<float>& v) {
    const std::vector<double> out = attention_reference(p.queries.data(), kQueries, k.data(), v.data(), tokens, kDim, kDim);
    return relative_error(std::vector<float>(out.begin(), out.end()), p.exact);
  };
  figures.key_only = with(key_rows, p.values);
  figures.value_only = with(p.keys, value_rows);
  return figures;
}

}  // namespace

void add_error_cases(std::vector<Case>& cases) {
  for (const quant::CodecPair& spec : specs_to_measure()) {
    for (Shape shape : kShapes) {
      const std::string name = "quant/" + quant::to_string(spec) + "/error/" + shape_name(shape);
      cases.push_back(
          {name, [=](const Settings& settings, const Emit& emit) -> Status {
             const Problem p = make_problem(shape, settings.quick ? 256 : 1024);
             TIERKV_ASSIGN_OR_RETURN(const ErrorFigures f, measure_error(spec, p));
             Row row(name);
             row.number("bits", (f.key_bits + f.value_bits) / 2).number("key_bits", f.key_bits).number("value_bits", f.value_bits);
             row.number("error", f.both).number("error_keys_only", f.key_only).number("error_values_only", f.value_only);
             emit(row);
             return {};
           }});
    }
  }
}

Status print_error_table() {
  constexpr uint32_t kTokens = 1024;
  std::vector<Problem> problems;
  for (Shape shape : kShapes) problems.push_back(make_problem(shape, kTokens));
  std::printf("| codec | bits, keys / values | Gaussian | heavy-tailed | outlier channels |\n|---|---|---|---|---|\n");
  for (const quant::CodecPair& spec : specs_to_measure()) {
    std::string line;
    for (const Problem& p : problems) {
      TIERKV_ASSIGN_OR_RETURN(const ErrorFigures f, measure_error(spec, p));
      char text[160];
      if (line.empty()) {
        std::snprintf(text, sizeof text, "| `%s` | %.3f / %.3f |", quant::to_string(spec).c_str(), f.key_bits, f.value_bits);
        line = text;
      }
      std::snprintf(text, sizeof text, " %.3g (%.2g / %.2g) |", f.both, f.key_only, f.value_only);
      line += text;
    }
    std::printf("%s\n", line.c_str());
  }
  return {};
}

}  // namespace tierkv::bench
