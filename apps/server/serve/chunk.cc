#include "serve/chunk.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "serve/sha256.h"

namespace tierkv::serve {
namespace {

constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'R', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kHead = 64;

ChunkKey shortened(Sha256& hash) {
  const Sha256::Digest digest = hash.finish();
  ChunkKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

std::string hex(const ChunkKey& key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : key) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

bool parse_hex(const std::string& text, ChunkKey& key) {
  if (text.size() != 2 * key.size()) return false;
  for (size_t i = 0; i < key.size(); ++i) {
    uint8_t value = 0;
    for (const char c : {text[2 * i], text[2 * i + 1]}) {
      if (c >= '0' && c <= '9') value = static_cast<uint8_t>(value << 4 | (c - '0'));
      else if (c >= 'a' && c <= 'f') value = static_cast<uint8_t>(value << 4 | (c - 'a' + 10));
      else return false;
    }
    key[i] = value;
  }
  return true;
}

void put(std::vector<std::byte>& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void put(std::vector<std::byte>& out, std::span<const uint8_t> bytes) {
  for (const uint8_t byte : bytes) out.push_back(std::byte{byte});
}

uint64_t get(std::span<const std::byte> bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = count; i-- > 0;) value = value << 8 | static_cast<uint64_t>(bytes[at + static_cast<size_t>(i)]);
  return value;
}

}  // namespace

ChunkKey root_key(const std::string& identity) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(identity.data(), identity.size())));
  return shortened(hash);
}

ChunkKey child_key(const ChunkKey& parent, ChunkKind kind, std::span<const llama_token> tokens) {
  std::vector<std::byte> text;
  text.reserve(parent.size() + 8 + 4 * tokens.size());
  put(text, parent);
  put(text, static_cast<uint32_t>(kind), 4);
  put(text, tokens.size(), 4);
  for (const llama_token token : tokens) put(text, static_cast<uint32_t>(token), 4);
  Sha256 hash;
  hash.add(text);
  return shortened(hash);
}

std::string ChunkName::file() const {
  return hex(key) + "." + hex(parent) + "." + std::to_string(tokens) + (kind == ChunkKind::run ? ".run" : ".rest");
}

std::optional<ChunkName> parse_chunk_name(const std::string& file) {
  constexpr size_t kDigits = 2 * sizeof(ChunkKey);
  if (file.size() < 2 * kDigits + 4 || file[kDigits] != '.' || file[2 * kDigits + 1] != '.') return std::nullopt;
  ChunkName name;
  if (!parse_hex(file.substr(0, kDigits), name.key) || !parse_hex(file.substr(kDigits + 1, kDigits), name.parent))
    return std::nullopt;
  const char* const from = file.data() + 2 * kDigits + 2;
  const char* const end = file.data() + file.size();
  const auto [rest, error] = std::from_chars(from, end, name.tokens);
  if (error != std::errc() || name.tokens == 0) return std::nullopt;
  const std::string_view kind(rest, static_cast<size_t>(end - rest));
  if (kind != ".run" && kind != ".rest") return std::nullopt;
  name.kind = kind == ".run" ? ChunkKind::run : ChunkKind::rest;
  if (name.file() != file) return std::nullopt;  // one name, one spelling
  return name;
}

std::vector<std::byte> chunk_head(const ChunkName& name, uint32_t first, std::span<const llama_token> tokens, uint64_t run_bytes) {
  std::vector<std::byte> out;
  out.reserve(kHead + 4 * tokens.size());
  put(out, kMagic);
  put(out, kVersion, 4);
  put(out, static_cast<uint32_t>(name.kind), 4);
  put(out, name.key);
  put(out, name.parent);
  put(out, first, 4);
  put(out, tokens.size(), 4);
  put(out, run_bytes, 8);
  for (const llama_token token : tokens) put(out, static_cast<uint32_t>(token), 4);
  return out;
}

ChunkFault open_chunk(std::span<const std::byte> file, const ChunkName& name, uint32_t first, std::span<const llama_token> tokens,
                      std::span<const std::byte>& run) {
  if (file.size() < kHead) return ChunkFault::cut;
  const uint64_t run_bytes = get(file, 56, 8);
  const std::vector<std::byte> expected = chunk_head(name, first, tokens, run_bytes);
  if (std::memcmp(file.data(), kMagic, sizeof kMagic) != 0) return ChunkFault::foreign;
  if (get(file, 8, 4) != kVersion) return ChunkFault::foreign;
  if (file.size() < expected.size()) return ChunkFault::cut;
  if (std::memcmp(file.data(), expected.data(), expected.size()) != 0) return ChunkFault::foreign;
  if (file.size() - expected.size() != run_bytes) return ChunkFault::cut;
  run = file.subspan(expected.size());
  return ChunkFault::none;
}

}  // namespace tierkv::serve
