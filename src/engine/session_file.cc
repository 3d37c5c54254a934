// session_file.cc — reading, checking and writing session files.
#include "engine/session_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "engine/files.h"

namespace tierkv::engine {
namespace {

using nlohmann::json;

constexpr char kMagic[8] = {'T', 'K', 'V', 'S', 'E', 'S', 'S', '1'};
constexpr size_t kHead = 32;

uint64_t fnv(const std::string& bytes) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

void put(char* at, uint64_t value) {
  for (int i = 0; i < 8; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

uint64_t get(const char* at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return value;
}

json describe(const SessionFile& file) {
  json messages = json::array();
  for (const ChatMessage& message : file.messages) messages.push_back({{"role", message.role}, {"content", message.content}});
  return {{"model", file.model},   {"fingerprint", file.fingerprint},
          {"kv", file.kv},         {"config", json::parse(to_json(file.config))},
          {"tokens", file.tokens}, {"pending", file.pending},
          {"messages", messages}};
}

void parse(const std::string& text, SessionFile& file) {
  const json value = json::parse(text);
  file.model = value.at("model");
  file.fingerprint = value.at("fingerprint");
  file.kv = value.at("kv");
  file.tokens = value.at("tokens").get<Tokens>();
  file.pending = value.at("pending").get<Tokens>();
  for (const json& message : value.at("messages")) file.messages.push_back({message.at("role"), message.at("content")});
  check(apply_json(value.at("config").dump(), file.config, "the session's configuration"));
}

}  // namespace

bool is_session_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[sizeof(kMagic)] = {};
  return in.read(magic, sizeof(magic)) && std::memcmp(magic, kMagic, sizeof(kMagic)) == 0;
}

SessionFile read_session(const std::string& path) {
  const std::string bytes = read_file(path);
  if (bytes.size() < sizeof(kMagic) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    bad_input(path + " is not a tierkv session");
  if (bytes.size() < kHead) bad_input(path + " is truncated: it ends within its header");
  const uint64_t description = get(bytes.data() + 8), snapshot = get(bytes.data() + 16), rest = bytes.size() - kHead;
  if (description > rest || snapshot != rest - description) {
    bad_input(path + " is truncated or damaged: its header speaks of other sizes than the file has");
  }
  const std::string text = bytes.substr(kHead, description);
  if (fnv(text) != get(bytes.data() + 24)) bad_input(path + " is damaged: the checksum of its description does not match");
  SessionFile file;
  try {
    parse(text, file);
  } catch (const json::exception& problem) {
    bad_input(path + " is damaged: " + problem.what());
  }
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data() + kHead + description);
  file.snapshot.assign(data, data + snapshot);
  return file;
}

uint64_t write_session(const std::string& path, const SessionFile& file) {
  const std::string text = describe(file).dump(-1, ' ', false, json::error_handler_t::replace);
  char head[kHead];
  std::memcpy(head, kMagic, sizeof(kMagic));
  put(head + 8, text.size());
  put(head + 16, file.snapshot.size());
  put(head + 24, fnv(text));
  write_file(path, [&](const Sink& sink) {
    sink(head, sizeof(head));
    sink(text.data(), text.size());
    sink(file.snapshot.data(), file.snapshot.size());
  });
  return kHead + text.size() + file.snapshot.size();
}

SessionFile capture(Engine& engine, Session& session, const Tokens& tokens, const DeepOptions* deep, DeepReport* report) {
  SessionFile file;
  file.model = engine.name();
  file.fingerprint = engine.fingerprint();
  file.kv = session.name();
  file.config = session.cache()->config();
  file.tokens = tokens;
  file.snapshot =
      deep ? take(session.cache()->freeze(session.sequence(), *deep, report)) : take(session.cache()->freeze(session.sequence()));
  return file;
}

std::unique_ptr<Session> resume(Engine& engine, const SessionFile& file, const std::string& path, const std::string& kv) {
  if (file.fingerprint != engine.fingerprint()) {
    const auto parts = [](const std::string& text) {
      const size_t space = text.find(' ');
      return std::pair(text.substr(0, space), space == std::string::npos ? "the model's own" : text.substr(space + 1));
    };
    const auto [saved, there] = parts(file.fingerprint);
    const auto [loaded, here] = parts(engine.fingerprint());
    if (saved == loaded) {
      bad_input(path + " is a session with another RoPE (" + there + ") than this (" + here +
                "): give the same --rope and --yarn options");
    }
    bad_input(path + " is a session of another model: of " + file.model + ", not " + engine.name() +
              (file.model == engine.name() ? " as it is in " + engine.path() : ""));
  }
  CacheConfig config = file.config;
  config.threads = engine.threads();
  auto session = kv.empty() ? engine.open_session(file.kv, config) : engine.open_session(kv);
  session->bind(take(session->cache()->unfreeze(file.snapshot), path));
  if (session->length() != file.tokens.size()) {
    bad_input(path + " is damaged: its cache holds " + std::to_string(session->length()) + " tokens, its text " +
              std::to_string(file.tokens.size()));
  }
  return session;
}

}  // namespace tierkv::engine
