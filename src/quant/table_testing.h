// table_testing.h — tables for every row of the registry, so that the generic tests leave none out: a model of one head for any
// head_dim, the rows it has, and the calibration that was learnt from such rows.
//
// Rows are a mean and a width a channel, one channel far out. Keys of a calibrated codec are turned to their positions as RoPE
// would have them: its tables are about keys that turn.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "quant/registry.h"
#include "solve/testing.h"

namespace tierkv::quant::testing {

// tokens x head_dim, before RoPE. The channels are the same for every seed.
inline std::vector<float> random_rows(const BlockShape& shape, uint32_t seed) {
  std::mt19937 channels(shape.head_dim), rng(seed);
  std::normal_distribution<float> normal, other;
  std::vector<float> rows(static_cast<size_t>(shape.tokens) * shape.head_dim), gain(shape.head_dim, 1.0f), shift(shape.head_dim);
  for (uint32_t c = 0; c < shape.head_dim; ++c) shift[c] = 0.5f * other(channels);
  gain[3] = 8.0f;  // one outlier channel with a mean of its own
  shift[3] = 10.0f;
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = shift[i % shape.head_dim] + gain[i % shape.head_dim] * normal(rng);
  return rows;
}

class TableModel {
 public:
  // Solved once a program. Threads: any.
  static const TableModel& of(uint32_t head_dim) {
    static std::mutex mutex;
    static std::map<uint32_t, std::unique_ptr<TableModel>> models;
    std::lock_guard lock(mutex);
    std::unique_ptr<TableModel>& model = models[head_dim];
    if (!model) model.reset(new TableModel(head_dim));
    return *model;
  }

  const Status& status() const { return status_; }
  CalibrationPtr calibration() const { return calibration_; }
  calib::HeadTables tables() const { return {calibration_, 0, 0}; }
  // Rows of positions first, first + 1, ..., as attention sees them.
  std::vector<float> turned(std::vector<float> rows, uint32_t first) const {
    const uint32_t tokens = static_cast<uint32_t>(rows.size() / head_dim_);
    for (uint32_t t = 0; t < tokens; ++t) {
      float* row = rows.data() + static_cast<size_t>(t) * head_dim_;
      turner_.turn(row, 1, first + t, row);
    }
    return rows;
  }

 private:
  explicit TableModel(uint32_t head_dim) : head_dim_(head_dim), turner_(solve::usual_rope(head_dim), head_dim) {
    solve::SampleRows sample;
    sample.tokens = 1024;
    sample.head_dim = head_dim;
    const std::vector<float> keys = turned(random_rows({sample.tokens, head_dim}, 1), sample.first);
    const std::vector<float> values = random_rows({sample.tokens, head_dim}, 2);
    sample.keys = keys;
    sample.values = values;
    auto made = solve::all_tables(solve::statistics_of(sample, turner_.rope()));
    status_ = made.status();
    if (made.ok()) calibration_ = std::move(*made);
  }

  const uint32_t head_dim_;
  calib::Turner turner_;
  CalibrationPtr calibration_;
  Status status_;
};

// kltk leaves values to another codec.
inline bool has_side(const CodecRow& row, Side side) { return side == Side::key || row.values == nullptr; }

// With tables where the row needs some.
inline Result<std::unique_ptr<Codec>> make_any_codec(const CodecSpec& spec, Side side, const BlockShape& shape) {
  const CodecRow* row = find_codec_row(spec.id);
  if (row == nullptr || !row->calibrated()) return make_codec(spec, side, shape);
  const TableModel& model = TableModel::of(shape.head_dim);
  if (!model.status().ok()) return model.status();
  const calib::HeadTables tables = model.tables();
  return make_codec(spec, side, shape, &tables);
}

// Every width of a row, or, where widths are parts of a bit, some of them: the ends, whole bits and what the presets use.
inline std::vector<int> widths_of(const CodecRow& row) {
  std::vector<int> widths;
  for (int bits = row.min_bits; bits <= row.max_bits; ++bits) {
    if (row.parts == 1 || bits == row.min_bits || bits == row.max_bits || bits == 8 || bits == 12 || bits == 15 || bits == 20) {
      widths.push_back(bits);
    }
  }
  return widths;
}

inline bool calibrated(const Codec& codec) {
  const CodecRow* row = find_codec_row(codec.spec().id);
  return row != nullptr && row->calibrated();
}

// Bits of a code on average; `otherwise` where the row has one width.
inline double width_of(const Codec& codec, double otherwise) {
  const CodecRow* row = find_codec_row(codec.spec().id);
  return codec.spec().bits == 0 ? otherwise : static_cast<double>(codec.spec().bits) / row->parts;
}

}  // namespace tierkv::quant::testing
