// document.cc — paragraphs from the documentation that the build embedded (embed_docs.cmake).
#include "document.h"

#include <sstream>

namespace tierkv::cli {

extern const char* const kEmbeddedDocs;  // made by the build

namespace {

// Gathers lines into paragraphs: Markdown without tables and code, C++ headers with nothing but their comments.
class Reader {
 public:
  void line(std::string text) {
    if (text.rfind("<<<", 0) == 0) {
      close();
      header_ = text.find(".h>>>") != std::string::npos;
      code_ = false;
      return;
    }
    text.erase(0, text.find_first_not_of(' ') == std::string::npos ? text.size() : text.find_first_not_of(' '));
    if (header_) {
      const size_t comment = text.rfind("//", 0) == 0 ? text.find_first_not_of("/ ") : std::string::npos;
      return comment == std::string::npos ? close() : add(text.substr(comment));
    }
    const bool fence = text.rfind("```", 0) == 0;
    if (fence) code_ = !code_;
    if (text.empty() || text[0] == '#' || text[0] == '|' || code_ || fence) return close();
    add(text);
  }

  void close() {
    if (paragraph_.size() > 60) paragraphs_.push_back(paragraph_);
    paragraph_.clear();
  }

  std::vector<std::string> take() {
    close();
    return std::move(paragraphs_);
  }

 private:
  void add(const std::string& text) { paragraph_ += (paragraph_.empty() ? "" : " ") + text; }

  bool header_ = false, code_ = false;
  std::string paragraph_;
  std::vector<std::string> paragraphs_;
};

}  // namespace

std::vector<std::string> documentation() {
  Reader reader;
  std::istringstream in(kEmbeddedDocs);
  for (std::string line; std::getline(in, line);) reader.line(line);
  return reader.take();
}

const Needle& demo_needle() {
  static const Needle needle = {
      "The lighthouse keeper of Port Elara is called Henrietta Volkov, and she paints birds.",
      "Question: Who is the lighthouse keeper of Port Elara?\nAnswer: The lighthouse keeper of Port Elara is called",
      "Henrietta Volkov",
  };
  return needle;
}

}  // namespace tierkv::cli
