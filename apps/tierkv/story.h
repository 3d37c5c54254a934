// story.h — what the demo reads and asks: a story (data/demo/story.txt, built into the program), and three facts it states once
// each.
//
// The facts and the questions were chosen before any model had answered them, and stay as they are whatever models answer.
#pragma once

#include <array>
#include <string>

namespace tierkv::cli {

// The story, a line a paragraph and an empty line between two. The first line is its title.
std::string story();
std::string story_title();

struct Fact {
  const char* question;
  const char* beginning;  // of the answer: the model goes on from here
  const char* answer;     // what a right answer contains; the story says it once
};
// In the story's order: near its beginning, in its middle and towards its end.
const std::array<Fact, 3>& story_facts();

}  // namespace tierkv::cli
