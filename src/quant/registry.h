// registry.h — every codec there is: one row each. Tests, benchmarks, the command line and the C API iterate this table.
//
// Text form of a spec: NAME[BITS][-gGROUP][+modifier…], for example "fp16", "kivi2", "kivi4-g32", "kivi2-g64+s8+clip", "rot2".
// Two of them with a slash, "rot3/rot2", give keys and values different codecs.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

struct CodecRow {
  uint16_t id;              // stored on disk; never reused
  const char* name;         // "kivi"
  const char* summary;      // one line for --help and docs
  uint8_t min_bits;         // 0, 0: the row has one width and its name takes no number
  uint8_t max_bits;
  uint16_t allowed_flags;   // CodecSpec::Flag
  bool takes_group;
  // Makes the codec; refuses shapes and groups that do not fit with a message that says what does.
  Result<std::unique_ptr<Codec>> (*make)(const CodecSpec& spec, Side side, const BlockShape& shape);
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

Result<std::unique_ptr<Codec>> make_codec(const CodecSpec& spec, Side side, const BlockShape& shape);

// The same codec at another width, clamped to what its row has; codecs of one width come back unchanged.
CodecSpec with_bits(CodecSpec spec, int bits);

}  // namespace tierkv::quant
