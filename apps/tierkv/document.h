// document.h — the long text of the demo: the project's own documentation, built into the program, with a fact hidden in it.
#pragma once

#include <string>
#include <vector>

namespace tierkv::cli {

// The project's documentation as paragraphs, without tables and code.
std::vector<std::string> documentation();

struct Needle {
  const char* paragraph;  // goes into the text
  const char* question;   // comes after it; the answer follows directly
  const char* answer;     // what a right answer contains
};
const Needle& demo_needle();

}  // namespace tierkv::cli
