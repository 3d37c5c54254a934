// habits.h — what people type who come from llama.cpp: its names for our options, and one sentence for those that mean nothing
// here.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tierkv::cli {

// The words of a command line as our own options have them. Throws Error, bad_input, with a sentence that says what to do instead.
std::vector<std::string> translated(std::vector<std::string> words);

// Lets every option of the program that counts tokens take a number such as 32k (32,768). To be called when all commands are there.
void take_thousands(CLI::App& app);

}  // namespace tierkv::cli
