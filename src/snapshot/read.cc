// read.cc — bytes to a checked picture of a sequence. Nothing here trusts a field because the checksum is right: checksums
// are for accidents, and whatever passes must be something a stream could really hold.
#include <cstdio>
#include <cstring>

#include "attn/attention.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "policy/policy.h"
#include "snapshot/deep_part.h"
#include "snapshot/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace format;

uint32_t load_u32(const std::byte* at) {
  uint32_t x = 0;
  for (int i = 3; i >= 0; --i) x = x << 8 | static_cast<uint32_t>(at[i]);
  return x;
}

uint64_t load_u64(const std::byte* at) { return load_u32(at) | static_cast<uint64_t>(load_u32(at + 4)) << 32; }

// Walks over the content. Reading past the end gives zeros and is remembered: callers look at failed() before they believe
// anything.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size() - at_; }
  bool failed() const { return failed_; }

  std::span<const std::byte> take(uint64_t n) {
    if (n > left()) {
      failed_ = true;
      return {};
    }
    const auto out = bytes_.subspan(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return out;
  }
  // n bytes and the zeros up to the next multiple of 8.
  std::span<const std::byte> take_padded(uint64_t n) {
    const auto out = take(n);
    take_zeros(padded(at_) - at_);
    return out;
  }
  void take_zeros(uint64_t n) {
    for (const std::byte b : take(n)) failed_ |= b != std::byte{0};
  }
  uint8_t u8() { return static_cast<uint8_t>(integer(1)); }
  uint16_t u16() { return static_cast<uint16_t>(integer(2)); }
  uint32_t u32() { return static_cast<uint32_t>(integer(4)); }
  uint64_t u64() { return integer(8); }

 private:
  uint64_t integer(size_t n) {
    const auto from = take(n);
    uint64_t x = 0;
    for (size_t i = from.size(); i > 0; --i) x = x << 8 | static_cast<uint64_t>(from[i - 1]);
    return x;
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

template <class... Parts>
Status damaged(const Parts&... parts) {
  return error(StatusCode::data_loss, "the snapshot contradicts itself: ", parts...);
}

bool halves_finite(std::span<const std::byte> rows, bool bf16) {
  const uint16_t exponent = bf16 ? 0x7F80 : 0x7C00;
  bool finite = true;
  for (size_t i = 0; i + 1 < rows.size(); i += 2) {
    uint16_t h;
    std::memcpy(&h, rows.data() + i, sizeof h);
    finite &= (h & exponent) != exponent;
  }
  return finite;
}

class BodyReader {
 public:
  BodyReader(std::span<const std::byte> content, Snapshot& out) : in_(content), out_(out), header_(out.header) {
    signals_ = static_cast<uint32_t>(std::popcount(header_.signal_mask));
  }

  // What stands before the streams. `needs`: whether its codecs need tables that are not here.
  Status read_outline(std::vector<CodecUse>& codecs, bool& needs) {
    TIERKV_RETURN_IF_ERROR(read_tables(&needs));
    for (const Spec& spec : specs_) codecs.push_back({spec.pair, spec.tokens});
    return {};
  }

  Status read() {
    TIERKV_RETURN_IF_ERROR(read_tables(nullptr));
    for (layer_ = 0; layer_ < header_.layers; ++layer_) {
      for (head_ = 0; head_ < header_.kv_heads; ++head_) TIERKV_RETURN_IF_ERROR(read_stream());
    }
    if (out_.codecs.size() != specs_.size()) return damaged("it lists ", specs_.size(), " codecs and uses ", out_.codecs.size());
    if (header_.deep) {
      (void)in_.take_padded(0);
      const uint64_t size = in_.u64();
      out_.deep = in_.take_padded(size);
      if (in_.failed() || size == 0) return damaged("the file ends in its deep archive, or its padding is not zero");
      TIERKV_RETURN_IF_ERROR(check_deep(out_));
    }
    if (in_.left() != 0) return damaged(in_.left(), " bytes follow the last stream");
    return {};
  }

 private:
  struct Spec {
    quant::CodecPair pair;
    uint32_t tokens;
  };

  // Codecs and layers. Tables that are not here are an error, unless `lacking` takes note of them.
  Status read_tables(bool* lacking) {
    (void)in_.take(header_.header_bytes);
    (void)in_.take_padded(header_.model.size());
    if (header_.min_reader >= kTablesVersion) (void)in_.u64();
    TIERKV_RETURN_IF_ERROR(read_codecs(lacking));
    return read_layers();
  }

  template <class... Parts>
  Status bad(const Parts&... parts) const {
    return damaged("layer ", layer_, ", KV head ", head_, ": ", parts...);
  }
  template <class... Parts>
  Status bad_block(const Parts&... parts) const {
    return bad("block ", block_, ": ", parts...);
  }

  quant::CodecSpec spec() {
    quant::CodecSpec s;
    s.id = in_.u16();
    s.bits = in_.u8();
    s.top = in_.u8();
    s.group = in_.u16();
    s.flags = in_.u16();
    return s;
  }

  Status read_codecs(bool* lacking) {
    if (header_.codecs > in_.left() / kCodecBytes) return damaged("a table of ", header_.codecs, " codecs does not fit the file");
    for (uint32_t i = 0; i < header_.codecs; ++i) {
      const quant::CodecSpec key = spec(), value = spec();
      const uint32_t tokens = in_.u32();
      if (in_.u32() != 0) return damaged("codec ", i, " has a reserved field that is not zero");
      if (header_.min_reader < kVersion && (key.top != 0 || value.top != 0))
        return damaged("codec ", i, " has better rows in a file of version ", header_.min_reader);
      // Said before anything else that may be wrong with the file: it is the one that a newer build mends.
      for (const quant::CodecSpec& s : {key, value}) {
        if (!quant::find_codec_row(s.id))
          return error(StatusCode::unsupported, "the snapshot uses codec ", s.id, ", which this build does not have");
      }
      if (quant::needs_tables({key, value})) {
        const Status tables = check_tables();
        const bool noted = lacking != nullptr && tables.code() == StatusCode::failed_precondition;
        if (noted) *lacking = true;
        if (!tables.ok() && !noted) return tables;
      }
      specs_.push_back({{key, value}, tokens});
    }
    return {};
  }

  Status check_tables() const {
    const CalibrationPtr have = out_.codec_set->calibration();
    if (header_.min_reader < kTablesVersion || header_.calibration == 0)
      return damaged("a codec that needs a calibration in a file that names none");
    if (have && have->id() == header_.calibration) return {};
    char id[17];
    std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(header_.calibration));
    return error(StatusCode::failed_precondition, "the snapshot was made with calibration ", id,
                 have ? " and this is " + have->id_text() : std::string(" and there is none here"),
                 ": its keys cannot be read without it; load that calibration first");
  }

  Status read_layers() {
    const uint64_t streams = static_cast<uint64_t>(header_.layers) * header_.kv_heads;
    if (header_.layers > in_.left() / kLayerBytes || streams > (in_.left() - header_.layers * kLayerBytes) / kStreamBytes) {
      return damaged(header_.layers, " layers of ", header_.kv_heads, " KV heads do not fit the file");
    }
    out_.streams.reserve(streams);
    for (uint32_t l = 0; l < header_.layers; ++l) {
      SnapshotLayer layer;
      layer.length = in_.u32();
      layer.unobserved = in_.u32();
      layer.window_queries = in_.u32();
      layer.window = in_.u32();
      const uint32_t flags = in_.u32(), reserved = in_.u32();
      layer.ring = flags & kLayerRing;
      if (flags > kLayerRing || reserved != 0) return damaged("layer ", l, " has unknown flags");
      if (layer.length >= attn::kDeadPosition) return damaged("layer ", l, " has an impossible length of ", layer.length);
      if (layer.unobserved > layer.length)
        return damaged("layer ", l, ": ", layer.unobserved, " of ", layer.length, " tokens unobserved");
      if (layer.ring && layer.window == 0) return damaged("layer ", l, " is a ring without a window");
      out_.layers.push_back(layer);
    }
    return {};
  }

  // Codecs come in the order of first use, so an index is one that was seen or the next one.
  Result<const CodecEntry*> codec(uint32_t index) {
    if (index > out_.codecs.size() || index >= specs_.size())
      return bad_block("codec index ", index, " is out of order or out of range");
    if (index == out_.codecs.size()) {
      auto entry = out_.codec_set->get(specs_[index].pair, specs_[index].tokens, layer_, head_);
      if (!entry.ok()) {
        if (entry.status().code() == StatusCode::unsupported) return entry.status();
        return bad_block("codec ", index, ": ", entry.status().message());
      }
      for (const CodecEntry* other : out_.codecs) {
        if (other->pair == (*entry)->pair && other->tokens == (*entry)->tokens)
          return bad_block("codec ", index, " is listed twice");
      }
      out_.codecs.push_back(*entry);
    }
    if (!out_.codecs[index]->calibration) return out_.codecs[index];
    auto own = out_.codec_set->get(specs_[index].pair, specs_[index].tokens, layer_, head_);
    if (!own.ok()) return bad_block("codec ", index, ": ", own.status().message());
    return own;
  }

  Status read_block_header(SnapshotBlock& b, bool& sparse, bool& bare) {
    const uint8_t tier = in_.u8(), flags = in_.u8();
    b.rows = in_.u16();
    b.live = in_.u16();
    const uint16_t reserved16 = in_.u16();
    const uint32_t codec_index = in_.u32(), source_index = in_.u32();
    b.first_position = in_.u32();
    const uint32_t reserved32 = in_.u32();
    b.checksum = in_.u64();
    if (in_.failed()) return bad_block("the file ends in it");
    const uint8_t known = header_.min_reader >= kVersion && signals_ != 0 ? kBlockSparse | kBlockBare : kBlockSparse;
    if ((flags & ~known) != 0 || reserved16 != 0 || reserved32 != 0) return bad_block("unknown flags");
    if (tier >= kNumTiers || static_cast<Tier>(tier) == Tier::hot)
      return bad_block("tier ", static_cast<int>(tier), " has no blocks");
    b.tier = static_cast<Tier>(tier);
    sparse = flags & kBlockSparse;
    bare = flags & kBlockBare;
    TIERKV_ASSIGN_OR_RETURN(b.codec, codec(codec_index));
    if (source_index != kNoCodec) {
      TIERKV_ASSIGN_OR_RETURN(b.source, codec(source_index));
    }
    if (b.rows == 0 || b.rows > b.codec->tokens) return bad_block(b.rows, " rows in a block of ", b.codec->tokens);
    if (b.live == 0 || b.live > b.rows) return bad_block(b.live, " live rows of ", b.rows);
    if (b.tier == Tier::sink) {
      // Truncation puts sinks back into the tail as they are, so they must be the tail's own 16-bit rows.
      const uint16_t id = header_.hot_bf16 ? 2 : 1;
      const quant::CodecSpec raw{id, 0, 0, 0, 0};
      if (block_ != 0 || b.first_position != 0) return bad_block("sinks that do not come first");
      if (!(b.codec->pair == quant::CodecPair{raw, raw})) return bad_block("sinks in codec ", quant::to_string(b.codec->pair));
    }
    return {};
  }

  // Positions ascend over blocks and tail; next_ is the lowest that may come. False: they do not, or live is wrong.
  bool check_positions(const SnapshotBlock& b) {
    const uint32_t length = out_.layers[layer_].length;
    if (b.first_position < next_) return false;
    if (b.positions.empty()) {
      if (b.live != b.rows || b.first_position >= length || b.rows > length - b.first_position) return false;
      next_ = b.first_position + b.rows;
      return true;
    }
    uint32_t live = 0;
    next_ = b.first_position;
    for (uint32_t row = 0; row < b.rows; ++row) {
      const uint32_t position = load_u32(b.positions.data() + row * sizeof(uint32_t));
      if (position == kDeadPosition) {
        if (row + 1u == b.rows) return false;  // rows end with a live one
        continue;
      }
      if (position < next_ || position >= length || (row == 0 && position != b.first_position)) return false;
      next_ = position + 1;
      ++live;
    }
    return live == b.live;
  }

  Status read_block() {
    SnapshotBlock b;
    bool sparse = false, bare = false;
    TIERKV_RETURN_IF_ERROR(read_block_header(b, sparse, bare));
    b.positions = in_.take_padded(sparse ? b.rows * sizeof(uint32_t) : 0);
    b.stats = in_.take_padded(bare ? 0 : static_cast<uint64_t>(b.rows) * signals_ * sizeof(float));
    b.keys = in_.take_padded(b.codec->key->bytes());
    b.values = in_.take_padded(b.codec->value->bytes());
    if (in_.failed()) return bad_block("the file ends in it, or its padding is not zero");
    if (!check_positions(b)) return bad_block("its positions do not ascend, leave the sequence, or do not match its counts");
    const uint64_t parts[2] = {checksum(b.keys), checksum(b.values)};
    if (checksum(std::as_bytes(std::span(parts))) != b.checksum) return bad_block("its bytes do not match its checksum");
    for (const auto& [side, bytes] : {std::pair{b.codec->key.get(), b.keys}, std::pair{b.codec->value.get(), b.values}}) {
      if (const Status status = side->validate(bytes); !status.ok()) return bad_block(status.message());
    }
    out_.blocks.push_back(b);
    return {};
  }

  Status check_tail(const SnapshotStream& s, bool sparse) {
    const SnapshotLayer& layer = out_.layers[layer_];
    if (layer.ring ? s.ring_capacity < s.tail_rows || sparse : s.ring_capacity != 0)
      return bad("the tail is neither a ring nor a line");
    if (s.tail_rows == 0) return s.tail_first_position == 0 && !sparse ? Status() : bad("an empty tail with positions");
    if (s.tail_first_position < next_ || s.tail_first_position >= layer.length)
      return bad("the tail's first position ", s.tail_first_position);
    if (!sparse) {
      // A gap may follow after eviction and truncation, but never in a ring.
      const uint32_t most = layer.length - s.tail_first_position;
      if (layer.ring ? s.tail_rows != most : s.tail_rows > most) return bad("the tail does not end where the sequence does");
      return {};
    }
    next_ = s.tail_first_position;
    for (uint32_t i = 0; i < s.tail_rows; ++i) {
      const uint32_t position = load_u32(s.positions.data() + i * sizeof(uint32_t));
      if (position < next_ || position >= layer.length || (i == 0 && position != s.tail_first_position)) {
        return bad("the tail's positions do not ascend or leave the sequence");
      }
      next_ = position + 1;
    }
    return {};
  }

  Status read_stream() {
    SnapshotStream s;
    s.blocks = in_.u32();
    s.tail_rows = in_.u32();
    s.tail_first_position = in_.u32();
    const uint32_t flags = in_.u32();
    s.ring_capacity = in_.u32();
    const uint32_t reserved = in_.u32();
    const SnapshotLayer& layer = out_.layers[layer_];
    const bool sparse = flags & kTailSparse;
    if (in_.failed() || s.blocks > in_.left() / kBlockBytes) return bad(s.blocks, " blocks do not fit the file");
    if (flags > kTailSparse || reserved != 0) return bad("unknown flags");
    if (layer.ring && s.blocks != 0) return bad("a ring has no blocks, this one has ", s.blocks);
    s.first_block = out_.blocks.size();
    next_ = 0;
    for (block_ = 0; block_ < s.blocks; ++block_) TIERKV_RETURN_IF_ERROR(read_block());

    const uint64_t side = static_cast<uint64_t>(s.tail_rows) * header_.head_dim * sizeof(uint16_t);
    s.positions = in_.take_padded(sparse ? s.tail_rows * uint64_t{sizeof(uint32_t)} : 0);
    s.stats = in_.take_padded(static_cast<uint64_t>(s.tail_rows) * signals_ * sizeof(float));
    s.keys = in_.take(side);
    s.values = in_.take(side);
    const uint64_t free_capacity = free_ring_capacity(s.tail_rows, layer.window);
    if (s.ring_capacity > free_capacity)
      in_.take_zeros((s.ring_capacity - free_capacity) * 2 * header_.head_dim * sizeof(uint16_t));
    if (in_.failed()) return bad("the file ends in the tail, or its padding is not zero");
    TIERKV_RETURN_IF_ERROR(check_tail(s, sparse));
    if (!halves_finite(s.keys, header_.hot_bf16) || !halves_finite(s.values, header_.hot_bf16))
      return bad("a hot row is not finite");
    out_.streams.push_back(s);
    return {};
  }

  Reader in_;
  Snapshot& out_;
  const SnapshotHeader& header_;
  uint32_t signals_ = 0;
  std::vector<Spec> specs_;
  uint32_t layer_ = 0, head_ = 0, block_ = 0;
  uint32_t next_ = 0;
};

}  // namespace

