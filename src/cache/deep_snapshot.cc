#include "cache/deep_snapshot.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/f16.h"
#include "base/status_macros.h"
#include "cache/row_batch.h"
#include "deep/archive.h"

namespace tierkv::cache {
namespace {

constexpr uint32_t kLeastTokens = 64;  // fewer are not worth the header
constexpr uint32_t kFirstTokens = 4;   // that every query looks at: never coded
constexpr uint32_t kDefaultRecent = 512;

deep::Book book_of(const DeepCalibration& deep) {
  const calib::Calibration& calibration = *deep.calibration;
  return {deep.tables.get(), [&calibration](uint32_t layer) -> const calib::Turner& { return calibration.turner(layer); }, calibration.id()};
}

// Where new rows go: the coldest tier a layer has.
struct Target {
  const CodecEntry* codec = nullptr;
  const CodecEntry* raw = nullptr;
  Tier tier = Tier::archive;
};

Target target_of(const LayerPlan& plan, uint32_t head) {
  if (plan.warm == kAll) return {plan.warm_codec, plan.raw_warm, Tier::warm};
  return {plan.archive(head), plan.raw_archive, Tier::archive};
}

// Index of the first block that may be coded: after the sinks, or after the block that holds the first tokens.
size_t first_block(const HeadStream& s, const DeepOptions& options) {
  size_t i = 0;
  while (i < s.blocks.size() && (s.blocks[i].block->tier == Tier::sink || s.blocks[i].first_position < std::max(kFirstTokens, options.first_position))) ++i;
  return i;
}

// The end of the last archived block, or of the last block when nothing is ever archived.
uint32_t coldest_end(const HeadStream& s, const LayerPlan& plan) {
  uint32_t end = 0;
  for (const BlockRef& ref : s.blocks) {
    if (ref.block->tier == Tier::archive || (plan.warm == kAll && ref.block->tier == Tier::warm)) end = ref.first_position + ref.rows;
  }
  return end;
}

template <class Body>
void each_stream(const Sequence& sequence, const calib::DeepTables& tables, Body&& body) {
  for (const calib::DeepLayer& layer : tables.coded) {
    for (const HeadStream& s : sequence.heads(layer.layer)) body(s, layer.layer);
  }
}

// Rows [first, first + count) of one head, decoded.
void read_rows(const HeadStream& s, uint32_t head_dim, uint32_t first, uint32_t count, size_t stride, float* keys, float* values) {
  thread_local std::vector<float> rows;
  size_t b = 0;
  for (size_t low = 0, high = s.blocks.size(); low < high;) {
    const size_t mid = (low + high) / 2;
    if (s.blocks[mid].first_position <= first) b = mid, low = mid + 1;
    else high = mid;
  }
  for (uint32_t done = 0; done < count; ++b) {
    const BlockRef& ref = s.blocks[b];
    const uint32_t from = first + done - ref.first_position, n = std::min(count - done, ref.rows - from);
    const quant::BlockContext ctx{s.layer, s.head, ref.first_position, nullptr};
    rows.resize(2 * static_cast<size_t>(n) * head_dim);
    float* value_rows = rows.data() + static_cast<size_t>(n) * head_dim;
    ref.block->codec->key->decode(ref.block->keys(), ctx, from, n, rows.data());
    ref.block->codec->value->decode(ref.block->values(), ctx, from, n, value_rows);
    for (uint32_t i = 0; i < n; ++i) {
      std::copy_n(rows.data() + static_cast<size_t>(i) * head_dim, head_dim, keys + (done + i) * stride);
      std::copy_n(value_rows + static_cast<size_t>(i) * head_dim, head_dim, values + (done + i) * stride);
    }
    done += n;
  }
}

}  // namespace

DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans, const calib::DeepTables& tables,
                      const DeepOptions& options) {
  DeepRun run;
  const auto nothing = [&](std::string why) {
    run.first = run.end = 0;
    run.note = "nothing is in the deep archive: " + std::move(why);
    return run;
  };
  if (env.lanes) return nothing("the cache keeps eviction statistics of every token, which a deep archive cannot hold");
  uint32_t length = std::numeric_limits<uint32_t>::max();
  for (const calib::DeepLayer& layer : tables.coded) {
    if (plans[layer.layer].window) return nothing("layer " + std::to_string(layer.layer) + " slides in this cache and did not when it was calibrated");
    length = std::min(length, sequence.layer(layer.layer).length);
  }
  uint32_t end = options.keep_recent == DeepOptions::kTiers ? length : length - std::min(length, options.keep_recent), first = 0;
  bool have_first = false, agree = true;
  each_stream(sequence, tables, [&](const HeadStream& s, uint32_t l) {
    const size_t from = first_block(s, options);
    const uint32_t at = from < s.blocks.size() ? s.blocks[from].first_position : length;
    agree &= !have_first || at == first;
    first = have_first ? std::max(first, at) : at;
    have_first = true;
    if (options.keep_recent != DeepOptions::kTiers) return;
    end = std::min(end, coldest_end(s, plans[l]));
    if (plans[l].warm == kAll) end = std::min(end, length - std::min(length, kDefaultRecent));
  });
  if (!agree) return nothing("its KV heads do not start at the same token: some were evicted");
  // Back to where every head has a boundary of blocks, and nothing before it is missing.
  const uint32_t wanted = end;
  for (bool moved = true; moved;) {
    moved = false;
    each_stream(sequence, tables, [&](const HeadStream& s, uint32_t l) {
      uint32_t next = first;
      for (size_t i = first_block(s, options); i < s.blocks.size() && next < end; ++i) {
        const BlockRef& ref = s.blocks[i];
        if (ref.positions || ref.live != ref.rows || ref.first_position != next) {
          run.note = "from position " + std::to_string(next) + " on tokens are missing in layer " + std::to_string(l) + ", head " + std::to_string(s.head) +
                     " (evicted): they stay in an ordinary snapshot";
          break;
        }
        if (next + ref.rows > end) break;
        next += ref.rows;
      }
      if (next < end) end = next, moved = true;
    });
  }
  if (end < first + kLeastTokens) {
    if (!run.note.empty()) return nothing(run.note);
    return nothing("only " + std::to_string(wanted > first ? wanted - first : 0) + " tokens lie between the first and the recent ones");
  }
  run.first = first;
  run.end = end;
  return run;
}

Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, const DeepCalibration& calibration, const DeepRun& run,
                             const DeepOptions& options, uint32_t threads, DeepReport* report) {
  const calib::DeepTables& tables = *calibration.tables;
  DeepPart part;
  part.first = run.first;
  part.end = run.end;
  part.calibration = calibration.calibration->id();
  part.layers.resize(sequence.num_layers());
  for (const calib::DeepLayer& layer : tables.coded) part.layers[layer.layer] = true;
  deep::EncodeOptions encode;
  encode.ratio = options.ratio;
  encode.quality = options.quality;
  encode.threads = threads;
  const size_t stride = static_cast<size_t>(sequence.kv_heads()) * env.head_dim;
  const deep::ReadRows read = [&](uint32_t layer, uint32_t first, uint32_t count, float* keys, float* values) {
    for (const HeadStream& s : sequence.heads(layer)) {
      read_rows(s, env.head_dim, run.first + first, count, stride, keys + s.head * env.head_dim, values + s.head * env.head_dim);
    }
  };
  deep::EncodeReport made;
  TIERKV_ASSIGN_OR_RETURN(part.bytes, deep::encode(book_of(calibration), run.first, run.end - run.first, read, encode, &made));
  if (report) {
    report->tokens = run.end - run.first;
    report->first_position = run.first;
    report->bytes = made.bytes;
    report->ratio = made.ratio;
    report->quality = made.quality;
  }
  return part;
}

