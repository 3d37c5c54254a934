// session_file.h — a conversation on disk: the tokens and messages, and the cache that goes with them.
//
// Layout:   "TKVSESS1", u64 bytes of the description, u64 bytes of the snapshot, u64 FNV-1a of the description, the description
//           (JSON: model, fingerprint, configuration, tokens, messages), the snapshot (AdaptiveKVCache::freeze()). Little-endian.
// Errors:   Error, bad_input, for what is not a session file, is damaged or truncated, or belongs to another model. A failed
//           write leaves the old file, or none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tierkv::engine {

struct SessionFile {
  std::string model, fingerprint;
  std::string kv;  // how the user named the configuration
  CacheConfig config;
  Tokens tokens;   // in the cache
  Tokens pending;  // to be fed before anything can be said: the last token of a prompt
  std::vector<ChatMessage> messages;
  std::vector<std::byte> snapshot;
};

// True if the file starts as a session does; a plain snapshot does not.
bool is_session_file(const std::string& path);
SessionFile read_session(const std::string& path);
// Bytes written.
uint64_t write_session(const std::string& path, const SessionFile& file);

// The session's cache and tokens as a file's content.
// With `deep`, older tokens go into a deep archive, and the report says which.
SessionFile capture(Engine& engine, Session& session, const Tokens& tokens, const DeepOptions* deep = nullptr,
                    DeepReport* report = nullptr);
// A session that goes on where the file ends. `kv` empty: with the file's own configuration.
std::unique_ptr<Session> resume(Engine& engine, const SessionFile& file, const std::string& path, const std::string& kv = "");

}  // namespace tierkv::engine
