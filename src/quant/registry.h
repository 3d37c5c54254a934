// registry.h — every codec there is: one row each. Tests, benchmarks, the command line and the C API iterate this table.
//
// Text form of a spec: NAME[BITS][-gGROUP][+modifier…], for example "fp16", "kivi2", "kivi4-g32", "kivi2-g64+s8+clip", "rot2",
// "klt1.875", "klt1.5+top4". Two of them with a slash, "rot3/rot2", give keys and values different codecs. A codec for keys alone
// takes its row's values: "kltk1.5" is "kltk1.5/mid2".
#pragma once

#include "quant/codec.h"

namespace tierkv::calib {
struct HeadTables;
}

namespace tierkv::quant {

struct CodecRow {
  uint16_t id;          // stored on disk; never reused
  const char* name;     // "kivi"
  const char* summary;  // one line for --help and docs
  uint8_t min_bits;     // 0, 0: the row has one width and its name takes no number
  uint8_t max_bits;
  uint16_t allowed_flags;  // CodecSpec::Flag
  bool takes_group;
  // Makes the codec; refuses shapes and groups that do not fit with a message that says what does.
  Result<std::unique_ptr<Codec>> (*make)(const CodecSpec& spec, Side side, const BlockShape& shape);
  // For a codec that works with the calibrated tables of one KV head; `make` is null then.
  Result<std::unique_ptr<Codec>> (*make_calibrated)(const CodecSpec& spec, Side side, const BlockShape& shape,
                                                    const calib::HeadTables& tables) = nullptr;
  uint8_t parts = 1;             // widths count in this part of a bit: 8 for eighths
  const char* values = nullptr;  // the values' codec of a row that only has keys

  bool calibrated() const { return make_calibrated != nullptr; }
};

std::span<const CodecRow> codec_rows();
const CodecRow* find_codec_row(uint16_t id);

// Parses one side ("kivi2-g64"). Errors name the text, the problem and the allowed names.
Result<CodecSpec> parse_codec(std::string_view text);
std::string to_string(const CodecSpec& spec);

struct CodecPair {
  CodecSpec key, value;
  bool operator==(const CodecPair&) const = default;
};
// "rot2" or "rot3/rot2".
Result<CodecPair> parse_codec_pair(std::string_view text);
std::string to_string(const CodecPair& pair);

// What the names "auto", "auto1" and "auto3" stand for, and "auto-cuda", "auto1-cuda" and "auto3-cuda", which have fast kernels on
// a CUDA device without tables too; any other name as it is. parse_codec_pair() takes them for the uncalibrated ones.
std::string_view resolve_auto(std::string_view name, bool calibrated);

// What "auto" chooses from without a calibration, smallest first, by the rows of each layer (plan::Planner::choose()).
std::span<const std::string_view> fallback_choices();

// The archive codec "adaptive" is ADR-004's choice by the length of the sequence at the moment a block is made. It is no codec
// of its own: blocks say which of these they are in. `plain` stands in for `codec` where a calibration has no tables for it.
inline constexpr std::string_view kAdaptive = "adaptive";
struct AdaptiveStep {
  uint32_t below;  // tokens; the last step has no end
  const char* codec;
  const char* plain;
};
inline constexpr size_t kAdaptiveSteps = 3;
std::span<const AdaptiveStep, kAdaptiveSteps> adaptive_steps();

// `tables`: of the KV head, for codecs that need them (failed_precondition without).
Result<std::unique_ptr<Codec>> make_codec(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables* tables = nullptr);

// Whether a block of these codecs is made with calibrated tables: then it belongs to one KV head of one layer.
bool needs_tables(const CodecPair& pair);

// Whether its encoder asks BlockContext::guide where queries look.
bool takes_guide(const CodecSpec& key);

// The same codec at another width, clamped to what its row has; codecs of one width come back unchanged.
CodecSpec with_bits(CodecSpec spec, int bits);
// Its width in whole bits, rounded up; 0 where the row has one width.
int whole_bits(const CodecSpec& spec);

}  // namespace tierkv::quant