Status check_deep(const Snapshot& snapshot) {
  auto info = deep::inspect(snapshot.deep);
  if (!info.ok()) return info.status();
  const uint32_t end = info->first_position + info->tokens;
  if (info->kv_heads != snapshot.header.kv_heads || info->head_dim != snapshot.header.head_dim || info->layers > snapshot.header.layers) {
    return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is of another shape");
  }
  if (info->calibration != snapshot.header.calibration) {
    return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is of another calibration than it says");
  }
  for (uint32_t l = 0; l < snapshot.header.layers; ++l) {
    if (snapshot.layers[l].ring || snapshot.layers[l].window) continue;
    if (end > snapshot.layers[l].length) return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is longer than layer ", l);
  }
  return {};
}

uint64_t deep_needed_bytes(const Snapshot& snapshot, std::span<const LayerPlan> plans, const calib::DeepTables& tables) {
  const auto info = deep::inspect(snapshot.deep);
  if (!info.ok()) return 0;
  uint64_t total = 0;
  for (const calib::DeepLayer& layer : tables.coded) {
    for (uint32_t h = 0; h < snapshot.header.kv_heads; ++h) {
      const Target target = target_of(plans[layer.layer], h);
      const uint64_t blocks = (info->tokens + target.codec->tokens - 1) / target.codec->tokens;
      const uint64_t refs = blocks + snapshot.streams[static_cast<size_t>(layer.layer) * snapshot.header.kv_heads + h].blocks;
      total += blocks * Arena::rounded(Block::total_bytes(*target.codec)) + Arena::rounded(refs * sizeof(BlockRef));
    }
  }
  return total;
}

