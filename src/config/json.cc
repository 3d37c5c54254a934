// JSON text -> ConfigNode. nlohmann's parser reads through an iterator that counts lines, because its events carry none.
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "base/text.h"
#include "config/tree.h"

namespace tierkv::config {
namespace {

struct LineCount {
  uint32_t line = 1;
  uint32_t token_line = 1;  // of the last character that was not white space
};

// The lexer looks one character past a number. Counting the line of the last non-blank character makes that harmless: a character
// that touches the number is on its line.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, LineCount* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    const char c = *at_++;
    if (c == '\n') {
      ++count_->line;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      count_->token_line = count_->line;
    }
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  LineCount* count_;
};

class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const LineCount* count, std::string_view origin) : count_(count), origin_(origin) {}

  bool null() override { return add(make(ConfigNode::Type::null)); }
  bool boolean(bool value) override {
    ConfigNode node = make(ConfigNode::Type::boolean);
    node.magnitude = value ? 1 : 0;
    return add(std::move(node));
  }
  bool number_integer(number_integer_t value) override {
    ConfigNode node = make(ConfigNode::Type::integer);
    node.negative = value < 0;
    node.magnitude = node.negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    return add(std::move(node));
  }
  bool number_unsigned(number_unsigned_t value) override {
    ConfigNode node = make(ConfigNode::Type::integer);
    node.magnitude = value;
    return add(std::move(node));
  }
  bool number_float(number_float_t value, const string_t& written) override {
    ConfigNode node = make(ConfigNode::Type::real);
    node.real = value;
    node.text = written.substr(0, 40);
    return add(std::move(node));
  }
  bool string(string_t& value) override {
    ConfigNode node = make(ConfigNode::Type::string);
    node.text = std::move(value);
    return add(std::move(node));
  }
  bool binary(binary_t&) override { return add(make(ConfigNode::Type::other)); }
  bool start_object(std::size_t) override { return open(ConfigNode::Type::table); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(ConfigNode::Type::array); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().members.push_back({std::move(name), count_->token_line, {}});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 2, column 5: what": the place is ours to give.
    std::string_view what = e.what();
    const size_t column = what.find("column ");
    const size_t colon = what.find(": ", column == std::string_view::npos ? 0 : column);
    if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
    status_ = error(StatusCode::invalid_argument, config_place(origin_, count_->token_line), "not JSON: ", printable(what, 200));
    return false;
  }

  const Status& status() const { return status_; }
  ConfigNode take() { return std::move(root_); }

 private:
  ConfigNode make(ConfigNode::Type type) const {
    ConfigNode node;
    node.type = type, node.line = count_->token_line;
    return node;
  }
  bool add(ConfigNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().type == ConfigNode::Type::table) {
      open_.back().members.back().value = std::move(node);
    } else {
      open_.back().items.push_back(std::move(node));
    }
    return true;
  }
  bool open(ConfigNode::Type type) {
    if (open_.size() >= static_cast<size_t>(kMaxConfigDepth)) {
      status_ = error(StatusCode::invalid_argument, config_place(origin_, count_->token_line), "nested more than ", kMaxConfigDepth,
                      " deep; a configuration needs 3 levels");
      return false;
    }
    open_.push_back(make(type));
    return true;
  }
  bool close() {
    ConfigNode node = std::move(open_.back());
    open_.pop_back();
    return add(std::move(node));
  }

  const LineCount* count_;
  std::string_view origin_;
  std::vector<ConfigNode> open_;
  ConfigNode root_;
  Status status_;
};

}  // namespace

Result<ConfigNode> parse_json_tree(std::string_view text, std::string_view origin, size_t max_bytes) {
  TIERKV_RETURN_IF_ERROR(check_config_size(text, origin, max_bytes));
  LineCount count;
  TreeBuilder builder(&count, origin);
  try {
    const bool parsed = nlohmann::json::sax_parse(CountingIterator(text.data(), &count),
                                                  CountingIterator(text.data() + text.size(), &count), &builder);
    if (!builder.status().ok()) return builder.status();
    if (!parsed) return error(StatusCode::invalid_argument, config_place(origin, count.token_line), "not JSON");
  } catch (const std::bad_alloc&) {
    throw;  // says nothing about the text
  } catch (const std::exception& e) {
    return error(StatusCode::invalid_argument, config_place(origin, count.token_line), "not JSON: ", e.what());
  }
  ConfigNode root = builder.take();
  if (root.type != ConfigNode::Type::table) {
    return error(StatusCode::invalid_argument, config_place(origin, root.line), "a configuration is a JSON object, not ",
                 describe(root));
  }
  return root;
}

}  // namespace tierkv::config
