// completion.cc — `tierkv completion`: a script for the user's shell, made from the commands and options themselves.
#include "commands.h"

#include "tierkv/config.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "Put it where the shell looks:\n"
    "  bash   tierkv completion bash > ~/.local/share/bash-completion/completions/tierkv\n"
    "  zsh    tierkv completion zsh > \"${fpath[1]}/_tierkv\"\n"
    "  fish   tierkv completion fish > ~/.config/fish/completions/tierkv.fish";

struct Entry {
  std::string path;  // "snapshot save"
  std::string about;
  std::vector<std::string> subcommands;
  std::vector<std::pair<std::string, std::string>> options;  // "--kv", its description
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string first_clause(std::string text) {
  text = text.substr(0, text.find_first_of(";:("));
  for (char& c : text) {
    if (c == '\'' || c == '"' || c == '\\' || c == '[' || c == ']') c = ' ';
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

void collect(const CLI::App& app, const std::string& path, std::vector<Entry>& entries) {
  Entry entry{path, first_clause(app.get_description()), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      entry.options.emplace_back("--" + name, first_clause(option->get_description()));
    for (const std::string& name : option->get_snames())
      entry.options.emplace_back("-" + name, first_clause(option->get_description()));
  }
  std::vector<const CLI::App*> children;
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) children.push_back(child);
  for (const CLI::App* child : children) entry.subcommands.push_back(child->get_name());
  entries.push_back(entry);
  for (const CLI::App* child : children)
    collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), entries);
}

std::string option_words(const Entry& entry) {
  std::vector<std::string> words;
  for (const auto& option : entry.options) words.push_back(option.first);
  return joined(words);
}

// Values of the options and words whose values are few.
const char* kModels = "smollm2 gemma3-270m";
const char* kThings = "smollm2 gemma3-270m wikitext2 llama.cpp";

std::string bash(const std::vector<Entry>& entries) {
  std::string text =
      "# bash completion of tierkv\n"
      "_tierkv() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path= part i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    part=${COMP_WORDS[i]}\n"
      "    case \"$path $part\" in\n";
  for (const Entry& entry : entries) {
    if (!entry.path.empty()) text += "      \" " + entry.path + "\") path=\" " + entry.path + "\" ;;\n";
  }
  text += "    esac\n  done\n  case $before in\n    --kv) COMPREPLY=($(compgen -f -W \"" + joined(preset_names()) +
          "\" -- \"$word\")); return ;;\n";
  text += "    -m|--model) COMPREPLY=($(compgen -f -W \"" + std::string(kModels) +
          "\" -- \"$word\")); return ;;\n  esac\n  case $path in\n";
  for (const Entry& entry : entries) {
    std::string words = joined(entry.subcommands);
    if (entry.path == "fetch") words = kThings;
    if (entry.path == "completion") words = "bash zsh fish";
    text += "    \"" + (entry.path.empty() ? "" : " " + entry.path) + "\") COMPREPLY=($(compgen -W \"" + words +
            (words.empty() ? "" : " ") + option_words(entry) + "\" -- \"$word\")) ;;\n";
  }
  return text +
         "  esac\n"
         "  [[ ${#COMPREPLY[@]} -eq 0 && $word != -* ]] && COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "}\n"
         "complete -o filenames -F _tierkv tierkv\n";
}

std::string fish(const std::vector<Entry>& entries) {
  std::string text = "# fish completion of tierkv\n";
  for (const Entry& entry : entries) {
    std::string inside = "__fish_use_subcommand";
    if (!entry.path.empty()) {
      inside.clear();
      for (size_t at = 0; at < entry.path.size();) {
        const size_t end = std::min(entry.path.find(' ', at), entry.path.size());
        inside += (inside.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + entry.path.substr(at, end - at));
        at = end + 1;
      }
    }
    for (const std::string& name : entry.subcommands) {
      const std::string full = entry.path.empty() ? name : entry.path + " " + name;
      std::string about;
      for (const Entry& other : entries) about = other.path == full ? other.about : about;
      text += "complete -c tierkv -f -n '" + inside + "' -a " + name + " -d '" + about + "'\n";
    }
    if (entry.path == "fetch") text += "complete -c tierkv -f -n '" + inside + "' -a '" + kThings + "'\n";
    if (entry.path == "completion") text += "complete -c tierkv -f -n '" + inside + "' -a 'bash zsh fish'\n";
    for (const auto& [name, about] : entry.options) {
      const bool is_long = name.rfind("--", 0) == 0;
      std::string values;
      if (name == "--kv") values = " -x -a '" + joined(preset_names()) + "'";
      if (name == "--model") values = " -r -a '" + std::string(kModels) + "'";
      text += "complete -c tierkv -n '" + inside + "' " + (is_long ? "-l " + name.substr(2) : "-s " + name.substr(1)) + values +
              " -d '" + about + "'\n";
    }
  }
  return text;
}

std::string zsh(const std::vector<Entry>& entries) {
  // zsh runs bash's completion functions; one script to keep right instead of two.
  return "#compdef tierkv\n# zsh completion of tierkv, by way of the bash one\nautoload -U +X bashcompinit && bashcompinit\n" +
         bash(entries);
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  command->footer(kFooter);
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::vector<Entry> entries;
      collect(app, "", entries);
      const std::string text = *shell == "bash" ? bash(entries) : *shell == "zsh" ? zsh(entries) : fish(entries);
      std::fputs(text.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace tierkv::cli
