// Encoding and unpacking whole blocks of one layer of 8 KV heads, one thread.
//
// graduate: keys and values of one block of 128 tokens into the codec, all heads. unpack: 1,024 tokens back to rows, keys and
// values of all heads, which ADR-004 wants in under a millisecond at 2 bits.
#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "bench/blocks.h"
#include "bench/data.h"
#include "bench/harness.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 128, kBlock = 128, kUnpacked = 1024;

struct Sides {
  std::vector<float> rows[2];
  std::vector<BlockRun> runs;  // keys, then values

  static Result<Sides> make(const std::string& text, uint32_t tokens) {
    TIERKV_ASSIGN_OR_RETURN(const quant::CodecSpec spec, quant::parse_codec(text));
    Sides sides;
    for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
      std::vector<float>& rows = sides.rows[side == quant::Side::value];
      rows = make_rows(side == quant::Side::key ? Shape::outlier : Shape::gaussian, tokens, kDim, 81 + static_cast<uint64_t>(side));
      TIERKV_ASSIGN_OR_RETURN(BlockRun run, BlockRun::encode(spec, side, Shape::outlier, rows, kBlock, kDim));
      const std::vector<double> exact(rows.begin(), rows.end());
      const double e = relative_error(run.decode(), exact);
      // The step of a min/max grid over a group with outliers; at few bits the codecs lose less than that.
      const double allowed = std::min(0.6, 8.0 * std::exp2(-std::floor(run.bits_per_value())));
      if (!(e <= allowed))
        return error(StatusCode::internal, "decoded rows are off by ", e, " of their norm, at most ", allowed, " is plausible");
      sides.runs.push_back(std::move(run));
    }
    return sides;
  }
  double bits() const { return (runs[0].bits_per_value() + runs[1].bits_per_value()) / 2; }
};

Row row_of(const std::string& name, const Timing& timing, uint32_t tokens, double bits) {
  Row row(name);
  row.attention(1, timing).number("ns_per_token", timing.median_ns / tokens);
  row.number("gbps", bits / 8 * 2 * kHeads * kDim * tokens / timing.median_ns).number("bits", bits).text("peer", "");
  return row;
}

// Every head encodes the same rows: the time does not depend on them.
Status run_graduate(const std::string& name, const std::string& codec, const Settings& settings, const Emit& emit) {
  TIERKV_ASSIGN_OR_RETURN(const Sides sides, Sides::make(codec, kBlock));
  std::vector<std::byte> out[2];
  for (int i = 0; i < 2; ++i) out[i].resize(sides.runs[i].codec().bytes());
  Status status;
  const Timing timing = measure(settings, [&] {
    for (uint32_t head = 0; head < kHeads && status.ok(); ++head) {
      for (int i = 0; i < 2 && status.ok(); ++i) status = sides.runs[i].codec().encode(sides.rows[i].data(), {}, out[i]);
    }
  });
  TIERKV_RETURN_IF_ERROR(status);
  emit(row_of(name, timing, kBlock, sides.bits()));
  return {};
}

Status run_unpack(const std::string& name, const std::string& codec, const Settings& settings, const Emit& emit) {
  TIERKV_ASSIGN_OR_RETURN(const Sides sides, Sides::make(codec, kUnpacked));
  std::vector<float> out(kUnpacked * kDim);
  const Timing timing = measure(settings, [&] {
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (const BlockRun& run : sides.runs) {
        for (uint32_t b = 0; b < kUnpacked / kBlock; ++b)
          run.codec().decode(run.block(b), {}, 0, kBlock, out.data() + size_t{b} * kBlock * kDim);
      }
    }
  });
  emit(row_of(name, timing, kUnpacked, sides.bits()));
  return {};
}

}  // namespace

void add_encode_cases(std::vector<Case>& cases) {
  for (const char* codec :
       {"int8", "kivi4-g64", "kivi3-g64", "kivi2-g64", "rot4", "rot3", "rot2", "turbo2", "turbo3", "turbo4", "klt1.875"}) {
    const std::string name = std::string("quant/") + codec + "/graduate/128x8x128";
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run_graduate(name, codec, settings, emit); }});
  }
  for (const char* codec : {"kivi2-g64", "rot2", "turbo2", "klt1.875"}) {
    const std::string name = std::string("quant/") + codec + "/unpack/1Kx8x128";
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run_unpack(name, codec, settings, emit); }});
  }
}

}  // namespace tierkv::bench
