// line_input.h — what a person types, or a pipe sends, as turns of a conversation.
//
// A line is a turn. Lines between """ and """ are one turn; so are lines that are pasted, where there is an editor. On a terminal
// lines are edited (line_editor.h) and remembered in `history`; elsewhere, and in a program built without libedit, they are read
// as they come.
//
// Threads: the main thread's.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace tierkv::cli {

class LineEditor;

struct Turn {
  std::string text;
  bool block = false;  // it came between """ marks or with several lines: never a command
};

class LineInput {
 public:
  // `history`: the file that lines are remembered in; empty: none.
  explicit LineInput(const std::string& history);
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;

  // Waits for the next turn. None: the input has ended, or Ctrl-C came on an empty line. On a line with text it clears that.
  std::optional<Turn> next();
  bool terminal() const { return terminal_; }

 private:
  enum class Got { line, end, abandoned };
  Got read(const char* prompt, std::string& line);
  Got read_plain(std::string& line);
  Got read_block(std::string& text);

  bool terminal_;
  std::string unread_;  // of stdin, where there is no editor
  std::unique_ptr<LineEditor> editor_;
};

// $XDG_STATE_HOME/tierkv/chat_history, or the same below ~/.local/state. Empty where there is no home.
std::string history_file();

}  // namespace tierkv::cli
