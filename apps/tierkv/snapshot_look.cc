// snapshot_look.cc — reads a session or a plain snapshot and tells.
#include "snapshot_look.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/gguf_file.h"
#include "engine/session_file.h"
#include "output.h"
#include "terminal.h"
#include "tierkv/config.h"
#include "tierkv/llama.h"
#include "tierkv/snapshot.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

struct Content {
  SnapshotInfo info;
  SessionFile session;  // empty for a plain snapshot
  bool is_session = false;
  llama::FoundCalibration tables;  // what resuming needs, if it is here
};

bool needs_tables(const Content& content) { return content.info.calibration != 0; }
std::string id_of(uint64_t calibration) { return format("%016llx", static_cast<unsigned long long>(calibration)); }

// The calibration that a file needs: the one that its session names, or one that tierkv or the cache folder has.
llama::FoundCalibration find_tables(const Content& content) {
  CacheConfig config;
  if (content.is_session && apply_spec(content.session.kv, config).ok() && !config.calibration.empty()) {
    const Result<CalibrationPtr> named = load_calibration(config.calibration);
    if (named.ok() && describe(**named).id == id_of(content.info.calibration)) return {*named, config.calibration};
  }
  return take(llama::find_calibration(content.info.calibration), "");
}

SnapshotInfo inspect(const std::string& path, const Content& content) {
  if (!content.is_session) return take(inspect_snapshot(path, content.tables.calibration));
  return take(inspect_snapshot(std::span<const std::byte>(content.session.snapshot), content.tables.calibration), path);
}

// Without its calibration a file is looked at as far as that goes, and with it to the end.
Content look(const std::string& path) {
  Content content;
  content.is_session = is_session_file(path);
  if (content.is_session) content.session = read_session(path);
  content.info = inspect(path, content);
  if (needs_tables(content)) {
    content.tables = find_tables(content);
    if (content.tables.calibration && content.info.lacks_tables) content.info = inspect(path, content);
  }
  const uint64_t tokens = content.session.tokens.size();
  if (content.is_session && tokens != content.info.length) {
    bad_input(path + " is damaged: its cache holds " + std::to_string(content.info.length) + " tokens, its text " +
              std::to_string(tokens));
  }
  return content;
}

// Which calibration resuming needs, and where it is.
json tables_json(const Content& content) {
  json value = {{"id", id_of(content.info.calibration)}, {"found", nullptr}};
  if (!content.tables.calibration) return value;
  const CalibrationInfo made = describe(*content.tables.calibration);
  value["found"] = content.tables.where;
  value["model"] = made.model;
  value["text"] = made.text;
  value["text_tokens"] = made.tokens;
  return value;
}

std::string tables_text(const Content& content) {
  const std::string id = id_of(content.info.calibration);
  if (!content.tables.calibration) {
    return id + ", which is not here: resuming needs that file (--kv calibration=FILE, or in " + llama::cache_folder() +
           "/calibration)";
  }
  return id + " of " + model_title("", describe(*content.tables.calibration).model) + ": " + content.tables.where;
}

// A session's snapshot has the model's own name and its fingerprint: the name is told as people know it.
std::string model_of(const Content& content) {
  const std::string &all = content.info.model, &name = content.session.model;
  if (all.empty()) return "not named";
  return name.empty() || !all.starts_with(name) ? all : model_title("", name) + all.substr(name.size());
}

json content_json(const std::string& path, const Content& content) {
  const SnapshotInfo& info = content.info;
  json tiers = json::object();
  for (int t = 0; t < kNumTiers; ++t) {
    tiers[tier_name(static_cast<Tier>(t))] = {{"rows", info.tier[t].tokens}, {"bytes", info.tier[t].bytes}};
  }
  json value = {{"file", path},
                {"kind", content.is_session ? "session" : "snapshot"},
                {"model", info.model},
                {"version", info.version},
                {"min_reader", info.min_reader},
                {"layers", info.num_layers},
                {"kv_heads", info.num_kv_heads},
                {"head_dim", info.head_dim},
                {"hot_type", info.hot_type},
                {"length", info.length},
                {"blocks", info.blocks},
                {"codecs", info.codecs},
                {"snapshot_bytes", info.file_bytes},
                {"tiers", tiers}};
  if (needs_tables(content)) value["calibration"] = tables_json(content);
  if (info.lacks_tables) {  // nobody can tell where its blocks lie
    value["blocks"] = nullptr;
    value["tiers"] = nullptr;
  }
  if (info.deep_tokens > 0) {
    value["deep"] = {{"tokens", info.deep_tokens},
                     {"first_position", info.deep_first_position},
                     {"layers", info.deep_layers},
                     {"bytes", info.deep_bytes},
                     {"calibration", id_of(info.calibration)}};
  }
  if (content.is_session) {
    value["kv"] = content.session.kv;
    value["pending_tokens"] = content.session.pending.size();
    value["messages"] = content.session.messages.size();
  }
  return value;
}

