// Values of the schema's types: from a node of the tree, to text, and whether they fit.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/status_macros.h"
#include "base/text.h"
#include "config/schema.h"
#include "quant/registry.h"

namespace tierkv::config {
namespace {

using Kind = FieldType::Kind;

std::string number(double v) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), v);  // the shortest text that reads back the same
  return std::string(buffer, end.ptr);
}

bool whole_number(std::string_view text, uint64_t& out) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return false;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  return code == std::errc() && end == text.data() + text.size();
}

bool real_number(std::string_view text, double& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  return code == std::errc() && end == text.data() + text.size();
}

Status wrong(const FieldType& type, const std::string& shown) {
  return error(StatusCode::invalid_argument, "must be ", allowed(type), ", not ", shown);
}

bool is_text(const ConfigNode& node) { return node.type == ConfigNode::Type::string || node.type == ConfigNode::Type::word; }

// Counts, lengths and sizes. Strings hold only what a number cannot say: "all" and units; inline words hold numbers too.
Result<Value> convert_whole(const FieldType& type, const ConfigNode& node) {
  const bool tokens = type.kind == Kind::tokens;
  const auto accept = [&](uint64_t v) -> Result<Value> {
    if (tokens && v == kAll) return wrong(type, describe(node));  // only the word means "all"
    return Value(v);
  };
  if (node.type == ConfigNode::Type::integer && !node.negative) return accept(node.magnitude);
  if (is_text(node)) {
    uint64_t v = 0;
    if (tokens && node.text == "all") return Value(uint64_t{kAll});
    if (node.type == ConfigNode::Type::word && whole_number(node.text, v)) return accept(v);
    if (type.kind == Kind::bytes) {
      if (const auto size = parse_bytes(node.text); size.ok()) return Value(size.value());
    }
  }
  return wrong(type, describe(node));
}

Result<Value> convert_real(const FieldType& type, const ConfigNode& node) {
  double v = 0.0;
  if (node.type == ConfigNode::Type::real) return Value(node.real);
  if (node.type == ConfigNode::Type::integer) return Value((node.negative ? -1.0 : 1.0) * static_cast<double>(node.magnitude));
  if (node.type == ConfigNode::Type::word && real_number(node.text, v)) return Value(v);
  return wrong(type, describe(node));
}

std::string unfit_text(const std::string& v, uint64_t max_bytes) {
  if (v.size() > max_bytes) return "must be at most " + std::to_string(max_bytes) + " bytes, not " + std::to_string(v.size());
  if (!valid_utf8(v)) return "must be UTF-8, not " + quote(v);
  for (const char c : v) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "must not hold control characters: " + quote(v);
  }
  return {};
}

std::string unfit_choice(const FieldType& type, const std::string& v) {
  const auto names = type.choices();
  for (const std::string& name : names) {
    if (v == name) return {};
  }
  const int guess = nearest(v, names);
  return "must be " + allowed(type) + ", not " + quote(v) +
         (guess >= 0 ? "; did you mean '" + names[static_cast<size_t>(guess)] + "'?" : "");
}

}  // namespace

std::string allowed(const FieldType& type) {
  const auto range = [&] { return std::to_string(type.min) + ".." + std::to_string(type.max); };
  switch (type.kind) {
    case Kind::count:
      return std::string(type.odd ? "an odd number in " : "a whole number in ") + range() +
             (type.multiple > 1 ? ", a multiple of " + std::to_string(type.multiple) : "") + (type.or_zero ? ", or 0" : "");
    case Kind::tokens: return "a whole number in " + range() + " or \"all\"";
    case Kind::bytes: return "a whole number of bytes up to 2^60, or text with a unit such as \"512MiB\", \"2GiB\", \"1.5GB\"";
    case Kind::real:
      return std::string("a number ") + (type.min_included ? "from " : "above ") + number(type.min_real) + " up to " +
             number(type.max_real) + (type.or_zero ? ", or 0" : "");
    case Kind::text: return "a string of at most " + std::to_string(type.max) + " bytes";
    case Kind::choice: return "one of " + join(type.choices());
    case Kind::codec:
      return std::string("a codec such as \"rot2\", \"kivi4-g64\", \"int8\" or a pair \"rot3/rot2\"") +
             (type.or_adaptive ? ", or \"adaptive\"" : "");
  }
  return {};
}

