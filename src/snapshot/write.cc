// write.cc — a sequence to bytes. One walk does both jobs: the first counts, so that the second writes into exactly enough.
#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_map>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "snapshot/deep_part.h"
#include "snapshot/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace format;

// Counts when it has no buffer.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  size_t size() const { return at_; }

  void u8(uint8_t x) { integer(x, 1); }
  void u16(uint16_t x) { integer(x, 2); }
  void u32(uint32_t x) { integer(x, 4); }
  void u64(uint64_t x) { integer(x, 8); }
  void bytes(const void* from, size_t n) {
    if (to_ && n) std::memcpy(to_ + at_, from, n);
    at_ += n;
  }
  void zeros(size_t n) {
    if (to_ && n) std::memset(to_ + at_, 0, n);
    at_ += n;
  }
  // Up to the next multiple of 8.
  void align() { zeros(padded(at_) - at_); }

 private:
  void integer(uint64_t x, size_t n) {
    for (size_t i = 0; to_ && i < n; ++i) to_[at_ + i] = static_cast<std::byte>(x >> (8 * i));
    at_ += n;
  }

  std::byte* to_;
  size_t at_ = 0;
};

// Codecs in the order blocks first mention them.
class CodecTable {
 public:
  // Codecs that every head has its own of are one in the file: the place of a block says whose.
  void add(const CodecEntry* entry) {
    if (!entry || index_.contains(entry)) return;
    const auto same = [&](const CodecEntry* e) { return e->pair == entry->pair && e->tokens == entry->tokens; };
    const auto at = entry->calibration ? std::find_if(entries_.begin(), entries_.end(), same) : entries_.end();
    index_.emplace(entry, static_cast<uint32_t>(at - entries_.begin()));
    if (at == entries_.end()) entries_.push_back(entry);
    if (entry->calibration) calibration_ = entry->calibration;
  }
  const CalibrationPtr& calibration() const { return calibration_; }
  uint32_t index(const CodecEntry* entry) const { return entry ? index_.at(entry) : kNoCodec; }
  const std::vector<const CodecEntry*>& entries() const { return entries_; }

 private:
  std::unordered_map<const CodecEntry*, uint32_t> index_;
  std::vector<const CodecEntry*> entries_;
  CalibrationPtr calibration_;
};

struct Job {
  const StreamEnv& env;
  const Sequence& sequence;
  std::span<const LayerPlan> plans;
  const SnapshotShape& shape;
  const DeepPart* deep;
  const RunRange* run;
  CodecTable codecs;
  bool bare = false;                                               // some block is
  std::unordered_map<const void*, std::vector<std::byte>> loaded;  // blocks that are elsewhere and kept

  store::BlockBytes bytes(const BlockRef& ref) const {
    if (!ref.block.elsewhere()) return env.store->bytes(ref.block);
    return tiers::split(loaded.at(ref.block.identity()), *ref.block.codec());
  }

  bool calibrated() const { return deep || codecs.calibration(); }
  uint64_t calibration() const { return deep ? deep->calibration : calibrated() ? codecs.calibration()->id() : 0; }
  // The oldest that says all there is to say.
  bool is_bare(const BlockRef& ref) const { return env.signals != 0 && ref.stats == nullptr; }
  uint32_t version() const {
    if (bare) return kVersion;
    for (const CodecEntry* entry : codecs.entries()) {
      if (entry->pair.key.top != 0 || entry->pair.value.top != 0) return kVersion;
    }
    return calibrated() ? kTablesVersion : kPlainVersion;
  }
  bool kept(const HeadStream& s, const BlockRef& ref) const {
    return !ref.block.packed() && !(deep && deep->covers(s.layer, ref)) && in_run(s, ref);
  }
  // Layers with a window go with the rest, whole: what they hold is the newest tokens.
  bool in_run(const HeadStream& s, const BlockRef& ref) const {
    if (!run) return true;
    if (plans[s.layer].window != 0) return run->rest;
    return ref.first_position >= run->first && (run->rest || ref.first_position < run->end);
  }
  bool has_tails() const { return !run || run->rest; }
};

void write_spec(Writer& w, const quant::CodecSpec& spec) {
  w.u16(spec.id);
  w.u8(spec.bits);
  w.u8(spec.top);
  w.u16(spec.group);
  w.u16(spec.flags);
}

void write_header(Writer& w, const Job& job, uint64_t file_bytes) {
  w.bytes(kMagic, sizeof kMagic);
  const uint32_t version = job.version();
  w.u32(version);
  w.u32(version);
  w.u32(kEndianTag);
  w.u32(kHeaderBytes);
  w.u64(file_bytes);
  w.u32(job.sequence.num_layers());
  w.u32(job.sequence.kv_heads());
  w.u32(job.env.head_dim);
  w.u32(job.shape.hot_bf16 ? 2 : 1);
  w.u32(job.shape.signal_mask);
  w.u32(static_cast<uint32_t>(job.codecs.entries().size()));
  w.u32(static_cast<uint32_t>(job.shape.model.size()));
  w.u32(job.deep ? kHasDeep : 0);
  w.bytes(job.shape.model.data(), job.shape.model.size());
  w.align();
  if (version >= kTablesVersion) w.u64(job.calibration());
  for (const CodecEntry* entry : job.codecs.entries()) {
    write_spec(w, entry->pair.key);
    write_spec(w, entry->pair.value);
    w.u32(entry->tokens);
    w.u32(0);
  }
  for (uint32_t l = 0; l < job.sequence.num_layers(); ++l) {
    const LayerState& state = job.sequence.layer(l);
    w.u32(job.has_tails() ? state.length : job.run->end);
    w.u32(job.has_tails() ? state.unobserved : 0);
    w.u32(job.has_tails() ? state.window_queries : 0);
    w.u32(job.plans[l].window);
    w.u32(job.sequence.heads(l)[0].tail.ring() ? kLayerRing : 0);
    w.u32(0);
  }
}

