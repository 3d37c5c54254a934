// eval_common.cc — settings, checkpoints, texts.
#include "eval_common.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "engine/gguf_file.h"
#include "files.h"
#include "options.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr std::string_view kNoFlash = "-noflash";

StockSpec stock_spec(const std::string& text) {
  const bool flash = !text.ends_with(kNoFlash);
  StockSpec spec = parse_stock(flash ? text : text.substr(0, text.size() - kNoFlash.size()));
  spec.flash = flash;
  if (!flash && spec.type_v != "f16")
    bad_input("--stock " + text + ": libllama needs flash attention for values in " + spec.type_v);
  return spec;
}

CacheConfig config_of(const SettingSpec& spec) {
  CacheConfig config;
  check(apply_spec(spec.kv, config), "--kv " + spec.kv);
  return config;
}

// "hot=64,skip=top:8,archive=rot2" -> "hot=64,archive=rot2".
std::string without_skip(const std::string& kv) {
  std::string rest;
  for (size_t at = 0; at <= kv.size();) {
    const size_t end = std::min(kv.find(',', at), kv.size());
    const std::string part = kv.substr(at, end - at);
    if (!part.starts_with("skip=")) rest += "," + part;
    at = end + 1;
  }
  return rest;
}

}  // namespace

void add_stock_option(CLI::App& app, std::vector<std::string>& stock, const std::string& fallback) {
  app.add_option("--stock", stock,
                 "libllama's own cache beside it: f16, q8_0, q4_0, or q8_0/q4_0 for keys/values; separated by commas (default: " +
                     fallback + ")")
      ->type_name("TYPES")
      ->delimiter(',')
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::vector<SettingSpec> settle_settings(const std::vector<SettingSpec>& first, const std::vector<std::string>& kv,
                                         const std::vector<std::string>& stock) {
  check_kv(kv);
  std::vector<SettingSpec> settings;
  auto add = [&](const SettingSpec& spec) {
    if (std::find(settings.begin(), settings.end(), spec) == settings.end()) settings.push_back(spec);
  };
  for (const SettingSpec& spec : first) add(spec);
  for (const std::string& spec : kv) add({spec, false});
  for (const std::string& type : stock) {
    if (type.empty() || type == "none") continue;
    (void)stock_spec(type);
    add({type, true});
  }
  return settings;
}

void add_learn_option(CLI::App& app, bool& learn) {
  app.add_flag("--learn", learn,
               "caches start as on a model's first day: without a calibration, learning in passing over all that is read; nothing "
               "is kept");
}

bool chooses_blocks(const SettingSpec& spec) {
  if (spec.stock) return false;
  const CacheConfig config = config_of(spec);
  const auto chooses = [](const std::string& mode) { return mode.find(':') != std::string::npos; };  // "top:8", "bounded:0.01"
  return chooses(config.skip) || chooses(config.cold.spill);
}

bool reads_alike(const SettingSpec& a, const SettingSpec& b) {
  if (a.stock || b.stock || without_skip(a.kv) != without_skip(b.kv)) return false;
  return config_of(a).cold.off() && config_of(b).cold.off();  // each has a file of its own
}

std::unique_ptr<Session> open_setting(Engine& engine, const SettingSpec& spec, uint32_t ctx, uint32_t micro_batch, bool learn) {
  if (!spec.stock) {
    SessionOptions options;
    options.ctx = ctx;
    options.micro_batch = micro_batch;
    if (learn) options.learning = Learning::from_nothing;
    return engine.open_session(spec.kv, options);
  }
  StockSpec stock = stock_spec(spec.kv);
  stock.ctx = ctx;
  stock.micro_batch = micro_batch;
  return engine.open_stock_session(stock);
}

Checkpoint::Checkpoint(Engine& engine, Session& session, Tokens prefix)
    : session_(session), prefix_(std::move(prefix)), length_(session.length()) {
  if (AdaptiveKVCache* cache = session.cache()) {
    id_ = take(cache->fork(session.sequence()));
    held_ = true;
  } else {
    const std::vector<uint32_t>& windows = engine.shape().window;
    windowed_ = std::any_of(windows.begin(), windows.end(), [](uint32_t window) { return window != 0; });
  }
}

Checkpoint::~Checkpoint() {
  if (held_) (void)session_.cache()->remove(id_).ok();
}

void Checkpoint::restore() {
  if (held_) {
    session_.bind(take(session_.cache()->fork(id_)));
  } else {
    rewind();
  }
}

void Checkpoint::restore_last() {
  if (held_) {
    session_.bind(id_);
    held_ = false;
  } else {
    rewind();
  }
}

void Checkpoint::rewind() {
  if (!windowed_ || session_.length() == length_) return session_.truncate(length_);
  session_.reset();
  session_.feed(prefix_);
}

std::string evaluation_text(const std::string& file) {
  if (!file.empty()) {
    std::string text = read_file(file);
    if (text.empty()) bad_input(file + " is empty");
    return text;
  }
  const std::string path = cache_folder() + "/text/wiki.test.raw";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    bad_input("the text of WikiText-2 is not here (" + path +
              "): `tierkv fetch wikitext2` downloads it, or give a text with -f FILE");
  }
  return read_file(path);
}

}  // namespace tierkv::cli