namespace {

// The run as 16-bit rows, [coded layer][head][token][head_dim].
class Staging {
 public:
  Staging(const deep::ArchiveInfo& info, const calib::DeepTables& tables)
      : tokens_(info.tokens), heads_(info.kv_heads), dim_(info.head_dim), slot_(tables.layers, 0) {
    for (size_t i = 0; i < tables.coded.size(); ++i) slot_[tables.coded[i].layer] = i;
    const size_t rows = tables.coded.size() * heads_ * tokens_;
    keys_.resize(rows * dim_);
    values_.resize(rows * dim_);
  }
  void put(uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
    for (uint32_t t = 0; t < count; ++t) {
      for (uint32_t h = 0; h < heads_; ++h) {
        const size_t to = at(layer, h, first + t), from = (static_cast<size_t>(t) * heads_ + h) * dim_;
        for (uint32_t c = 0; c < dim_; ++c) {
          keys_[to + c] = f32_to_f16(keys[from + c]);
          values_[to + c] = f32_to_f16(values[from + c]);
        }
      }
    }
  }
  void get(uint32_t layer, uint32_t head, uint32_t first, uint32_t count, std::vector<float>& keys, std::vector<float>& values) const {
    const size_t from = at(layer, head, first), n = static_cast<size_t>(count) * dim_;
    keys.resize(n);
    values.resize(n);
    for (size_t i = 0; i < n; ++i) {
      keys[i] = f16_to_f32(keys_[from + i]);
      values[i] = f16_to_f32(values_[from + i]);
    }
  }

 private:
  size_t at(uint32_t layer, uint32_t head, uint32_t token) const { return ((slot_[layer] * heads_ + head) * tokens_ + token) * dim_; }
  size_t tokens_, heads_, dim_;
  std::vector<size_t> slot_;
  std::vector<uint16_t> keys_, values_;
};

// Seals the run into blocks between those the stream has. False: no memory, or the stream has rows there already (`clash`).
bool insert_stream(const StreamEnv& env, const Staging& rows, const Target& target, const deep::ArchiveInfo& info, HeadStream& s, bool& clash) {
  const uint32_t end = info.first_position + info.tokens;
  size_t before = 0;
  while (before < s.blocks.size() && s.blocks[before].first_position < info.first_position) ++before;
  clash = (before > 0 && s.blocks[before - 1].position(s.blocks[before - 1].rows - 1u) >= info.first_position) ||
          (before < s.blocks.size() && s.blocks[before].first_position < end) || (s.tail.rows() && s.tail.position(0) < end);
  if (clash) return false;
  const size_t old = s.blocks.size(), fresh = (info.tokens + target.codec->tokens - 1) / target.codec->tokens;
  if (!s.blocks.reserve(*env.arena, old + fresh)) return false;
  for (uint32_t at = 0; at < info.tokens; at += target.codec->tokens) {
    const uint32_t count = std::min(target.codec->tokens, info.tokens - at);
    RowBatch& batch = scratch_batch();
    rows.get(s.layer, s.head, at, count, batch.keys, batch.values);
    for (uint32_t i = 0; i < count; ++i) batch.positions.push_back(info.first_position + at + i);
    batch.stats.assign(static_cast<size_t>(count) * env.lanes, 0.0f);
    auto ref = seal(env, batch, *target.codec, *target.raw, target.tier, nullptr, s.layer, s.head, Arena::Use::normal);
    if (!ref) return false;
    s.blocks.push_reserved(*ref);
  }
  std::rotate(s.blocks.begin() + before, s.blocks.begin() + old, s.blocks.begin() + s.blocks.size());
  return true;
}

}  // namespace

Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans, const DeepCalibration& calibration,
                   ThreadPool& pool, Sequence& sequence) {
  TIERKV_ASSIGN_OR_RETURN(const deep::ArchiveInfo info, deep::inspect(snapshot.deep));
  const calib::DeepTables& tables = *calibration.tables;
  Staging rows(info, tables);
  const deep::WriteRows write = [&](uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
    rows.put(layer, first, count, keys, values);
  };
  TIERKV_RETURN_IF_ERROR(deep::decode(snapshot.deep, book_of(calibration), pool.threads(), write));
  std::atomic<bool> clashed{false}, full{false};
  const uint32_t streams = static_cast<uint32_t>(tables.coded.size()) * sequence.kv_heads();
  pool.run(streams, [&](uint32_t i) {
    const uint32_t layer = tables.coded[i / sequence.kv_heads()].layer, head = i % sequence.kv_heads();
    bool clash = false;
    if (!insert_stream(env, rows, target_of(plans[layer], head), info, sequence.heads(layer)[head], clash)) (clash ? clashed : full) = true;
  });
  if (clashed) return error(StatusCode::data_loss, "the snapshot contradicts itself: tokens of its deep archive are in a stream as well");
  if (full) return error(StatusCode::resource_exhausted, "no memory for the tokens of the deep archive");
  return {};
}

}  // namespace tierkv::cache