Result<SnapshotHeader> read_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kMagic || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::data_loss, "not a tierkv snapshot: its first bytes are others");
  }
  // These three places mean the same in every version, so damage is told from novelty: a newer file is whole first and newer then.
  if (bytes.size() < kHeaderBytes + kTrailerBytes)
    return error(StatusCode::data_loss, "the snapshot is cut short at ", bytes.size(), " bytes");
  const uint64_t claimed = load_u64(bytes.data() + 24);
  if (claimed != bytes.size()) {
    return error(StatusCode::data_loss, "the snapshot says it is ", claimed, " bytes long and is ", bytes.size(),
                 ": truncated or damaged");
  }
  const auto content = bytes.first(bytes.size() - kTrailerBytes);
  if (checksum(content) != load_u64(bytes.data() + content.size())) {
    return error(StatusCode::data_loss, "the snapshot does not match its checksum: some of its ", bytes.size(), " bytes changed");
  }

  Reader in(content.subspan(sizeof kMagic));
  SnapshotHeader h;
  h.version = in.u32();
  h.min_reader = in.u32();
  if (h.min_reader > kVersion) {
    return error(StatusCode::unsupported, "the snapshot has format version ", h.version, " and needs a reader of version ",
                 h.min_reader, "; this build reads up to version ", kVersion);
  }
  if (h.min_reader == 0 || h.version < h.min_reader) return damaged("version ", h.version, " with minimum reader ", h.min_reader);
  if (const uint32_t tag = in.u32(); tag != kEndianTag) return damaged("byte order mark ", tag);
  h.header_bytes = in.u32();
  h.file_bytes = in.u64();
  h.layers = in.u32();
  h.kv_heads = in.u32();
  h.head_dim = in.u32();
  const uint32_t hot_type = in.u32();
  h.signal_mask = in.u32();
  h.codecs = in.u32();
  const uint32_t model_bytes = in.u32();
  const uint32_t flags = in.u32();
  // A newer writer may have a longer header that an old reader can skip; ours is exactly this long.
  if (h.header_bytes < kHeaderBytes || h.header_bytes % 8 != 0 || h.header_bytes > content.size() ||
      (h.version <= kVersion && (h.header_bytes != kHeaderBytes || flags > (h.min_reader >= kTablesVersion ? kHasDeep : 0)))) {
    return damaged("a header of ", h.header_bytes, " bytes");
  }
  if (h.layers == 0 || h.kv_heads == 0 || h.head_dim < 32 || h.head_dim > 256 || h.head_dim % 16 != 0) {
    return damaged(h.layers, " layers, ", h.kv_heads, " KV heads, head_dim ", h.head_dim);
  }
  h.deep = h.min_reader >= kTablesVersion && (flags & kHasDeep);
  if (hot_type != 1 && hot_type != 2) return damaged("hot type ", hot_type);
  h.hot_bf16 = hot_type == 2;
  if (h.signal_mask >> policy::kNumSignals)
    return error(StatusCode::unsupported, "the snapshot has eviction statistics this build does not know: mask ", h.signal_mask);
  if (model_bytes > content.size() - h.header_bytes) return damaged("a model name of ", model_bytes, " bytes");
  h.model.assign(reinterpret_cast<const char*>(content.data() + h.header_bytes), model_bytes);
  if (h.min_reader >= kTablesVersion) {
    const uint64_t at = h.header_bytes + padded(model_bytes);
    if (at + sizeof(uint64_t) > content.size()) return damaged("it ends before the calibration's id");
    h.calibration = load_u64(content.data() + at);
  }
  return h;
}

