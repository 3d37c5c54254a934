// Throughput of every codec on one block of 128 tokens x 128 channels: encode, decode, scores and accumulate for a GQA group of 4
// queries. gbps counts the packed bytes written or read; ns_per_token is the figure to compare codecs by.
#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "bench/blocks.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "quant/frame.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kDim = 128, kBlock = 128, kQueries = 4;

// Encoding is right when what comes back is near what went in: within the step of a min/max grid over a wide Gaussian, and never
// finer than the eight bits of precision that bf16 has.
Status check_round_trip(const BlockRun& run, const std::vector<float>& rows) {
  const std::vector<double> exact(rows.begin(), rows.end());
  const double e = relative_error(run.decode(), exact);
  const double allowed = 8.0 * std::exp2(-std::min(10.0, std::floor(run.bits_per_value())));
  if (e <= allowed) return {};
  return error(StatusCode::internal, "decoded rows are off by ", e, " of their norm, at most ", allowed, " is plausible");
}

Row row_of(const std::string& name, const Timing& timing, const BlockRun& run) {
  Row row(name);
  row.timing(timing).number("ns_per_token", timing.median_ns / kBlock);
  row.number("gbps", static_cast<double>(run.codec().bytes()) / timing.median_ns).number("bits", run.bits_per_value());
  return row;
}

Status run_codec(const quant::CodecPair& spec, const std::string& prefix, const Settings& settings, const Emit& emit) {
  const std::vector<float> rows = make_rows(Shape::gaussian, kBlock, kDim, 21);
  const std::vector<float> queries = make_queries(rows, kQueries, kDim, 2.0, 22);
  TIERKV_ASSIGN_OR_RETURN(const BlockRun keys, BlockRun::encode(spec.key, quant::Side::key, Shape::gaussian, rows, kBlock, kDim));
  TIERKV_ASSIGN_OR_RETURN(const BlockRun values,
                          BlockRun::encode(spec.value, quant::Side::value, Shape::gaussian, rows, kBlock, kDim));
  TIERKV_RETURN_IF_ERROR(check_round_trip(keys, rows));
  TIERKV_RETURN_IF_ERROR(check_round_trip(values, rows));
  TIERKV_RETURN_IF_ERROR(check_on_codes(keys, values, queries, kQueries, kDim));

  const quant::BlockContext ctx;
  const std::string shape = "/" + std::to_string(kBlock) + "x" + std::to_string(kDim);
  std::vector<float> decoded(rows.size());
  for (const BlockRun* run : {&keys, &values}) {
    const std::string side = run == &keys ? "_k" : "_v";
    std::vector<std::byte> out(run->codec().bytes());
    Status status;
    const Timing encode = measure(settings, [&] { status = run->codec().encode(rows.data(), ctx, out); });
    TIERKV_RETURN_IF_ERROR(status);
    emit(row_of(prefix + "encode" + side + shape, encode, *run));
    const Timing decode = measure(settings, [&] { run->codec().decode(run->block(0), ctx, 0, kBlock, decoded.data()); });
    emit(row_of(prefix + "decode" + side + shape, decode, *run));
  }

  quant::Workspace ws;
  std::vector<float> framed = queries, scores(kQueries * kBlock), acc(kQueries * kDim, 0.0f);
  quant::to_frame(keys.codec().frame(), framed.data(), kQueries, kDim);
  const std::string group = shape + "x" + std::to_string(kQueries);
  emit(row_of(prefix + "scores" + group,
              measure(settings,
                      [&] { keys.codec().scores(keys.block(0), ctx, framed.data(), kQueries, kBlock, scores.data(), kBlock, ws); }),
              keys));
  const std::vector<float> weights(kQueries * kBlock, 1.0f / kBlock);
  emit(row_of(
      prefix + "accumulate" + group,
      measure(settings,
              [&] { values.codec().accumulate(values.block(0), ctx, weights.data(), kBlock, kQueries, kBlock, acc.data(), ws); }),
      values));
  return {};
}

}  // namespace

void add_codec_cases(std::vector<Case>& cases) {
  for (const quant::CodecPair& spec : specs_to_measure()) {
    const std::string prefix = "quant/" + quant::to_string(spec) + "/";
    cases.push_back(
        {prefix + "ops", [=](const Settings& settings, const Emit& emit) { return run_codec(spec, prefix, settings, emit); }});
  }
}

}  // namespace tierkv::bench
