#include "habits.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "engine_names.h"

namespace tierkv::cli {
namespace {

struct Rename {
  const char *theirs, *ours;
};

constexpr Rename kRenames[] = {
    {"--ctx-size", "--ctx"},     {"--n-predict", "--tokens"},     {"--predict", "--tokens"},
    {"--temperature", "--temp"}, {"-np", "--parallel"},           {"--reverse-prompt", "--stop"},
    {"-sys", "--system"},        {"--system-prompt", "--system"}, {"--ignore-eos", "--ignore-end"},
};

// The next word, or what stands after '='.
struct Value {
  std::string text;
  size_t words = 0;  // that it takes up behind the option
};

bool is_on(const std::string& value) { return value == "on" || value == "1" || value == "auto" || value == "true"; }

[[noreturn]] void refuse_cache_type(const std::string& name, const std::string& type) {
  const std::string ours = type == "f16" || type == "bf16" || type == "f32" ? "fp16"
                           : type == "q8_0"                                 ? "int8"
                           : type.starts_with("q4") || type == "iq4_nl"     ? "kivi4"
                                                                            : "";
  bad_input(name + (type.empty() ? "" : " " + type) + ": here --kv says how keys and values are kept" +
            (ours.empty() ? "" : "; nearest to " + type + " is --kv " + ours) +
            ", and --kv balanced is smaller (ppl and bench compare with libllama's own types: --stock q8_0)");
}

// True: the option was dealt with, and `words` words behind it belong to it.
bool drop_or_refuse(const std::string& name, const Value& value, size_t& words) {
  words = value.words;
  if (name == "-ngl" || name == "--gpu-layers" || name == "--n-gpu-layers") {
    if (value.text == "0") return true;
    bad_input(name + ": tierkv computes on the processor, no layer goes to a GPU: leave the option out");
  }
  if (name == "-hf" || name == "-hfr" || name == "--hf-repo") {
    bad_input(name +
              ": tierkv downloads nothing from Hugging Face: give a GGUF file with -m FILE, or a name that `tierkv fetch` lists");
  }
  if (name == "-ctk" || name == "--cache-type-k" || name == "-ctv" || name == "--cache-type-v") refuse_cache_type(name, value.text);
  if (name == "-fa" || name == "--flash-attn") {
    if (value.text == "off" || value.text == "0" || value.text == "false")
      bad_input(name + " " + value.text + ": attention always goes block by block here, and needs no switch: leave the option out");
    if (!is_on(value.text)) words = 0;  // the word behind it is something else
    return true;
  }
  if (name == "-cnv" || name == "--conversation") bad_input(name + ": for a conversation there is `tierkv chat`");
  if (name == "-no-cnv" || name == "--no-conversation" || name == "--color") {
    words = 0;
    return true;
  }
  return false;
}

bool is_text_option(const std::string& word) {
  for (const char* name : {"-p", "--prompt", "--system", "-r", "--stop", "-f", "--file", "-m", "--model"}) {
    if (word == name) return true;
  }
  return false;
}

// "32k" as 32768; anything else as it is.
std::string without_k(std::string text) {
  const bool digits = text.size() > 1 && text.size() < 9 &&
                      std::all_of(text.begin(), text.end() - 1, [](unsigned char c) { return std::isdigit(c); });
  if (!digits || (text.back() != 'k' && text.back() != 'K')) return text;
  return std::to_string(1024 * std::stoull(text));
}

}  // namespace

std::vector<std::string> translated(std::vector<std::string> words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-' ||
        (i > 0 && is_text_option(words[i - 1]) && !out.empty() && out.back() == words[i - 1])) {
      out.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    Value value;
    if (equals != std::string::npos) value.text = word.substr(equals + 1);
    else if (i + 1 < words.size()) value = {words[i + 1], 1};
    size_t used = 0;
    if (drop_or_refuse(name, value, used)) {
      i += used;
      continue;
    }
    for (const Rename& rename : kRenames) {
      if (name == rename.theirs) name = rename.ours;
    }
    out.push_back(equals == std::string::npos ? name : name + word.substr(equals));
    // Without an end is as much as there is room for.
    if ((name == "-n" || name == "--tokens") && value.words == 1 && (value.text == "-1" || value.text == "-2")) {
      out.push_back(std::to_string(1u << 24));
      ++i;
    }
  }
  return out;
}

void take_thousands(CLI::App& app) {
  static const char* const names[] = {"--ctx",        "--tokens",      "--depths",       "--window",       "--chunk",
                                      "--from",       "--skip",        "--block",        "--sample",       "--batch",
                                      "--deep-every", "--deep-recent", "--probe-tokens", "--yarn-orig-ctx"};
  for (const char* name : names) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr || (app.get_name() == "recall" && std::string(name) == "--depths")) continue;  // those are percents
    option->transform(CLI::Validator(
        [](std::string& text) {
          text = without_k(text);
          return std::string();
        },
        ""));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) take_thousands(*command);
}

}  // namespace tierkv::cli