Result<Snapshot> read_body(std::span<const std::byte> bytes, SnapshotHeader header, const CalibrationPtr& calibration) {
  Snapshot out;
  out.header = std::move(header);
  out.codec_set = std::make_unique<CodecSet>(out.header.head_dim);
  if (calibration && calibration->model.head_dim == out.header.head_dim) out.codec_set->set_calibration(calibration);
  const auto held = out.codec_set->hold_tables();
  TIERKV_RETURN_IF_ERROR(BodyReader(bytes.first(bytes.size() - kTrailerBytes), out).read());
  return out;
}

Result<Outline> read_outline(std::span<const std::byte> bytes, const SnapshotHeader& header, const CalibrationPtr& calibration) {
  Snapshot read;
  read.header = header;
  read.codec_set = std::make_unique<CodecSet>(header.head_dim);
  if (calibration && calibration->model.head_dim == header.head_dim) read.codec_set->set_calibration(calibration);
  Outline out;
  BodyReader reader(bytes.first(bytes.size() - kTrailerBytes), read);
  TIERKV_RETURN_IF_ERROR(reader.read_outline(out.codecs, out.lacks_tables));
  out.layers = std::move(read.layers);
  return out;
}

Status in_file(const std::string& path, const Status& status) {
  return Status(status.code(), quote(path) + ": " + status.message());
}

}  // namespace tierkv::snapshot
