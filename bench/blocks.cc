#include "bench/blocks.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/tables.h"
#include "calib/calibration.h"
#include "quant/frame.h"

namespace tierkv::bench {

using quant::CodecSpec;
using quant::Side;

Result<BlockRun> BlockRun::encode(const CodecSpec& spec, Side side, Shape shape, const std::vector<float>& rows, uint32_t block,
                                  uint32_t dim) {
  calib::HeadTables tables;
  const bool calibrated = quant::needs_tables({spec, spec});
  if (calibrated) {
    TIERKV_ASSIGN_OR_RETURN(tables.calibration, tables_of(shape, dim));
  }
  auto made = quant::make_codec(spec, side, {block, dim}, calibrated ? &tables : nullptr);
  if (!made.ok()) return made.status();
  BlockRun run;
  run.codec_ = std::move(*made);
  run.block_ = block;
  run.dim_ = dim;
  run.blocks_.resize(rows.size() / dim / block);
  for (size_t i = 0; i < run.blocks_.size(); ++i) {
    run.blocks_[i].resize(run.codec_->bytes());
    TIERKV_RETURN_IF_ERROR(run.codec_->encode(rows.data() + i * block * dim, run.context(i), run.blocks_[i]));
  }
  return run;
}

quant::BlockContext BlockRun::context(size_t i) const {
  quant::BlockContext ctx;
  ctx.first_position = static_cast<uint32_t>(i) * block_;
  return ctx;
}

std::vector<float> BlockRun::decode() const {
  std::vector<float> rows(static_cast<size_t>(tokens()) * dim_);
  for (size_t i = 0; i < blocks_.size(); ++i) codec_->decode(blocks_[i], context(i), 0, block_, rows.data() + i * block_ * dim_);
  return rows;
}

std::vector<float> BlockRun::scores(const std::vector<float>& queries, uint32_t count) const {
  std::vector<float> framed = queries, out(static_cast<size_t>(count) * tokens());
  quant::to_frame(codec_->frame(), framed.data(), count, dim_);
  quant::Workspace ws;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    codec_->scores(blocks_[i], context(i), framed.data(), count, block_, out.data() + i * block_, tokens(), ws);
  }
  return out;
}

std::vector<float> BlockRun::accumulate(const std::vector<float>& weights, uint32_t count) const {
  std::vector<float> acc(static_cast<size_t>(count) * dim_, 0.0f);
  quant::Workspace ws;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    codec_->accumulate(blocks_[i], context(i), weights.data() + i * block_, tokens(), count, block_, acc.data(), ws);
  }
  quant::from_frame(codec_->frame(), acc.data(), count, dim_);
  return acc;
}

std::vector<quant::CodecPair> specs_to_measure() {
  std::vector<quant::CodecPair> specs;
  const auto add = [&](const std::string& text) {
    if (auto pair = quant::parse_codec_pair(text); pair.ok()) specs.push_back(*pair);
  };
  for (const quant::CodecRow& row : quant::codec_rows()) {
    for (int bits = row.min_bits; bits <= row.max_bits; ++bits) {
      const bool preset = bits == 8 || bits == 12 || bits == 15 || bits == 20;  // 1, 1.5, 1.875 and 2.5 of eighths
      if (row.parts > 1 && !preset) continue;
      CodecSpec spec;
      spec.id = row.id;
      spec.bits = static_cast<uint8_t>(bits);
      add(quant::to_string(spec));
    }
  }
  for (const char* text : {"kivi2-g32", "kivi2-g64", "kivi4-g32", "kivi2+clip", "kivi2+had", "kivi2+center+had", "kivi4+s8"}) {
    add(text);
  }
  return specs;
}

namespace {

std::vector<float> softmax_rows(std::vector<float> scores, uint32_t count, uint32_t tokens, uint32_t dim) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  for (uint32_t i = 0; i < count; ++i) {
    float* row = scores.data() + static_cast<size_t>(i) * tokens;
    const double top = *std::max_element(row, row + tokens);
    double sum = 0;
    for (uint32_t t = 0; t < tokens; ++t) sum += std::exp((row[t] - top) * scale);
    for (uint32_t t = 0; t < tokens; ++t) row[t] = static_cast<float>(std::exp((row[t] - top) * scale) / sum);
  }
  return scores;
}

// The largest difference relative to the largest magnitude there is.
double worst(std::span<const float> got, std::span<const double> expected) {
  double difference = 0, magnitude = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::fabs(got[i] - expected[i]);
    difference = std::isfinite(d) ? std::max(difference, d) : INFINITY;
    magnitude = std::max(magnitude, std::fabs(expected[i]));
  }
  return difference / magnitude;
}

}  // namespace

std::vector<float> attention_on_codes(const BlockRun& keys, const BlockRun& values, const std::vector<float>& queries,
                                      uint32_t count, uint32_t dim) {
  return values.accumulate(softmax_rows(keys.scores(queries, count), count, keys.tokens(), dim), count);
}

Status check_on_codes(const BlockRun& keys, const BlockRun& values, const std::vector<float>& queries, uint32_t count,
                      uint32_t dim) {
  const uint32_t tokens = keys.tokens();
  const std::vector<float> key_rows = keys.decode(), value_rows = values.decode();
  const std::vector<float> scores = keys.scores(queries, count);
  const std::vector<float> weights = softmax_rows(scores, count, tokens, dim);
  const std::vector<float> sums = values.accumulate(weights, count);

  std::vector<double> expected_scores(scores.size()), expected_sums(sums.size(), 0.0);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (uint32_t c = 0; c < dim; ++c) {
        dot += static_cast<double>(queries[i * dim + c]) * key_rows[t * dim + c];
        expected_sums[i * dim + c] += static_cast<double>(weights[static_cast<size_t>(i) * tokens + t]) * value_rows[t * dim + c];
      }
      expected_scores[static_cast<size_t>(i) * tokens + t] = dot;
    }
  }
  const double tolerance = std::max(keys.codec().tolerance(), values.codec().tolerance());
  if (const double e = worst(scores, expected_scores); !(e <= tolerance)) {
    return error(StatusCode::internal, "scores on codes differ from those of the decoded rows by ", e, " of the largest");
  }
  if (const double e = worst(sums, expected_sums); !(e <= tolerance)) {
    return error(StatusCode::internal, "weighted sums on codes differ from those of the decoded rows by ", e, " of the largest");
  }
  return {};
}

}  // namespace tierkv::bench
