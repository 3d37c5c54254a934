#include "snapshot/deep_part.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/f16.h"
#include "base/status_macros.h"
#include "tiers/parked.h"
#include "tiers/row_batch.h"

namespace tierkv::snapshot {
namespace {

constexpr uint32_t kLeastTokens = 64;  // fewer are not worth the header
constexpr uint32_t kFirstTokens = 4;   // that every query looks at: never coded
constexpr uint32_t kDefaultRecent = 512;

deep::Book book_of(const DeepCalibration& deep) {
  const calib::Calibration& calibration = *deep.calibration;
  return {deep.tables.get(), [&calibration](uint32_t layer) -> const calib::Turner& { return calibration.turner(layer); },
          calibration.id()};
}

// Where new rows go: the coldest tier a layer has.
struct Target {
  const CodecEntry* codec = nullptr;
  const CodecEntry* raw = nullptr;
  Tier tier = Tier::archive;
};

Target target_of(const LayerPlan& plan, uint32_t head) {
  if (plan.warm == kAll) return {plan.warm_of(head), plan.raw_warm, Tier::warm};
  return {plan.archive(head), plan.raw_archive, Tier::archive};
}

// Index of the first block that may be coded: after the sinks, or after the block that holds the first tokens.
size_t first_block(const HeadStream& s, const DeepOptions& options) {
  size_t i = 0;
  while (i < s.blocks.size() &&
         (s.blocks[i].block->tier == Tier::sink || s.blocks[i].first_position < std::max(kFirstTokens, options.first_position)))
    ++i;
  return i;
}

// The end of the last archived block, or of the last block when nothing is ever archived.
uint32_t coldest_end(const HeadStream& s, const LayerPlan& plan) {
  uint32_t end = 0;
  for (const BlockRef& ref : s.blocks) {
    if (ref.block->tier == Tier::archive || (plan.warm == kAll && ref.block->tier == Tier::warm))
      end = ref.first_position + ref.rows;
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

DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                      const calib::DeepTables& tables, const DeepOptions& options) {
  DeepRun run;
  const auto nothing = [&](std::string why) {
    run.first = run.end = 0;
    run.note = "nothing is in the deep archive: " + std::move(why);
    return run;
  };
  if (env.signals) return nothing("the cache keeps eviction statistics of every token, which a deep archive cannot hold");
  uint32_t length = std::numeric_limits<uint32_t>::max();
  for (const calib::DeepLayer& layer : tables.coded) {
    if (plans[layer.layer].window)
      return nothing("layer " + std::to_string(layer.layer) + " slides in this cache and did not when it was calibrated");
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
          run.note = "from position " + std::to_string(next) + " on tokens are missing in layer " + std::to_string(l) + ", head " +
                     std::to_string(s.head) + " (evicted): they stay in an ordinary snapshot";
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
    return nothing("only " + std::to_string(wanted > first ? wanted - first : 0) +
                   " tokens lie between the first and the recent ones");
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
  if (info->kv_heads != snapshot.header.kv_heads || info->head_dim != snapshot.header.head_dim ||
      info->layers > snapshot.header.layers) {
    return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is of another shape");
  }
  if (info->calibration != snapshot.header.calibration) {
    return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is of another calibration than it says");
  }
  for (uint32_t l = 0; l < snapshot.header.layers; ++l) {
    if (snapshot.layers[l].ring || snapshot.layers[l].window) continue;
    if (end > snapshot.layers[l].length)
      return error(StatusCode::data_loss, "the snapshot contradicts itself: its deep archive is longer than layer ", l);
  }
  return {};
}

namespace {

// The part of a stream, from the run's token `done` on, that goes into blocks of one kind.
struct Segment {
  Target target;
  uint32_t end = 0;  // in tokens of the run
};
Segment segment_at(const DeepTarget& target, const deep::ArchiveInfo& info, uint32_t layer, uint32_t head, uint32_t done) {
  const LayerPlan& plan = target.plans[layer];
  const uint32_t end = info.first_position + info.tokens;
  const uint32_t warm =
      target.warm_from.empty() ? end : std::min(end, target.warm_from[static_cast<size_t>(layer) * info.kv_heads + head]);
  if (info.first_position + done >= warm && plan.warm_codec) return {{plan.warm_of(head), plan.raw_warm, Tier::warm}, info.tokens};
  return {target_of(plan, head), (plan.warm_codec ? warm : end) - info.first_position};
}

template <class Body>
void each_block(const DeepTarget& target, const deep::ArchiveInfo& info, uint32_t layer, uint32_t head, Body&& body) {
  for (uint32_t done = 0; done < info.tokens;) {
    const Segment segment = segment_at(target, info, layer, head, done);
    body(*segment.target.codec);
    done += std::min(segment.target.codec->tokens, segment.end - done);
  }
}

}  // namespace

uint64_t deep_block_bytes(const deep::ArchiveInfo& info, const calib::DeepTables& tables, const DeepTarget& target) {
  uint64_t total = 0;
  for (const calib::DeepLayer& layer : tables.coded) {
    for (uint32_t h = 0; h < info.kv_heads; ++h) {
      each_block(target, info, layer.layer, h,
                 [&](const CodecEntry& codec) { total += Arena::rounded(Block::total_bytes(codec)); });
    }
  }
  return total;
}

uint64_t deep_needed_bytes(const Snapshot& snapshot, std::span<const LayerPlan> plans, const calib::DeepTables& tables) {
  const auto info = deep::inspect(snapshot.deep);
  if (!info.ok()) return 0;
  const DeepTarget target{plans, {}};
  uint64_t total = deep_block_bytes(*info, tables, target);
  for (const calib::DeepLayer& layer : tables.coded) {
    for (uint32_t h = 0; h < snapshot.header.kv_heads; ++h) {
      uint64_t refs = snapshot.streams[static_cast<size_t>(layer.layer) * snapshot.header.kv_heads + h].blocks;
      each_block(target, *info, layer.layer, h, [&](const CodecEntry&) { ++refs; });
      total += Arena::rounded(refs * sizeof(BlockRef));
    }
  }
  return total;
}

// The run as 16-bit rows, [coded layer][head][token][head_dim].
class DeepReturn::Rows {
 public:
  Rows(const deep::ArchiveInfo& info, const calib::DeepTables& tables)
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
  void get(uint32_t layer, uint32_t head, uint32_t first, uint32_t count, std::vector<float>& keys,
           std::vector<float>& values) const {
    const size_t from = at(layer, head, first), n = static_cast<size_t>(count) * dim_;
    keys.resize(n);
    values.resize(n);
    for (size_t i = 0; i < n; ++i) {
      keys[i] = f16_to_f32(keys_[from + i]);
      values[i] = f16_to_f32(values_[from + i]);
    }
  }

 private:
  size_t at(uint32_t layer, uint32_t head, uint32_t token) const {
    return ((slot_[layer] * heads_ + head) * tokens_ + token) * dim_;
  }
  size_t tokens_, heads_, dim_;
  std::vector<size_t> slot_;
  std::vector<uint16_t> keys_, values_;
};

DeepReturn::DeepReturn(const StreamEnv& env, const DeepTarget& target, const DeepCalibration& calibration)
    : env_(env), target_(target), calibration_(calibration) {}

DeepReturn::~DeepReturn() {
  for (Stream& s : streams_) {
    for (BlockRef& ref : s.blocks) {
      if (ref.block) release_ref(env_, ref);
    }
  }
}

Status DeepReturn::decode(std::span<const std::byte> bytes, uint32_t threads) {
  TIERKV_ASSIGN_OR_RETURN(info_, deep::inspect(bytes));
  const calib::DeepTables& tables = *calibration_.tables;
  rows_ = std::make_unique<Rows>(info_, tables);
  const deep::WriteRows write = [&](uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values) {
    rows_->put(layer, first, count, keys, values);
  };
  TIERKV_RETURN_IF_ERROR(deep::decode(bytes, book_of(calibration_), threads, write));
  for (const calib::DeepLayer& layer : tables.coded) {
    for (uint32_t h = 0; h < info_.kv_heads; ++h) {
      Stream& s = streams_.emplace_back();
      s.layer = layer.layer, s.head = h;
      size_t blocks = 0;
      each_block(target_, info_, s.layer, h, [&](const CodecEntry&) { ++blocks; });
      s.blocks.reserve(blocks);
    }
  }
  return {};
}

bool DeepReturn::seal_stream(Stream& s) {
  while (s.done < info_.tokens) {
    const Segment segment = segment_at(target_, info_, s.layer, s.head, s.done);
    const Target& target = segment.target;
    const uint32_t count = std::min(target.codec->tokens, segment.end - s.done);
    RowBatch& batch = scratch_batch();
    rows_->get(s.layer, s.head, s.done, count, batch.keys, batch.values);
    for (uint32_t i = 0; i < count; ++i) batch.positions.push_back(info_.first_position + s.done + i);
    batch.stats.assign(static_cast<size_t>(count) * env_.signals, 0.0f);
    auto ref = tiers::seal(env_, batch, *target.codec, *target.raw, target.tier, nullptr, s.layer, s.head, Arena::Use::normal);
    if (!ref) return false;
    s.blocks.push_back(*ref);
    s.done += count;
  }
  return true;
}

bool DeepReturn::seal(ThreadPool& pool) {
  std::atomic<bool> full{false};
  pool.run(static_cast<uint32_t>(streams_.size()), [&](uint32_t i) {
    if (!seal_stream(streams_[i])) full = true;
  });
  return !full;
}

Status DeepReturn::commit(Sequence& sequence) {
  const uint32_t first = info_.first_position, end = first + info_.tokens;
  std::vector<size_t> before(streams_.size(), 0);
  for (size_t i = 0; i < streams_.size(); ++i) {
    HeadStream& s = sequence.heads(streams_[i].layer)[streams_[i].head];
    size_t& at = before[i];
    while (at < s.blocks.size() && s.blocks[at].first_position < first) ++at;
    const bool clash = (at > 0 && s.blocks[at - 1].position(s.blocks[at - 1].rows - 1u) >= first) ||
                       (at < s.blocks.size() && s.blocks[at].first_position < end) || (s.tail.rows() && s.tail.position(0) < end);
    if (clash)
      return error(StatusCode::data_loss, "the snapshot contradicts itself: tokens of its deep archive are in a stream as well");
    if (!s.blocks.reserve(*env_.arena, s.blocks.size() + streams_[i].blocks.size())) {
      return error(StatusCode::resource_exhausted, "no memory for the tokens of the deep archive");
    }
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    HeadStream& s = sequence.heads(streams_[i].layer)[streams_[i].head];
    const size_t old = s.blocks.size();
    for (const BlockRef& ref : streams_[i].blocks) s.blocks.push_reserved(ref);
    std::rotate(s.blocks.begin() + before[i], s.blocks.begin() + old, s.blocks.begin() + s.blocks.size());
  }
  streams_.clear();
  return {};
}

uint64_t DeepReturn::sealed_bytes() const {
  uint64_t total = 0;
  for (const Stream& s : streams_) {
    for (const BlockRef& ref : s.blocks) total += ref.block->total_bytes();
  }
  return total;
}

bool DeepReturn::hand_over(std::span<const std::byte> bytes, PackedBytes& to) {
  std::vector<Block*> blocks;
  std::vector<uint32_t> tokens;
  for (const Stream& s : streams_) {
    for (const BlockRef& ref : s.blocks) blocks.push_back(ref.block), tokens.push_back(ref.block->codec->tokens);
  }
  if (!to.take_over(*env_.arena, bytes, blocks)) return false;
  size_t i = 0;
  for (Stream& s : streams_) {
    for (BlockRef& ref : s.blocks) {
      if (!blocks[i]) release_ref_arrays(env_, ref, tokens[i]);
      ref.block = blocks[i++];
    }
  }
  return true;
}

Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                   const DeepCalibration& calibration, ThreadPool& pool, Sequence& sequence) {
  DeepReturn coming(env, {plans, {}}, calibration);
  TIERKV_RETURN_IF_ERROR(coming.decode(snapshot.deep, pool.threads()));
  if (!coming.seal(pool)) return error(StatusCode::resource_exhausted, "no memory for the tokens of the deep archive");
  return coming.commit(sequence);
}

}  // namespace tierkv::snapshot
