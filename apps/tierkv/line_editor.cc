// line_editor.cc — libedit's interface for wide characters, where it was found (TIERKV_LIBEDIT).
#include "line_editor.h"

#ifdef TIERKV_LIBEDIT
#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "interrupt.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr int kRemembered = 1000;  // turns in the history
constexpr std::wstring_view kPasteEnd = L"\033[201~";

std::string narrow(std::wstring_view text) {
  std::string out;
  for (const wchar_t wide : text) {
    const auto c = static_cast<uint32_t>(wide);
    if (c < 0x80) {
      out += static_cast<char>(c);
      continue;
    }
    if (c >= 0x10000) out += static_cast<char>(0xF0 | (c >> 18)), out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    else if (c >= 0x800) out += static_cast<char>(0xE0 | (c >> 12));
    if (c >= 0x800) out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    else out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
  return out;
}

// A key, or nothing when Ctrl-C came (-1) or the input ended (0). A signal between the look and the wait is not lost: it is let
// in by ppoll() alone.
int read_byte(unsigned char& byte) {
  sigset_t stops, before;
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT);
  sigaddset(&stops, SIGTERM);
  sigprocmask(SIG_BLOCK, &stops, &before);
  int got = -1;
  while (!interrupted()) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (ppoll(&input, 1, nullptr, &before) < 0 && errno == EINTR) continue;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    got = count == 1 ? 1 : 0;
    break;
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return got;
}

// One character of UTF-8; what is none becomes U+FFFD.
int read_character(EditLine*, wchar_t* out) {
  unsigned char byte = 0;
  if (const int got = read_byte(byte); got <= 0) return got;
  int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
  uint32_t value = more == 0 ? byte : byte & (0x3Fu >> more);
  if (byte >= 0x80 && more == 0) value = 0xFFFD;
  for (; more > 0; --more) {
    if (const int got = read_byte(byte); got <= 0) return got;
    value = (value << 6) | (byte & 0x3Fu);
  }
  *out = value > 0x10FFFF || (value >= 0xD800 && value < 0xE000) ? L'\xFFFD' : static_cast<wchar_t>(value);
  return 1;
}