void print_content(const std::string& path, const Content& content) {
  const SnapshotInfo& info = content.info;
  const double rows = static_cast<double>(info.num_layers) * info.num_kv_heads;
  const uint64_t fp16 = 4ull * info.length * info.num_layers * info.num_kv_heads * info.head_dim;
  std::printf("%s: %s of %s tokens, %s\n", bold(path).c_str(), content.is_session ? "a session" : "a snapshot",
              human_count(info.length).c_str(), human_bytes(static_cast<double>(info.file_bytes)).c_str());
  std::printf("  model   %s: %u layers, %u KV heads of %u channels\n", model_of(content).c_str(), info.num_layers,
              info.num_kv_heads, info.head_dim);
  if (content.is_session) {
    std::printf("  kv      %s\n", content.session.kv.c_str());
    if (!content.session.messages.empty()) std::printf("  chat    %zu messages\n", content.session.messages.size());
  }
  std::string codecs;
  for (const std::string& codec : info.codecs) codecs += (codecs.empty() ? "" : ", ") + codec;
  const std::string blocks = info.lacks_tables ? "not counted without the calibration" : human_count(info.blocks);
  std::printf("  blocks  %s%s%s\n", blocks.c_str(), codecs.empty() ? "" : ": ", codecs.c_str());
  if (needs_tables(content)) std::printf("  tables  calibration %s\n", tables_text(content).c_str());
  for (int t = 0; t < kNumTiers; ++t) {
    const SnapshotTier& tier = info.tier[t];
    if (tier.tokens == 0) continue;
    const Tier which = static_cast<Tier>(t);
    std::printf("  %s %7.0f tokens %10s\n", tier_colour(which, format("%c %-7s", "SHWA"[t], tier_name(which))).c_str(),
                static_cast<double>(tier.tokens) / rows, human_bytes(static_cast<double>(tier.bytes)).c_str());
  }
  if (info.deep_tokens > 0) {
    std::printf("  D deep    %7u tokens %10s from position %u on, %u layers, calibration %s\n", info.deep_tokens,
                human_bytes(static_cast<double>(info.deep_bytes)).c_str(), info.deep_first_position, info.deep_layers,
                id_of(info.calibration).c_str());
  }
  if (info.file_bytes != 0)
    std::printf("  %.1fx smaller than FP16\n", static_cast<double>(fp16) / static_cast<double>(info.file_bytes));
}

}  // namespace

int run_inspect(SnapshotRequest& request) {
  settle_json(request.options, request.path);
  settle(request.options);
  if (request.path.empty()) bad_input("there is no file to look into: tierkv snapshot inspect FILE");
  const Content content = look(request.path);
  if (request.options.text()) print_content(request.path, content);
  emit_json(request.options, content_json(request.path, content));
  return 0;
}

int run_verify(SnapshotRequest& request) {
  settle_json(request.options, request.path);
  settle(request.options);
  if (request.path.empty()) bad_input("there is no file to verify: tierkv snapshot verify FILE");
  const Content content = look(request.path);
  if (request.options.text() && !request.options.quiet) {
    if (content.info.lacks_tables) {
      std::printf("%s is whole: its checksum matches, %s tokens\n", request.path.c_str(), human_count(content.info.length).c_str());
    } else {
      std::printf("%s is whole: every checksum matches, %s tokens in %s blocks\n", request.path.c_str(),
                  human_count(content.info.length).c_str(), human_count(content.info.blocks).c_str());
    }
    if (needs_tables(content)) std::printf("resuming needs calibration %s\n", tables_text(content).c_str());
  }
  json value = content_json(request.path, content);
  value["whole"] = true;
  emit_json(request.options, value);
  return 0;
}

}  // namespace tierkv::cli