std::string misfit(const FieldType& type, const Value& value) {
  switch (type.kind) {
    case Kind::count:
    case Kind::tokens:
    case Kind::bytes: {
      const uint64_t v = std::get<uint64_t>(value);
      if (type.kind == Kind::tokens && v == kAll) return {};
      if (type.or_zero && v == 0) return {};
      if (v >= type.min && v <= type.max && v % type.multiple == 0 && (!type.odd || v % 2 == 1)) return {};
      return "must be " + allowed(type) + ", not " + std::to_string(v);
    }
    case Kind::real: {
      const double v = std::get<double>(value);
      if (type.or_zero && v == 0.0) return {};
      // Written so that NaN fails.
      if ((type.min_included ? v >= type.min_real : v > type.min_real) && v <= type.max_real) return {};
      return "must be " + allowed(type) + ", not " + number(v);
    }
    case Kind::text: return unfit_text(std::get<std::string>(value), type.max);
    case Kind::choice: return unfit_choice(type, std::get<std::string>(value));
    case Kind::codec: {
      const std::string& name = std::get<std::string>(value);
      if (name == quant::kAdaptive && type.or_adaptive) return {};
      if (name.find(quant::kAdaptive) != std::string::npos) {
        return "cannot be " + quote(name) +
               ": adaptive chooses by the length of a sequence, as the whole archive_codec and nothing else";
      }
      const auto pair = quant::parse_codec_pair(name);
      return pair.ok() ? std::string() : "names no codec: " + printable(pair.status().message(), 400);
    }
  }
  return {};
}

Result<Value> convert(const FieldType& type, const ConfigNode& node) {
  Result<Value> value = [&]() -> Result<Value> {
    switch (type.kind) {
      case Kind::count:
      case Kind::tokens:
      case Kind::bytes: return convert_whole(type, node);
      case Kind::real: return convert_real(type, node);
      case Kind::text:
      case Kind::choice:
      case Kind::codec: break;
    }
    if (is_text(node)) return Value(node.text);
    return wrong(type, describe(node));
  }();
  if (!value.ok()) return value;
  if (const std::string why = misfit(type, value.value()); !why.empty()) return Status(StatusCode::invalid_argument, why);
  return value;
}

std::string to_text(const FieldType& type, const Value& value) {
  if (const auto* v = std::get_if<uint64_t>(&value)) return type.kind == Kind::tokens && *v == kAll ? "all" : std::to_string(*v);
  if (const auto* v = std::get_if<double>(&value)) return number(*v);
  return std::get<std::string>(value);
}

Result<uint64_t> parse_bytes(std::string_view text) {
  struct Unit {
    const char* name;
    uint64_t bytes;
  };
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"b", 1},
                                    {"kb", 1000},
                                    {"mb", 1000000},
                                    {"gb", 1000000000},
                                    {"tb", 1000000000000},
                                    {"kib", 1ull << 10},
                                    {"mib", 1ull << 20},
                                    {"gib", 1ull << 30},
                                    {"tib", 1ull << 40}};
  const auto refuse = [&](const char* why) {
    return error(StatusCode::invalid_argument, quote(text), " is not a size: ", why,
                 "; units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB");
  };
  const size_t digits_end = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string digits(text.substr(0, digits_end));
  std::string unit(text.substr(digits_end));
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  for (char& c : unit) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);

  uint64_t divisor = 1;
  if (const size_t dot = digits.find('.'); dot != std::string::npos) {
    const size_t decimals = digits.size() - dot - 1;
    if (dot == 0 || decimals == 0 || decimals > 15)
      return refuse("a fraction needs digits on both sides, at most 15 after the point");
    digits.erase(dot, 1);
    for (size_t i = 0; i < decimals; ++i) divisor *= 10;
  }
  uint64_t mantissa = 0;
  if (!whole_number(digits, mantissa)) return refuse("it starts with a number below 2^64");
  for (const Unit& u : kUnits) {
    if (unit != u.name) continue;
    // mantissa * bytes / divisor in lowest terms: exact, and no wider arithmetic is needed.
    const uint64_t common = std::gcd(u.bytes, divisor);
    uint64_t out = 0;
    if (mantissa % (divisor / common) != 0) return refuse("it is not a whole number of bytes");
    if (__builtin_mul_overflow(mantissa / (divisor / common), u.bytes / common, &out)) return refuse("it does not fit 64 bits");
    return out;
  }
  return refuse("unknown unit");
}

Status parse_layers(const ConfigNode& node, LayerOverride& out) {
  constexpr uint64_t kLast = 4095;
  uint64_t first = 0, last = 0;
  bool good = false;
  if (node.type == ConfigNode::Type::integer && !node.negative) {
    first = last = node.magnitude, good = true;
  } else if (is_text(node)) {
    const size_t dash = node.text.find('-');
    const std::string_view text = node.text;
    good = whole_number(text.substr(0, dash), first) &&
           (dash == std::string::npos ? (last = first, true) : whole_number(text.substr(dash + 1), last));
  }
  if (!good || first > last || last > kLast) {
    return error(StatusCode::invalid_argument, "must be a layer such as 3 or a range such as \"0-3\" within 0..", kLast, ", not ",
                 describe(node));
  }
  out.first = static_cast<uint32_t>(first), out.last = static_cast<uint32_t>(last);
  return {};
}

std::string layers_text(const LayerOverride& override_) {
  const std::string first = std::to_string(override_.first);
  return override_.first == override_.last ? first : first + "-" + std::to_string(override_.last);
}

}  // namespace tierkv::config
