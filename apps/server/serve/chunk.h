// chunk.h — a piece of a prompt's keys and values as a file of the prefix store: what it is called, and what is in it.
//
// A chunk is a run of a sequence (tierkv/cache.h: freeze_run) with the tokens it is of. Its key is a hash of the key before it, of
// its kind and of its tokens; the first one's parent is the root: a hash of everything that decides bytes (model, configuration,
// calibration). So a key names one text from its beginning, in one model and one configuration.
//
//   KEY.PARENT.TOKENS.run     archived tokens, which many texts may begin with
//   KEY.PARENT.TOKENS.rest    the end of one text, with its recent tiers
//
// Format:  magic (8), u32 version, u32 kind, key (16), parent (16), u32 first position, u32 tokens, u64 bytes of the run; the
// tokens,
//          4 bytes each; the run. Little-endian. The key covers what stands before the run, the run has checksums of its own, and a
//          file has no byte beside.
// Threads: pure functions.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer.h"

namespace tierkv::serve {

using engine::Tokens;

using ChunkKey = std::array<uint8_t, 16>;
enum class ChunkKind : uint32_t { run = 1, rest = 2 };

// Of everything that decides the bytes, in words.
ChunkKey root_key(const std::string& identity);
ChunkKey child_key(const ChunkKey& parent, ChunkKind kind, std::span<const llama_token> tokens);

struct ChunkName {
  ChunkKey key{}, parent{};
  uint32_t tokens = 0;
  ChunkKind kind = ChunkKind::run;

  bool operator==(const ChunkName&) const = default;
  std::string file() const;
};
// None: it is not the name of a chunk.
std::optional<ChunkName> parse_chunk_name(const std::string& file);

// What stands before the run.
std::vector<std::byte> chunk_head(const ChunkName& name, uint32_t first, std::span<const llama_token> tokens, uint64_t run_bytes);

enum class ChunkFault { none, cut, foreign, damaged };
// The run in a file's bytes, if it is the chunk of that name for these tokens at that position. cut: it ends early, or has bytes
// beside. foreign: another chunk, or none at all. The run itself is not looked at.
ChunkFault open_chunk(std::span<const std::byte> file, const ChunkName& name, uint32_t first, std::span<const llama_token> tokens,
                      std::span<const std::byte>& run);

}  // namespace tierkv::serve
