// grammar_check.cc — GBNF as libllama reads it: rules, alternatives, literals, classes, groups, repetitions.
#include "engine/grammar_check.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace tierkv::engine {
namespace {

constexpr size_t kMostBytes = 64 << 10, kMostRules = 2000, kMostRepetitions = 20000;
constexpr uint64_t kMostAtOnce = 2000;  // libllama's own limit: repetitions of one item times the rules it is made of
constexpr int kMostDepth = 32;

constexpr int kLetters = -1;  // something that is never empty

// What matters for whether a rule can begin with itself: alternatives of rules and letters. A group is a rule of its own.
using Sequence = std::vector<int>;
struct Rule {
  std::string name;
  std::vector<Sequence> alternatives;
  bool defined = false;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Rule> read() {
    skip(true);
    while (!at_end()) {
      const std::string name = read_name();
      skip(false);
      if (!text_.substr(at_).starts_with("::=")) wrong("::= is expected");
      at_ += 3;
      skip(true);
      const auto rule = static_cast<size_t>(rule_of(name));
      std::vector<Sequence> alternatives = read_alternatives(0);
      rules_[rule].alternatives = std::move(alternatives);
      rules_[rule].defined = true;
      if (!at_end() && peek() != '\n' && peek() != '\r') wrong("a new line is expected");
      skip(true);
    }
    return std::move(rules_);
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    bad_input("the grammar is wrong in line " + std::to_string(line) + ": " + what);
  }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  static bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-'; }

  // Blanks and comments; `lines`: ends of lines too.
  void skip(bool lines) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n' && peek() != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    const size_t begin = at_;
    while (!at_end() && in_name(peek())) ++at_;
    if (at_ == begin) wrong("the name of a rule is expected");
    return std::string(text_.substr(begin, at_ - begin));
  }

  int rule_of(const std::string& name) {
    const auto [found, fresh] = numbers_.emplace(name, static_cast<int>(rules_.size()));
    if (fresh) add_rule({name, {}, false});
    return found->second;
  }
  int add_rule(Rule rule) {
    if (rules_.size() >= kMostRules) wrong("there are more than " + std::to_string(kMostRules) + " rules and groups");
    rules_.push_back(std::move(rule));
    return static_cast<int>(rules_.size()) - 1;
  }

  std::vector<Sequence> read_alternatives(int depth) {
    std::vector<Sequence> alternatives = {read_sequence(depth)};
    while (take('|')) {
      skip(true);
      alternatives.push_back(read_sequence(depth));
    }
    return alternatives;
  }

  Sequence read_sequence(int depth) {
    Sequence sequence;
    size_t last = 0;          // where the last item begins
    uint64_t weight = 0;      // rules that it is made of
    bool repeatable = false;  // there is one
    for (;;) {
      const char c = peek();
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (!repeatable) wrong(std::string("there is nothing before ") + c);
        repeat(sequence, last, weight, depth);
        repeatable = false;  // libllama multiplies what is repeated twice
      } else {
        const size_t begin = sequence.size();
        const uint64_t before = rules_.size() + repetitions_;
        const bool group = c == '(';
        if (!read_item(sequence, depth)) return sequence;
        last = begin;
        weight = group ? rules_.size() + repetitions_ - before : 1;
        repeatable = sequence.size() > begin;
      }
      skip(depth > 0);
    }
  }

  // False: here is no item.
  bool read_item(Sequence& sequence, int depth) {
    const char c = peek();
    if (c == '"') read_quoted('"', sequence);
    else if (c == '[') read_quoted(']', sequence);
    else if (c == '(') read_group(sequence, depth);
    else if (c == '.') ++at_, sequence.push_back(kLetters);
    else if (in_name(c)) sequence.push_back(rule_of(read_name()));
    else if (c == '<' || c == '!') wrong("tokens (<...>) are not supported by this server");
    else return false;
    return true;
  }

  // "letters" or [a class]; what is empty is no item.
  void read_quoted(char end, Sequence& sequence) {
    ++at_;
    if (end == ']') (void)take('^');
    bool empty = true;
    while (!take(end)) {
      if (at_end()) wrong(std::string("a closing ") + end + " is missing");
      read_letter();
      empty = false;
      // A range. libllama takes a - before the closing bracket for itself.
      if (end == ']' && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') ++at_, read_letter();
    }
    if (empty && end == ']') wrong("a class has no letters");
    if (!empty) sequence.push_back(kLetters);
  }

  void read_letter() {
    if (!take('\\')) {
      // One character, by its first byte, as libllama takes it.
      const auto first = static_cast<unsigned char>(text_[at_++]);
      const int more = first < 0x80                    ? 0
                       : first >= 0xc2 && first < 0xe0 ? 1
                       : first >= 0xe0 && first < 0xf0 ? 2
                       : first >= 0xf0 && first < 0xf5 ? 3
                                                       : -1;
      if (more < 0) wrong("this is no UTF-8");
      for (int i = 0; i < more; ++i, ++at_) {
        if ((static_cast<unsigned char>(peek()) & 0xc0) != 0x80) wrong("this is no UTF-8");
      }
      return;
    }
    const char kind = peek();
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0 && (kind == '\0' || std::string_view("trn\\\"[]-").find(kind) == std::string_view::npos)) {
      wrong("this escape is not known");
    }
    ++at_;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (!std::isxdigit(static_cast<unsigned char>(peek()))) wrong(std::to_string(digits) + " hexadecimal digits are expected");
    }
  }

  void read_group(Sequence& sequence, int depth) {
    if (depth >= kMostDepth) wrong("groups are nested deeper than " + std::to_string(kMostDepth));
    ++at_;
    skip(true);
    Rule group;
    group.defined = true;
    group.alternatives = read_alternatives(depth + 1);
    if (!take(')')) wrong("a closing ) is missing");
    sequence.push_back(add_rule(std::move(group)));
  }

  uint64_t read_number() {
    uint64_t number = 0;
    const size_t begin = at_;
    while (!at_end() && std::isdigit(static_cast<unsigned char>(peek())) && at_ < begin + 9) {
      number = 10 * number + static_cast<uint64_t>(text_[at_++] - '0');
    }
    if (at_ == begin) wrong("a number is expected");
    return number;
  }

  // What stands before it may be left out, or comes again.
  void repeat(Sequence& sequence, size_t last, uint64_t weight, int depth) {
    uint64_t least = 0, most = 0;
    switch (text_[at_++]) {
      case '+': least = 1; break;
      case '{': {
        skip(depth > 0);
        least = most = read_number();
        skip(depth > 0);
        if (take(',')) {
          skip(depth > 0);
          most = std::isdigit(static_cast<unsigned char>(peek())) ? read_number() : least;
          skip(depth > 0);
          if (most < least) wrong("{m,n} has more at least than at most");
        }
        if (!take('}')) wrong("a closing } is missing");
        break;
      }
      default: break;
    }
    const uint64_t times = std::max<uint64_t>({1, least, most});
    repetitions_ += times;
    if (repetitions_ > kMostRepetitions || times * weight > kMostAtOnce) wrong("there are too many repetitions");
    if (least > 0) return;
    Rule optional;
    optional.defined = true;
    optional.alternatives = {Sequence(sequence.begin() + static_cast<std::ptrdiff_t>(last), sequence.end()), {}};
    const int rule = add_rule(std::move(optional));
    sequence.resize(last);
    sequence.push_back(rule);
  }

  const std::string_view text_;
  size_t at_ = 0;
  uint64_t repetitions_ = 0;
  std::vector<Rule> rules_;
  std::map<std::string, int> numbers_;
};

