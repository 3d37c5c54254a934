// registry.cc — the table of codecs.
//
// Adding one is one file and one row: write quant/foo.h and foo.cc with
//   Result<std::unique_ptr<Codec>> make_foo(const CodecSpec&, Side, const BlockShape&);
// most are a Recipe for make_affine() (affine.h), see kivi.cc; then add a row below with the next free id. The flags +had and
// +center are wrapped around whatever make_foo() returns when the row allows them, and so is +topN around every row that has a
// width: a codec never handles them itself.
// The contract tests (contract_test.cc), benchmarks, the command line and the C API iterate the table and pick the row up.
// An id is stored in every block on disk: never change or reuse one.
#include "quant/registry.h"

#include <algorithm>
#include <charconv>

#include "base/status_macros.h"
#include "quant/centered.h"
#include "quant/checks.h"
#include "quant/even.h"
#include "quant/half.h"
#include "quant/int8.h"
#include "quant/kivi.h"
#include "quant/klt.h"
#include "quant/kvquant.h"
#include "quant/oscar.h"
#include "quant/overlaid.h"
#include "quant/rot.h"
#include "quant/rotated.h"
#include "quant/ruvector.h"
#include "quant/squat.h"
#include "quant/turbo.h"

namespace tierkv::quant {

namespace {

constexpr uint16_t kHad = CodecSpec::hadamard;
constexpr uint16_t kWrappers = kHad | CodecSpec::center;
constexpr uint16_t kKiviFlags = kWrappers | CodecSpec::scale8 | CodecSpec::scale4 | CodecSpec::clip;

constexpr CodecRow kRows[] = {
    {1, "fp16", "IEEE half precision rows", 0, 0, kHad, false, make_fp16},
    {2, "bf16", "bfloat16 rows", 0, 0, kHad, false, make_bf16},
    {3, "int8", "symmetric 8 bits, one fp16 scale per token and group of channels", 0, 0, kWrappers, true, make_int8},
    {4, "kivi", "min/max: keys per channel over tokens, values per token over channels", 1, 16, kKiviFlags, true, make_kivi},
    {5, "asym", "ruvector-attention: per token scale and zero point, half-even rounding", 2, 8, kWrappers, false, make_asym},
    {6, "sym", "ruvector-attention: per token scale, symmetric, half-even rounding", 2, 8, kWrappers, false, make_sym},
    {7, "turbo", "TurboQuant-MSE: Hadamard, token norm, Lloyd-Max codebook", 2, 4, 0, false, make_turbo},
    {8, "rot", "Hadamard; keys centred, clipped, unbiased; values min/max with coded scales", 2, 8, 0, false, make_rot},
    {9, "klt", "keys in a calibrated basis, rotated values; bits of both where the model looks", 2, 32, 0, false, nullptr, make_klt,
     8},
    {10, "kvquant", "KVQuant: keys before RoPE, learnt codebooks, 1 % of the values as fp16", 2, 4,
     CodecSpec::scale8 | CodecSpec::scale4, false, nullptr, make_kvquant},
    {11, "squat", "SQuat: kivi with the errors of keys kept out of the queries' subspace", 2, 4, CodecSpec::clip, true, nullptr,
     make_squat},
    {12, "mid", "Hadamard; one fitted step a token, clipped, unbiased: the best values at 2 bits", 2, 8, 0, false, make_mid},
    {13, "kltk", "klt for keys alone: every value has the bits of its own codec", 2, 32, 0, false, nullptr, make_kltk, 8, "mid2"},
    {14, "even", "Hadamard over channels evened out by the root of their spread, keys centred; values as rot, or mid below 4", 2, 8,
     0, false, make_even},
    {15, "oscar", "OSCAR: rotations of the queries' and weighted values' own directions, min/max clipped, a scale a token", 2, 4, 0,
     true, nullptr, make_oscar},
};

struct FlagName {
  uint16_t flag;
  const char* name;
};
// In the order to_string() writes them.
constexpr FlagName kFlagNames[] = {
    {CodecSpec::hadamard, "had"}, {CodecSpec::scale8, "s8"},     {CodecSpec::scale4, "s4"},
    {CodecSpec::clip, "clip"},    {CodecSpec::center, "center"},
};

// 12 eighths are "1.5".
std::string width_text(const CodecRow& row, int width) {
  std::string text = std::to_string(width / row.parts);
  int rest = width % row.parts * 1000 / row.parts;
  if (rest == 0) return text;
  std::string digits = std::to_string(1000 + rest).substr(1);
  while (digits.back() == '0') digits.pop_back();
  return text + "." + digits;
}

// "2..8", or nothing.
std::string widths(const CodecRow& row) {
  return row.max_bits == 0 ? std::string() : width_text(row, row.min_bits) + ".." + width_text(row, row.max_bits);
}

std::string all_names() {
  std::string names;
  for (const CodecRow& row : kRows) {
    if (!names.empty()) names += ", ";
    names += row.name;
    names += widths(row);
  }
  return names;
}

std::string flag_names(uint16_t flags) {
  std::string names;
  for (const FlagName& f : kFlagNames) {
    if ((flags & f.flag) == 0) continue;
    names += names.empty() ? "+" : ", +";
    names += f.name;
  }
  return names.empty() ? "none" : names;
}

bool takes_top(const CodecRow& row) { return row.max_bits != 0; }

// What may follow a row's name and width.
std::string modifier_names(const CodecRow& row) {
  std::string names = row.takes_group ? "-gN, " : "";
  if (takes_top(row)) names += "+topN, ";
  return names + flag_names(row.allowed_flags);
}

Status bad_codec(std::string_view text, const std::string& problem) {
  return error(StatusCode::invalid_argument, "codec \"", text, "\": ", problem);
}

// Reads digits off the front of `rest`; false when there are none or too many.
bool take_number(std::string_view& rest, uint32_t limit, uint32_t& value) {
  const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (problem != std::errc() || value > limit) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return true;
}

// A width in parts of a bit: "2", and for rows that have parts "1.5" or "1.875".
bool take_width(std::string_view& rest, const CodecRow& row, uint32_t& width) {
  uint32_t whole = 0, thousandths = 0;
  if (!take_number(rest, 255u / row.parts, whole)) return false;
  if (row.parts > 1 && rest.starts_with('.')) {
    rest.remove_prefix(1);
    const size_t before = rest.size();
    if (!take_number(rest, 999, thousandths)) return false;
    for (size_t digits = before - rest.size(); digits < 3; ++digits) thousandths *= 10;
    if (before - rest.size() > 3 || thousandths * row.parts % 1000 != 0) return false;
  }
  width = whole * row.parts + thousandths * row.parts / 1000;
  return width <= 255;
}

// The row whose name `text` starts with, the longest if several do.
const CodecRow* row_of_text(std::string_view text) {
  const CodecRow* best = nullptr;
  for (const CodecRow& row : kRows) {
    const std::string_view name = row.name;
    if (text.starts_with(name) && (best == nullptr || name.size() > std::string_view(best->name).size())) best = &row;
  }
  return best;
}

// Everything make_codec() relies on that a spec from disk or from a caller may break.
Status check_spec(const CodecSpec& spec, const CodecRow& row) {
  if (spec.bits < row.min_bits || spec.bits > row.max_bits) {
    return error(StatusCode::invalid_argument, row.name, " at ", width_text(row, spec.bits),
                 " bits does not exist; allowed: ", row.max_bits == 0 ? std::string("no width") : widths(row));
  }
  if ((spec.flags & ~row.allowed_flags) != 0) {
    return error(StatusCode::invalid_argument, row.name, " does not take ", flag_names(spec.flags & ~row.allowed_flags),
                 "; allowed: ", flag_names(row.allowed_flags));
  }
  if ((spec.flags & CodecSpec::scale8) != 0 && (spec.flags & CodecSpec::scale4) != 0) {
    return error(StatusCode::invalid_argument, "+s8 and +s4 exclude each other");
  }
  if (spec.group != 0 && !row.takes_group) return error(StatusCode::invalid_argument, row.name, " takes no group");
  if (spec.group % 16 != 0 || spec.group > 256) {
    return error(StatusCode::invalid_argument, "group ", spec.group, " is not supported; allowed: multiples of 16 up to 256");
  }
  if (spec.top != 0 && !takes_top(row)) return error(StatusCode::invalid_argument, row.name, " does not take +topN");
  if (spec.top > kMostTop) {
    return error(StatusCode::invalid_argument, "+top", spec.top + 0, " is not supported; allowed: +top1..+top", kMostTop);
  }
  return Status();
}

// Outermost of all.
Result<std::unique_ptr<Codec>> with_better_rows(std::unique_ptr<Codec> codec, const CodecSpec& spec) {
  if (spec.top == 0) return codec;
  return overlay_codec(std::move(codec), spec.top);
}

}  // namespace

std::span<const CodecRow> codec_rows() { return kRows; }

const CodecRow* find_codec_row(uint16_t id) {
  for (const CodecRow& row : kRows) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

Result<CodecSpec> parse_codec(std::string_view text) {
  const CodecRow* row = row_of_text(text);
  if (row == nullptr) return bad_codec(text, "unknown name; allowed: " + all_names());
  CodecSpec spec;
  spec.id = row->id;
  std::string_view rest = text.substr(std::string_view(row->name).size());
  uint32_t number = 0;
  if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') {
    if (!take_width(rest, *row, number))
      return bad_codec(text, "the width is not a number this codec has; allowed: " + widths(*row));
    spec.bits = static_cast<uint8_t>(number);
    if (row->max_bits == 0) return bad_codec(text, std::string(row->name) + " takes no width; allowed: " + all_names());
  } else if (row->max_bits != 0) {
    return bad_codec(text, std::string(row->name) + " needs a width after its name; allowed: " + widths(*row));
  }
  if (rest.starts_with("-g")) {
    rest.remove_prefix(2);
    if (!take_number(rest, 65535, number) || number == 0)
      return bad_codec(text, "-g needs a group size; allowed: multiples of 16 up to 256");
    spec.group = static_cast<uint16_t>(number);
  }
  while (!rest.empty()) {
    const FlagName* found = nullptr;
    const std::string_view name = rest.substr(1, rest.find('+', 1) - 1);
    if (std::string_view digits = name.substr(std::min<size_t>(3, name.size())); rest[0] == '+' && name.starts_with("top")) {
      if (spec.top != 0) return bad_codec(text, "+topN is given twice");
      if (!take_number(digits, 255, number) || number == 0 || !digits.empty())
        return bad_codec(text, "+top needs a number of rows; allowed: +top1..+top" + std::to_string(kMostTop));
      spec.top = static_cast<uint8_t>(number);
      rest.remove_prefix(1 + name.size());
      continue;
    }
    for (const FlagName& f : kFlagNames) {
      if (rest[0] == '+' && name == f.name) found = &f;
    }
    if (found == nullptr) {
      return bad_codec(
          text, std::string("\"").append(rest) + "\" is not understood; allowed after " + row->name + ": " + modifier_names(*row));
    }
    if ((spec.flags & found->flag) != 0) return bad_codec(text, std::string("+") + found->name + " is given twice");
    spec.flags |= found->flag;
    rest.remove_prefix(1 + name.size());
  }
  if (const Status status = check_spec(spec, *row); !status.ok()) return bad_codec(text, status.message());
  return spec;
}

std::string to_string(const CodecSpec& spec) {
  const CodecRow* row = find_codec_row(spec.id);
  std::string text = row != nullptr ? std::string(row->name) : std::string("codec#").append(std::to_string(spec.id)).append("/");
  if (spec.bits != 0) text += row != nullptr ? width_text(*row, spec.bits) : std::to_string(spec.bits);
  if (spec.group != 0) text += "-g" + std::to_string(spec.group);
  for (const FlagName& f : kFlagNames) {
    if ((spec.flags & f.flag) != 0) text.append("+").append(f.name);
  }
  if (spec.top != 0) text += "+top" + std::to_string(spec.top);
  return text;
}

std::string_view resolve_auto(std::string_view name, bool calibrated) {
  struct Row {
    std::string_view name, with_tables, without;
  };
  // Those for a device are what its fast kernels read (cuda/plan/paths.h), of about the same size.
  static constexpr Row rows[] = {
      {"auto", "klt1.875", "even4/mid2"},     {"auto1", "klt1.5", "even3/mid2"},     {"auto3", "klt2.5", "even4/mid3"},
      {"auto-cuda", "klt1.875", "rot4/mid2"}, {"auto1-cuda", "klt1.5", "rot4/mid2"}, {"auto3-cuda", "klt2.5", "rot4"},
  };
  for (const Row& row : rows) {
    if (name == row.name) return calibrated ? row.with_tables : row.without;
  }
  return name;
}

std::span<const std::string_view> fallback_choices() {
  static constexpr std::string_view choices[] = {"even4/mid2", "even4/mid3", "even5/mid3", "even6/mid4"};
  return choices;
}

std::span<const AdaptiveStep, kAdaptiveSteps> adaptive_steps() {
  // SQuat without its subspace is KIVI; for KVQuant's three bits the nearest thing without tables is KIVI's three.
  static constexpr AdaptiveStep steps[kAdaptiveSteps] = {
      {2048, "kivi2", "kivi2"}, {8192, "squat2", "kivi2"}, {UINT32_MAX, "kvquant3", "kivi3"}};
  return steps;
}

Result<CodecPair> parse_codec_pair(std::string_view text) {
  text = resolve_auto(text, false);
  const size_t slash = text.find('/');
  CodecPair pair;
  TIERKV_ASSIGN_OR_RETURN(pair.key, parse_codec(text.substr(0, slash)));
  if (slash == std::string_view::npos) {
    const char* values = find_codec_row(pair.key.id)->values;
    pair.value = pair.key;
    if (values != nullptr) {
      TIERKV_ASSIGN_OR_RETURN(pair.value, parse_codec(values));
    }
    return pair;
  }
  TIERKV_ASSIGN_OR_RETURN(pair.value, parse_codec(text.substr(slash + 1)));
  return pair;
}

std::string to_string(const CodecPair& pair) {
  const CodecRow* row = find_codec_row(pair.key.id);
  if (row != nullptr && row->values != nullptr && to_string(pair.value) == row->values) return to_string(pair.key);
  return pair.key == pair.value ? to_string(pair.key) : to_string(pair.key) + "/" + to_string(pair.value);
}

Result<std::unique_ptr<Codec>> make_codec(const CodecSpec& spec, Side side, const BlockShape& shape,
                                          const calib::HeadTables* tables) {
  const CodecRow* row = find_codec_row(spec.id);
  if (row == nullptr) return error(StatusCode::unsupported, "codec ", spec.id, " is not in this build; it has: ", all_names());
  TIERKV_RETURN_IF_ERROR(check_spec(spec, *row));
  TIERKV_RETURN_IF_ERROR(check_shape(shape));
  if (row->calibrated()) {
    if (tables == nullptr) {
      return error(StatusCode::failed_precondition, "codec ", row->name,
                   " needs a calibration of the model: make one with `tierkv calibrate` and set calibration");
    }
    TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, row->make_calibrated(spec, side, shape, *tables));
    return with_better_rows(std::move(codec), spec);
  }
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, row->make(spec, side, shape));
  // Rope outermost: the means are taken in the rotated frame, which is the same thing, and scores() gets rotated queries.
  if ((spec.flags & CodecSpec::center) != 0 && side == Side::key) codec = center_codec(std::move(codec));
  if ((spec.flags & CodecSpec::hadamard) != 0) codec = rotate_codec(std::move(codec));
  return with_better_rows(std::move(codec), spec);
}

bool needs_tables(const CodecPair& pair) {
  const CodecRow *key = find_codec_row(pair.key.id), *value = find_codec_row(pair.value.id);
  return (key != nullptr && key->calibrated()) || (value != nullptr && value->calibrated());
}

bool takes_guide(const CodecSpec& key) {
  const CodecRow* row = find_codec_row(key.id);
  return row != nullptr && row->make == make_even;
}

CodecSpec with_bits(CodecSpec spec, int bits) {
  const CodecRow* row = find_codec_row(spec.id);
  if (row != nullptr && row->max_bits != 0) {
    spec.bits = static_cast<uint8_t>(std::clamp<int>(bits * row->parts, row->min_bits, row->max_bits));
  }
  return spec;
}

int whole_bits(const CodecSpec& spec) {
  const CodecRow* row = find_codec_row(spec.id);
  return row == nullptr ? spec.bits : (spec.bits + row->parts - 1) / row->parts;
}

}  // namespace tierkv::quant