void write_block(Writer& w, const Job& job, const BlockRef& ref) {
  const store::BlockHandle block = ref.block;
  w.u8(static_cast<uint8_t>(block.tier()));
  w.u8(static_cast<uint8_t>((ref.positions ? kBlockSparse : 0) | (job.is_bare(ref) ? kBlockBare : 0)));
  w.u16(ref.rows);
  w.u16(ref.live);
  w.u16(0);
  w.u32(job.codecs.index(block.codec()));
  w.u32(job.codecs.index(block.source()));
  w.u32(ref.first_position);
  w.u32(0);
  w.u64(block.checksum());
  if (ref.positions) w.bytes(ref.positions, ref.rows * sizeof(uint32_t));
  w.align();
  if (ref.stats) w.bytes(ref.stats, static_cast<size_t>(ref.rows) * job.env.signals * sizeof(float));
  w.align();
  const store::BlockBytes bytes = job.bytes(ref);
  w.bytes(bytes.keys.data(), bytes.keys.size());
  w.align();
  w.bytes(bytes.values.data(), bytes.values.size());
  w.align();
}

void write_tail(Writer& w, const Job& job, const Tail& tail, uint32_t window, bool sparse) {
  const uint32_t rows = tail.rows();
  for (uint32_t i = 0; sparse && i < rows; ++i) w.u32(tail.position(i));
  w.align();
  if (rows && job.env.signals) w.bytes(tail.stats_row(0), static_cast<size_t>(rows) * job.env.signals * sizeof(float));
  w.align();
  const size_t row_bytes = job.env.head_dim * sizeof(uint16_t);
  Tail::Run runs[2];
  tail.runs(runs);
  for (const Tail::Run& run : runs) w.bytes(run.keys, run.rows * row_bytes);
  for (const Tail::Run& run : runs) w.bytes(run.values, run.rows * row_bytes);
  if (tail.ring() && tail.capacity() > free_ring_capacity(rows, window)) {
    w.zeros(static_cast<size_t>(tail.capacity() - free_ring_capacity(rows, window)) * 2 * row_bytes);
  }
}

void write_stream(Writer& w, const Job& job, const HeadStream& s, uint32_t window) {
  Tail::Run runs[2];
  s.tail.runs(runs);
  const uint32_t rows = job.has_tails() ? s.tail.rows() : 0;
  const bool sparse = rows != 0 && runs[0].positions != nullptr;
  uint32_t blocks = 0;
  for (const BlockRef& ref : s.blocks) blocks += job.kept(s, ref);
  w.u32(blocks);
  w.u32(rows);
  w.u32(rows ? s.tail.position(0) : 0);
  w.u32(sparse ? kTailSparse : 0);
  w.u32(s.tail.ring() && job.has_tails() ? s.tail.capacity() : 0);
  w.u32(0);
  for (const BlockRef& ref : s.blocks) {
    if (job.kept(s, ref)) write_block(w, job, ref);
  }
  if (job.has_tails()) write_tail(w, job, s.tail, window, sparse);
}

// Everything but the checksum.
size_t write_all(const Job& job, std::byte* to, uint64_t file_bytes) {
  Writer w(to);
  write_header(w, job, file_bytes);
  for (uint32_t l = 0; l < job.sequence.num_layers(); ++l) {
    for (const HeadStream& s : job.sequence.heads(l)) write_stream(w, job, s, job.plans[l].window);
  }
  if (job.deep) {
    w.align();
    w.u64(job.deep->bytes.size());
    w.bytes(job.deep->bytes.data(), job.deep->bytes.size());
    w.align();
  }
  return w.size();
}

}  // namespace

Result<std::vector<std::byte>> write_snapshot(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                                              const SnapshotShape& shape, const DeepPart* deep, const RunRange* run) {
  Job job{env, sequence, plans, shape, deep, run, {}, false, {}};
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (const HeadStream& s : sequence.heads(l)) {
      for (const BlockRef& ref : s.blocks) {
        // A file that no reader accepts would replace one that is good: better to say so now.
        if (ref.block.resident() && job.in_run(s, ref) && !env.store->intact(ref.block)) {
          return error(StatusCode::data_loss, "layer ", l, ", KV head ", s.head, ": the ", tier_name(ref.block.tier()),
                       " block at position ", ref.first_position, " changed in memory since it was made; nothing is saved");
        }
        if (!job.kept(s, ref)) continue;
        if (ref.block.elsewhere()) TIERKV_RETURN_IF_ERROR(env.store->load(ref.block, job.loaded[ref.block.identity()]));
        job.bare |= job.is_bare(ref);
        for (const CodecEntry* entry : {ref.block.codec(), ref.block.source()}) {
          const bool other = entry && entry->calibration &&
                             ((job.codecs.calibration() && entry->calibration != job.codecs.calibration()) ||
                              (deep && entry->calibration->id() != deep->calibration));
          if (other) return error(StatusCode::unsupported, "the sequence has blocks of two calibrations, and a snapshot holds one");
          job.codecs.add(entry);
        }
      }
    }
  }
  const size_t content = write_all(job, nullptr, 0);
  std::vector<std::byte> out(content + kTrailerBytes);
  (void)write_all(job, out.data(), out.size());
  Writer trailer(out.data() + content);
  trailer.u64(checksum(std::span(out).first(content)));
  return out;
}

}  // namespace tierkv::snapshot