// After the mark with which a terminal begins what is pasted: everything up to the mark that ends it.
unsigned char insert_paste(EditLine* edit, wint_t) {
  std::wstring text;
  wchar_t c = 0;
  while (!text.ends_with(kPasteEnd)) {
    if (read_character(edit, &c) <= 0) return CC_EOF;
    text += c == L'\r' ? L'\n' : c;
  }
  text.resize(text.size() - kPasteEnd.size());
  while (text.ends_with(L'\n')) text.pop_back();  // Enter sends it, as it does what was typed
  for (wchar_t& one : text) {
    if (one < L' ' && one != L'\n' && one != L'\t') one = L' ';  // no escape codes on the screen
  }
  if (!text.empty() && el_winsertstr(edit, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

unsigned char insert_line_end(EditLine* edit, wint_t) { return el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR; }

class LibeditEditor : public LineEditor {
 public:
  // REQUIRES: the terminal is not dumb.
  explicit LibeditEditor(const std::string& history) : file_(history) {
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");  // terminals speak UTF-8 even where nobody said so
    output_ = fdopen(dup(STDERR_FILENO), "w");
    history_ = history_winit();
    if (output_) edit_ = el_init("tierkv", stdin, output_, output_);
    if (!works()) return;
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kRemembered);
    history_w(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty()) history_w(history_, &event, H_LOAD, file_.c_str());
    set_up();
  }

  ~LibeditEditor() override {
    if (edit_) el_end(edit_);
    if (history_) history_wend(history_);
    if (output_) std::fclose(output_);
  }

  bool works() const { return edit_ && history_ && output_; }

  Got read(const std::string& prompt, std::string& line) override {
    prompt_.assign(prompt.begin(), prompt.end());
    // '\1' is around what takes no room.
    if (green("x") != "x") prompt_ = L"\1\033[32m\1" + prompt_.substr(0, 1) + L"\1\033[0m\1" + prompt_.substr(1);
    el_resize(edit_);
    el_wset(edit_, EL_PREP_TERM, 1);     // before the prompt: keys that come at once mean what they mean in the editor
    std::fputs("\033[?2004h", output_);  // bracketed paste
    std::fflush(output_);
    int count = 0;
    const wchar_t* text = el_wgets(edit_, &count);
    if (text == nullptr || count <= 0) {
      const LineInfoW* typed = el_wline(edit_);
      line = interrupted() ? narrow({typed->buffer, static_cast<size_t>(typed->lastchar - typed->buffer)}) : "";
    } else {
      line = narrow({text, static_cast<size_t>(count)});
      if (line.ends_with('\n')) line.pop_back();
    }
    std::fputs("\033[?2004l", output_);
    if (interrupted()) std::fputs("\n", output_);
    std::fflush(output_);
    return interrupted() ? Got::interrupted : text == nullptr || count <= 0 ? Got::end : Got::line;
  }

  void remember(const std::string& turn) override {
    if (turn.empty()) return;
    std::wstring wide(turn.size() + 1, L'\0');
    const size_t size = std::mbstowcs(wide.data(), turn.c_str(), wide.size());
    if (size == static_cast<size_t>(-1)) return;
    wide.resize(size);
    HistEventW event;
    history_w(history_, &event, H_ENTER, wide.c_str());
    save();
  }

 private:
  static wchar_t* prompt_of(EditLine* edit) {
    void* self = nullptr;
    el_wget(edit, EL_CLIENTDATA, &self);
    return static_cast<LibeditEditor*>(self)->prompt_.data();
  }

  void set_up() {
    el_wset(edit_, EL_CLIENTDATA, this);
    el_wset(edit_, EL_PROMPT_ESC, prompt_of, L'\1');
    el_wset(edit_, EL_SIGNAL, 1);
    el_wset(edit_, EL_HIST, history_w, history_);
    el_wset(edit_, EL_EDITOR, L"emacs");
    el_wset(edit_, EL_GETCFN, read_character);
    el_wset(edit_, EL_ADDFN, L"tierkv-paste", L"insert what is pasted", insert_paste);
    el_wset(edit_, EL_ADDFN, L"tierkv-line-end", L"insert a line end", insert_line_end);
    static constexpr struct {
      const wchar_t *keys, *what;
    } kKeys[] = {
        {L"\\e[200~", L"tierkv-paste"},      {L"\\e^M", L"tierkv-line-end"},  {L"\\e^J", L"tierkv-line-end"},
        {L"^R", L"em-inc-search-prev"},      {L"^W", L"ed-delete-prev-word"}, {L"\\e[H", L"ed-move-to-beg"},
        {L"\\e[F", L"ed-move-to-end"},       {L"\\e[1~", L"ed-move-to-beg"},  {L"\\e[4~", L"ed-move-to-end"},
        {L"\\e[3~", L"ed-delete-next-char"}, {L"\\e[1;5C", L"em-next-word"},  {L"\\e[1;5D", L"ed-prev-word"},
    };
    for (const auto& key : kKeys) el_wset(edit_, EL_BIND, key.keys, key.what, nullptr);
    el_source(edit_, nullptr);
  }

  // Whole or not at all: another chat may be reading it.
  void save() {
    if (file_.empty()) return;
    namespace fs = std::filesystem;
    std::error_code problem;
    fs::create_directories(fs::path(file_).parent_path(), problem);
    const std::string fresh = file_ + "." + std::to_string(getpid());
    HistEventW event;
    if (history_w(history_, &event, H_SAVE, fresh.c_str()) < 0) fs::remove(fresh, problem);
    else fs::rename(fresh, file_, problem);
  }

  std::string file_;
  std::wstring prompt_;
  FILE* output_ = nullptr;
  HistoryW* history_ = nullptr;
  EditLine* edit_ = nullptr;
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(const std::string& history) {
  const char* term = std::getenv("TERM");
  if (term == nullptr || *term == '\0' || std::string_view(term) == "dumb") return nullptr;
  auto editor = std::make_unique<LibeditEditor>(history);
  return editor->works() ? std::move(editor) : nullptr;
}

}  // namespace tierkv::cli

#else

namespace tierkv::cli {

std::unique_ptr<LineEditor> LineEditor::open(const std::string&) { return nullptr; }

}  // namespace tierkv::cli
#endif