// Which rules may be nothing at all.
std::vector<bool> find_empty(const std::vector<Rule>& rules) {
  std::vector<bool> empty(rules.size());
  const auto is_empty = [&](int symbol) { return symbol != kLetters && empty[static_cast<size_t>(symbol)]; };
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < rules.size(); ++i) {
      const auto& all = rules[i].alternatives;
      if (empty[i] || std::none_of(all.begin(), all.end(),
                                   [&](const Sequence& one) { return std::all_of(one.begin(), one.end(), is_empty); })) {
        continue;
      }
      empty[i] = true;
      more = true;
    }
  }
  return empty;
}

class LeftRecursion {
 public:
  explicit LeftRecursion(const std::vector<Rule>& rules) : rules_(rules), empty_(find_empty(rules)), state_(rules.size()) {}

  // REQUIRES: every rule is defined. Recursion is as deep as there are rules at most.
  bool found(size_t rule) {
    if (state_[rule] != State::unseen) return state_[rule] == State::open;
    state_[rule] = State::open;
    for (const Sequence& sequence : rules_[rule].alternatives) {
      for (const int symbol : sequence) {
        if (symbol == kLetters) break;
        if (found(static_cast<size_t>(symbol))) return true;
        if (!empty_[static_cast<size_t>(symbol)]) break;
      }
    }
    state_[rule] = State::done;
    return false;
  }

 private:
  enum class State { unseen, open, done };
  const std::vector<Rule>& rules_;
  const std::vector<bool> empty_;
  std::vector<State> state_;
};

}  // namespace

const char* const kJsonGrammar = R"(root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" space (member ("," space member)*)? "}"
member ::= string ":" space value space
array ::= "[" space (value space ("," space value space)*)? "]"
string ::= "\"" letter* "\""
letter ::= [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?
space ::= " "? | "\n" [ \t]{0,16}
)";

void check_grammar(const std::string& text) {
  if (text.size() > kMostBytes) bad_input("the grammar is longer than " + std::to_string(kMostBytes >> 10) + " KiB");
  if (text.find('\0') != std::string::npos) bad_input("the grammar holds a zero byte");
  const std::vector<Rule> rules = Reader(text).read();
  bool root = false;
  for (const Rule& rule : rules) {
    if (!rule.defined) bad_input("the grammar names a rule that is not there: " + rule.name.substr(0, 64));
    root = root || rule.name == "root";
  }
  if (!root) bad_input("the grammar has no rule root");
  LeftRecursion recursion(rules);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (recursion.found(i)) bad_input("the grammar has a rule that may begin with itself, which is not supported");
  }
}

}  // namespace tierkv::engine
