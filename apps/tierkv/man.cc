// man.cc — `tierkv man`: the manual page, made from the commands and options themselves. The build calls it; so may anybody.
#include "commands.h"
#include "help.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv man | man -l -                        read it\n"
    "  tierkv man > ~/.local/share/man/man1/tierkv.1";

// Text that roff leaves alone: no request at the beginning of a line, hyphens that can be copied.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += std::string("\\&") + c;
    else if (c == '~') out += "\\(ti";
    else if (c == '^') out += "\\(ha";
    else if (c == '`') out += "\\(ga";
    else out += c;
  }
  return out;
}

std::string heading(const char* macro, const std::string& text) {
  return std::string(".") + macro + " \"" + escaped(text) + "\"\n";
}

// As it stands, line by line.
std::string literal(const std::string& text) { return ".nf\n" + escaped(text) + "\n.fi\n"; }

std::string options_of(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) text += ".TP\n\\fB" + escaped(option_names(option)) + "\\fR\n";
    else text += ".TP\n\\fI" + escaped(option->get_name(true)) + "\\fR\n";
    text += escaped(option_description(option)) + "\n";
  }
  return text;
}

void describe(const CLI::App& app, const std::string& path, std::string& page) {
  page += heading("SS", "tierkv " + path) + escaped(app.get_description()) + "\n" + options_of(app);
  if (!app.get_footer().empty()) page += ".PP\n" + literal(app.get_footer());
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; }))
    describe(*child, path + " " + child->get_name(), page);
}

std::string manual(const CLI::App& app) {
  std::string page = ".TH TIERKV 1 \"\" \"tierkv " TIERKV_VERSION "\" \"User Commands\"\n";
  page += heading("SH", "NAME") + "tierkv \\- language models with a tiered, compressed KV cache\n";
  page += heading("SH", "SYNOPSIS") + ".B tierkv\n.I COMMAND\n[options]\n";
  page +=
      heading("SH", "DESCRIPTION") +
      "Runs language models (GGUF files, by libllama) with a cache of keys and values that keeps the newest tokens as they are\n"
      "and older ones in four and two bits a value. Its commands talk, write, compare and measure.\n";
  page += heading("SH", "OPTIONS") + options_of(app);
  page += heading("SH", "COMMANDS");
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    describe(*command, command->get_name(), page);
  page += heading("SH", "FILES") +
          ".TP\n\\fI$XDG_CONFIG_HOME/tierkv/config.toml\\fR\ndefaults of options: see \\fBtierkv config\\fR\n"
          ".TP\n\\fI$TIERKV_CACHE\\fR\nmodels, texts and calibrations; tierkv in the XDG cache folder when it is not set\n"
          ".TP\n\\fI$XDG_STATE_HOME/tierkv/chat_history\\fR\nwhat was typed in \\fBtierkv chat\\fR\n";
  page += heading("SH", "EXIT STATUS") + "0 done, 1 something failed, 2 bad input or usage, 130 interrupted.\n";
  return page + heading("SH", "EXAMPLES") + literal(app.get_footer());
}

}  // namespace

void add_man(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("man", "Print the manual page");
  command->footer(kFooter);
  command->callback([&app, &action] {
    action = [&app] {
      std::fputs(manual(app).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace tierkv::cli
