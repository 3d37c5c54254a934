#include "snapshot/deep_part.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "base/mapped_memory.h"
#include "base/per_thread.h"
#include "base/status_macros.h"
#include "store/packed_group.h"

namespace tierkv::snapshot {
namespace {

constexpr uint32_t kLeastTokens = 64;  // fewer are not worth the header
constexpr uint32_t kFirstTokens = 4;   // that every query looks at: never coded
constexpr uint32_t kDefaultRecent = 512;

// Index of the first block that may be coded: after the sinks, after the block that holds the first tokens, after what is packed.
size_t first_block(const HeadStream& s, const DeepOptions& options) {
  const uint32_t least = std::max(kFirstTokens, options.first_position);
  const auto skipped = [&](const BlockRef& ref) {
    return ref.block.tier() == Tier::sink || ref.first_position < least || ref.block.packed();
  };
  size_t i = 0;
  while (i < s.blocks.size() && skipped(s.blocks[i])) ++i;
  return i;
}

// The end of the last archived block, or of the last block when nothing is ever archived.
uint32_t coldest_end(const HeadStream& s, const LayerPlan& plan) {
  uint32_t end = 0;
  for (const BlockRef& ref : s.blocks) {
    if (ref.block.tier() == Tier::archive || (plan.warm == kAll && ref.block.tier() == Tier::warm))
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

// What did not go as it should while rows were read, by several threads.
struct ReadFaults {
  std::atomic<uint64_t> copies = 0;  // in the cold file that could not be read: the blocks themselves served
  std::atomic<uint64_t> blocks = 0;  // those elsewhere that could not be read either: nothing served
};

// A block's bytes at their best: what lies over it, else its copy in the cold file, else its own, in memory or elsewhere.
class BestBytes {
 public:
  BestBytes(const StreamEnv& env, const BlockRef& ref, std::vector<std::byte>& image, ReadFaults& faults)
      : codec_(ref.block.codec()) {
    store::ColdCopy* copy = ref.promoted() ? nullptr : env.store->copy(ref.block);
    if (copy) {
      image.resize(copy->sizes.total());
      if (env.store->cold()->read(*copy, image).ok()) {
        codec_ = copy->codec;
        bytes_ = tiers::split(image, *codec_);
        return;
      }
      ++faults.copies;
    }
    if (ref.block.resident()) {
      pin_.emplace(*env.store, ref.block);
      bytes_ = {pin_->keys(), pin_->values()};
      return;
    }
    if (!env.store->load(ref.block, image).ok()) {
      ++faults.blocks;
      std::fill(image.begin(), image.end(), std::byte{0});  // something to decode; nobody gets it
    }
    bytes_ = tiers::split(image, *codec_);
  }
  const CodecEntry& codec() const { return *codec_; }
  std::span<const std::byte> keys() const { return bytes_.keys; }
  std::span<const std::byte> values() const { return bytes_.values; }

 private:
  std::optional<tiers::Pin> pin_;
  const CodecEntry* codec_;
  store::BlockBytes bytes_;
};

// Rows [first, first + count) of one head, decoded.
void read_rows(const StreamEnv& env, const HeadStream& s, uint32_t first, uint32_t count, size_t stride, float* keys, float* values,
               ReadFaults& faults) {
  const uint32_t head_dim = env.head_dim;
  struct Rows {
    std::vector<float> decoded;
    std::vector<std::byte> image;
  };
  std::vector<float>& rows = per_thread<Rows>().decoded;
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
    const BestBytes best(env, ref, per_thread<Rows>().image, faults);
    const attn::DecodeWork sides[] = {
        {best.codec().key.get(), best.keys(), ctx, from, n, rows.data()},
        {best.codec().value.get(), best.values(), ctx, from, n, value_rows},
    };
    env.backend->decode(sides, attn::in_turn());
    for (uint32_t i = 0; i < n; ++i) {
      std::copy_n(rows.data() + static_cast<size_t>(i) * head_dim, head_dim, keys + (done + i) * stride);
      std::copy_n(value_rows + static_cast<size_t>(i) * head_dim, head_dim, values + (done + i) * stride);
    }
    done += n;
  }
}

// What a report says of archive blocks whose rows came from the archive though there is a cold file; empty: none did.
std::string note_of_missing(const StreamEnv& env, const Sequence& sequence, const calib::DeepTables& tables, const DeepRun& run,
                            uint64_t unread) {
  if (!env.store->cold()) return {};
  uint64_t blocks = 0, without = 0;
  each_stream(sequence, tables, [&](const HeadStream& s, uint32_t) {
    for (const BlockRef& ref : s.blocks) {
      if (ref.block.tier() != Tier::archive || ref.first_position < run.first || ref.first_position >= run.end) continue;
      ++blocks;
      without += !ref.promoted() && !env.store->copy(ref.block);
    }
  });
  std::string note;
  if (without) {
    note = std::to_string(without) + " of " + std::to_string(blocks) + " archive blocks have no cold copy";
  } else if (unread) {
    note = "the cold file could not be read " + std::to_string(unread) + " times";
  }
  return note.empty() ? note : note + ": these rows have the archive's errors as well";
}

DeepRun find_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans, const calib::DeepTables& tables,
                 const DeepOptions& options) {
  DeepRun run;
  const auto nothing = [&](std::string why) {
    run.first = run.end = 0;
    run.note = "nothing is in the deep archive: " + std::move(why);
    return run;
  };
  if (env.keeps_stats(Tier::archive))
    return nothing("the cache keeps eviction statistics of every token, which a deep archive cannot hold");
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
        if (ref.block.packed()) break;
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

// What is loaded is archived where there is an archive. Behind tokens that are still warm it would be out of order: such a run,
// from DeepOptions::first_position on, is left to the ordinary snapshot.
bool behind_warm_tokens(const Sequence& sequence, std::span<const LayerPlan> plans, const calib::DeepTables& tables,
                        uint32_t first) {
  bool behind = false;
  each_stream(sequence, tables, [&](const HeadStream& s, uint32_t l) {
    for (const BlockRef& ref : s.blocks) {
      behind |= plans[l].warm != kAll && ref.block.tier() == Tier::warm && ref.first_position < first;
    }
  });
  return behind;
}

}  // namespace

deep::ModelTables DeepCalibration::model_tables() const {
  const calib::Calibration* of = calibration.get();
  return {tables.get(), [of](uint32_t layer) -> const calib::Turner& { return of->turner(layer); }, of->id()};
}

Result<DeepCalibration> deep_calibration(CalibrationPtr calibration) {
  DeepCalibration out{std::move(calibration), nullptr};
  if (!out.calibration) {
    return error(StatusCode::failed_precondition,
                 "a deep archive needs the tables of a calibration, and this cache has none; `tierkv calibrate --deep` makes them");
  }
  TIERKV_ASSIGN_OR_RETURN(out.tables, out.calibration->deep_tables());
  return out;
}

DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                      const calib::DeepTables& tables, const DeepOptions& options) {
  const DeepRun run = find_run(env, sequence, plans, tables, options);
  for (const store::PackedGroup* group : sequence.packed) {
    if (run.first != run.end) break;
    DeepOptions behind = options;
    behind.first_position = std::max(options.first_position, group->end);
    DeepRun next = find_run(env, sequence, plans, tables, behind);
    if (next.first != next.end) return next;
  }
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
  ReadFaults faults;
  const deep::ReadRows read = [&](uint32_t layer, uint32_t first, uint32_t count, float* keys, float* values) {
    for (const HeadStream& s : sequence.heads(layer)) {
      read_rows(env, s, run.first + first, count, stride, keys + s.head * env.head_dim, values + s.head * env.head_dim, faults);
    }
  };
  deep::EncodeReport made;
  TIERKV_ASSIGN_OR_RETURN(part.bytes,
                          deep::encode(calibration.model_tables(), run.first, run.end - run.first, read, encode, &made));
  if (faults.blocks != 0)
    return error(StatusCode::data_loss,
                 "blocks of the sequence cannot be read from the cold file, or from the device that has them");
  if (report) {
    report->tokens = run.end - run.first;
    report->first_position = run.first;
    report->bytes = made.bytes;
    report->ratio = made.ratio;
    report->quality = made.quality;
    const std::string missing = note_of_missing(env, sequence, tables, run, faults.copies);
    if (!missing.empty()) report->note += (report->note.empty() ? "" : "; ") + missing;
  }
  return part;
}

Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                             const DeepCalibration& calibration, const DeepOptions& options, uint32_t threads, DeepReport& report) {
  const ReturnHeapMemory after;
  const DeepRun run = find_deep_run(env, sequence, plans, *calibration.tables, options);
  report = DeepReport();
  report.note = run.note;
  if (run.first == run.end) return DeepPart();
  if (behind_warm_tokens(sequence, plans, *calibration.tables, run.first)) {
    report.note = "nothing is in the deep archive: tokens before first_position are not archived yet";
    return DeepPart();
  }
  return encode_deep(env, sequence, calibration, run, options, threads, &report);
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

}  // namespace tierkv::snapshot
