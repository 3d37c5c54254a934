// line_editor.h — one line with libedit: arrow keys, history, search with Ctrl-R, and whatever the user's ~/.editrc says. Pasted
// text is taken as it is, line ends included (bracketed paste); Alt-Enter makes a line end.
//
// Threads: the main thread's; one editor at a time.
#pragma once

#include <memory>
#include <string>

namespace tierkv::cli {

class LineEditor {
 public:
  enum class Got { line, end, interrupted };

  // Null where the terminal cannot do it (TERM=dumb), or the program was built without libedit. `history`: the file that lines
  // are remembered in; empty: only for this run. A file that cannot be read or written loses the memory, and nothing else.
  static std::unique_ptr<LineEditor> open(const std::string& history);
  virtual ~LineEditor() = default;

  // interrupted: Ctrl-C; `line` is what had been typed.
  virtual Got read(const std::string& prompt, std::string& line) = 0;
  // Adds a turn to the history, in its file too.
  virtual void remember(const std::string& turn) = 0;
};

}  // namespace tierkv::cli
