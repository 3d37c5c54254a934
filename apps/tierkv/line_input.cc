// line_input.cc — lines from the editor or from stdin, put together to turns.
#include "line_input.h"

#include <unistd.h>

#include <cstdlib>

#include "engine/files.h"
#include "interrupt.h"
#include "line_editor.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char kMark[] = "\"\"\"";
constexpr size_t kMarkSize = sizeof(kMark) - 1;

// Cuts a closing mark off the end, blanks after it included.
bool take_closing_mark(std::string& text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos || end + 1 < kMarkSize || text.compare(end + 1 - kMarkSize, kMarkSize, kMark) != 0) return false;
  text.resize(end + 1 - kMarkSize);
  return true;
}

}  // namespace

LineInput::LineInput(const std::string& history) : terminal_(isatty(STDIN_FILENO) == 1) {
  if (terminal_ && stderr_is_terminal()) editor_ = LineEditor::open(history);
}

LineInput::~LineInput() = default;

LineInput::Got LineInput::read(const char* prompt, std::string& line) {
  if (editor_) {
    switch (editor_->read(prompt, line)) {
      case LineEditor::Got::line: return Got::line;
      case LineEditor::Got::end: return Got::end;
      case LineEditor::Got::interrupted: break;
    }
    if (line.empty()) return Got::end;
    clear_interrupt();
    return Got::abandoned;
  }
  if (terminal_) remark(green(prompt));
  return read_plain(line);
}

LineInput::Got LineInput::read_plain(std::string& line) {
  size_t end;
  while ((end = unread_.find('\n')) == std::string::npos) {
    char block[4096];
    const ssize_t count = engine::read_some(STDIN_FILENO, block, cancellation());
    if (interrupted()) return Got::end;
    if (count <= 0) break;
    unread_.append(block, static_cast<size_t>(count));
  }
  if (unread_.empty()) return Got::end;
  line = unread_.substr(0, end);  // the last line may have no end
  unread_.erase(0, end == std::string::npos ? end : end + 1);
  return Got::line;
}

LineInput::Got LineInput::read_block(std::string& text) {
  while (!take_closing_mark(text)) {
    std::string line;
    const Got got = read(". ", line);
    if (got == Got::end && interrupted() && terminal_) {  // Ctrl-C on an empty line gives up the block, not the conversation
      clear_interrupt();
      return Got::abandoned;
    }
    if (got == Got::abandoned) return got;
    if (got == Got::end) return interrupted() ? Got::end : Got::line;  // a pipe that ends closes the block
    text += (text.empty() ? "" : "\n") + line;
  }
  if (text.ends_with('\n')) text.pop_back();
  return Got::line;
}

std::optional<Turn> LineInput::next() {
  for (;;) {
    Turn turn;
    Got got = read("> ", turn.text);
    if (got == Got::end) return std::nullopt;
    if (got == Got::abandoned) continue;
    turn.block = turn.text.find('\n') != std::string::npos;
    if (turn.text.starts_with(kMark)) {
      turn.block = true;
      turn.text.erase(0, kMarkSize);
      if (turn.text.starts_with('\n')) turn.text.erase(0, 1);
      got = read_block(turn.text);
      if (got == Got::end) return std::nullopt;
      if (got == Got::abandoned) continue;
    }
    if (editor_) editor_->remember(turn.text);
    return turn;
  }
}

std::string history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/tierkv/chat_history";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.local/state/tierkv/chat_history" : "";
}

}  // namespace tierkv::cli
