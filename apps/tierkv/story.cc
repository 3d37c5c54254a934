// story.cc — the text that the build embedded (embed_text.cmake), with its lines joined.
#include "story.h"

#include <sstream>

namespace tierkv::cli {

extern const char* const kEmbeddedStory;  // made by the build

std::string story() {
  std::string text, paragraph;
  auto close = [&] {
    if (!paragraph.empty()) text += (text.empty() ? "" : "\n\n") + paragraph;
    paragraph.clear();
  };
  std::istringstream in(kEmbeddedStory);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) close();
    else paragraph += (paragraph.empty() ? "" : " ") + line;
  }
  close();
  return text;
}

std::string story_title() {
  const std::string text = story();
  return text.substr(0, text.find('\n'));
}

const std::array<Fact, 3>& story_facts() {
  static const std::array<Fact, 3> facts = {{
      {"What is the name of the ferry?", "The name of the ferry is the", "Marigold"},
      {"Who was the winner of the raft race?", "The winner of the raft race was", "Ines Calloway"},
      {"How much does the new bell weigh?", "The new bell weighs", "640"},
  }};
  return facts;
}

}  // namespace tierkv::cli
