// common.cc — options, errors, Ctrl-C, files, JSON.
#include "common.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tierkv/config.h"
#include "tierkv/file.h"

namespace tierkv::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;
static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<bool> flag{false};
bool json_expected = false;  // on stdout, and not there yet

void on_interrupt(int) {
  if (interrupts != 0) {
    constexpr char kText[] = "\ninterrupted twice: stopping at once\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(kInterrupted);
  }
  interrupts = 1;
  flag.store(true, std::memory_order_relaxed);
}

}  // namespace

void bad_input(const std::string& sentence) { throw Failure(kBadInput, sentence); }

void check(const Status& status, const std::string& what) {
  if (status.ok()) return;
  const std::string sentence = what.empty() ? status.message() : what + ": " + status.message();
  const bool ours = status.code() == StatusCode::internal || status.code() == StatusCode::resource_exhausted;
  throw Failure(ours ? kRuntimeError : kBadInput, sentence);
}

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read from the terminal returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // `tierkv ... | head` ends quietly
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk: an error to report
}

bool interrupted() { return flag.load(std::memory_order_relaxed); }

void clear_interrupt() {
  interrupts = 0;
  flag = false;
}

// --- options

void add_output_options(CLI::App& app, Options& options) {
  app.add_option_function<std::vector<std::string>>(
         "--json",
         [&options](const std::vector<std::string>& values) {
           options.json = true;
           if (!values.empty() && values.front() != "{}") options.json_file = values.front();
         },
         "JSON on stdout instead of text; with FILE, JSON there and text here")
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->trigger_on_parse();
  app.add_flag("-q,--quiet", options.quiet, "no progress bars and no remarks");
}

void add_model_option(CLI::App& app, Options& options) {
  app.add_option("-m,--model", options.model, "a GGUF file, or a known name: smollm2, gemma3-270m")
      ->type_name("MODEL")
      ->capture_default_str();
  app.add_option("-t,--threads", options.threads, "threads to compute with (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
}

void add_kv_option(CLI::App& app, Options& options, const std::string& fallback, bool compares) {
  std::string presets;
  for (const std::string& name : preset_names()) presets += (presets.empty() ? "" : ", ") + name;
  app.add_option("--kv", options.kv,
                 "how keys and values are kept: a preset (" + presets +
                     "), a .toml or .json file, or one line such as "
                     "hot=64,warm=448,archive=rot2" +
                     (compares ? "; may be repeated to compare" : "") + " (default: " + fallback + ")")
      ->type_name("SPEC")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_seed_option(CLI::App& app, Options& options) {
  app.add_option("-s,--seed", options.seed, "seed of everything random")->type_name("N")->capture_default_str();
}

void settle(Options& options) {
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  if (options.json_only()) expect_json_on_stdout();
  else check_writable(options.json_file);
}

void check_writable(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path file(path);
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) bad_input("cannot write " + path + ": it is a folder");
  if (std::filesystem::is_other(file, ignored)) bad_input("cannot write " + path + ": it is not a regular file");
  if (!std::filesystem::is_directory(folder, ignored)) bad_input("cannot write " + path + ": there is no folder " + folder);
  if (access(folder.c_str(), W_OK) != 0) bad_input("cannot write " + path + ": " + std::strerror(errno));
}

void settle_json(Options& options, std::string& positional) {
  if (!positional.empty() || options.json_file.empty()) return;
  positional = std::exchange(options.json_file, "");
}

void check_kv(const std::vector<std::string>& specs) {
  for (const std::string& spec : specs) {
    CacheConfig config;
    check(apply_spec(spec, config), "--kv " + spec);
  }
}

void emit_json(const Options& options, const nlohmann::json& value) {
  if (!options.json) return;
  const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (options.json_only()) {
    json_expected = false;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return;
  }
  write_file(options.json_file, [&](const Sink& sink) { sink(text.data(), text.size()); });
}

void expect_json_on_stdout() { json_expected = true; }

void emit_failure(int exit_code, const std::string& sentence) {
  if (!json_expected) return;
  Options options;
  options.json = true;
  emit_json(options, {{"error", sentence}, {"exit_code", exit_code}});
}

nlohmann::json memory_json(const MemoryStats& stats, uint32_t head_dim) {
  nlohmann::json tiers = nlohmann::json::object();
  for (int t = 0; t < kNumTiers; ++t) {
    const TierMemory& tier = stats.tier[t];
    tiers[tier_name(static_cast<Tier>(t))] = {{"rows", tier.tokens},
                                              {"payload_bytes", tier.payload_bytes},
                                              {"overhead_bytes", tier.overhead_bytes},
                                              {"bits_per_value", tier.bits_per_value(head_dim)}};
  }
  return {{"tiers", tiers},
          {"bookkeeping_bytes", stats.bookkeeping_bytes},
          {"parked_bytes", stats.parked_bytes},
          {"free_bytes", stats.free_bytes},
          {"table_bytes", stats.table_bytes},
          {"total_bytes", stats.total_bytes},
          {"resident_bytes", stats.resident_bytes()},
          {"peak_bytes", stats.peak_bytes},
          {"fp16_bytes", stats.fp16_bytes},
          {"compression", stats.compression()}};
}

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    auto take = [&](const char* key, uint64_t& value) {
      if (line.rfind(key, 0) == 0) value = 1024 * std::strtoull(line.c_str() + std::strlen(key), nullptr, 10);
    };
    take("VmRSS:", memory.rss);
    take("VmHWM:", memory.peak);
    take("RssAnon:", memory.anonymous);
  }
  return memory;
}

void add_process_memory(nlohmann::json& value, const ProcessMemory& memory) {
  value["rss_bytes"] = memory.rss;
  value["rss_peak_bytes"] = memory.peak;
  value["rss_anonymous_bytes"] = memory.anonymous;
}

// --- files

std::string read_file(const std::string& path) {
  FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) bad_input("cannot read " + path + ": " + std::strerror(errno));
  std::string text;
  char block[1 << 16];
  size_t count;
  errno = 0;
  while ((count = std::fread(block, 1, sizeof(block), file)) > 0) text.append(block, count);
  const int problem = std::ferror(file) ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (interrupted()) throw Interrupted();
  if (problem != 0) bad_input("cannot read " + path + ": " + std::strerror(problem));
  return text;
}

void write_file(const std::string& path, const std::function<void(const Sink&)>& write) {
  const Status status = replace_file(path, [&](const ByteSink& out) {
    Status first;
    write([&](const void* data, size_t size) {
      if (first.ok()) first = out({static_cast<const std::byte*>(data), size});
    });
    return first;
  });
  if (!status.ok()) bad_input(status.message() + " (nothing was kept)");
}

std::string find_shared(const std::string& relative) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<fs::path> folders;
  if (const char* set = std::getenv("TIERKV_SHARE"); set != nullptr && *set != '\0') folders.emplace_back(set);
  const fs::path binary = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (!binary.empty()) {
    folders.push_back(binary.parent_path() / "share" / "tierkv");
    folders.push_back(binary.parent_path().parent_path());  // build/bin in the source tree
  }
#ifdef TIERKV_SHARE_DIR
  folders.emplace_back(TIERKV_SHARE_DIR);
#endif
#ifdef TIERKV_SOURCE_DIR
  folders.emplace_back(TIERKV_SOURCE_DIR);
#endif
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / relative, ignored)) return (folder / relative).string();
  }
  return "";
}

}  // namespace tierkv::cli
