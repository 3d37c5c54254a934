// options.h — options that several commands have.
//
// Threads: the main thread's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_names.h"

namespace CLI {
class App;
}

namespace tierkv::cli {

// How far a model's positions are stretched, in llama.cpp's words. 0, below 0 or empty: as the model has it.
struct RopeOptions {
  std::string scaling;
  float scale = 0.0f, freq_base = 0.0f, freq_scale = 0.0f;
  float ext_factor = -1.0f, attn_factor = -1.0f, beta_slow = -1.0f, beta_fast = -1.0f;
  uint32_t orig_ctx = 0;
};

struct Options {
  std::string model = "smollm2";  // a path or a known name
  std::vector<std::string> kv;    // presets, files or inline forms
  bool json = false;
  std::string json_file;  // empty or "-": stdout
  uint32_t threads = 0;   // 0: settle() takes all cores
  uint32_t seed = 42;
  bool quiet = false;
  bool threads_by_machine = false;  // settle(): nobody gave a number, so fewer while the machine has other work
  RopeOptions rope;

  // JSON takes the place of the text on stdout.
  bool json_only() const { return json && (json_file.empty() || json_file == "-"); }
  // Text for people is wanted on stdout.
  bool text() const { return !json_only(); }
};

// Each adds its options to a command. --kv is checked by parse_kv() before a model is loaded.
void add_output_options(CLI::App& app, Options& options);  // --json --quiet
void add_model_option(CLI::App& app, Options& options);    // -m --threads, and those of RoPE
void add_rope_options(CLI::App& app, RopeOptions& rope);
void add_kv_option(CLI::App& app, Options& options, const std::string& fallback, bool compares = true);  // compares: takes several
void add_seed_option(CLI::App& app, Options& options);

// To be called first: as many threads as the machine has when the user gave no number, and a --json FILE that can be written.
void settle(Options& options);
// Refuses a file that cannot be written, before an hour of work rather than after it. Empty: nothing to write.
void check_writable(const std::string& path);
// Takes the place of what CLI11 cannot know: in `snapshot inspect --json FILE` the file is the one to look into.
void settle_json(Options& options, std::string& positional);
// Refuses a specification that can never work, before time is spent on a model.
void check_kv(const std::vector<std::string>& specs);

}  // namespace tierkv::cli
