// cache.h — AdaptiveKVCache: keys and values of many sequences in three tiers, and exact attention over all of them.
//
//   auto cache = tierkv::AdaptiveKVCache::create(config).value();
//   auto seq = cache->add_sequence().value();
//   cache->append(seq, layer, keys, values);           // any number of tokens, f32, f16 or bf16 rows
//   cache->attention(seq, layer, queries, out);        // one softmax over sinks, archive, warm and hot
//
// Life of a token: docs/build/life_of_a_token.md. Every call that can fail says why and changes nothing when it does, unless its
// comment says otherwise. Files are written as tierkv/file.h says.
//
// Threads: calls on different sequences may run at the same time from any number of threads; so may add_sequence, fork, remove
// and the statistics. Calls on one sequence are serialised inside. Views from hot_view() are the exception: see there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tierkv/calibration.h"
#include "tierkv/config.h"
#include "tierkv/learning.h"
#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace tierkv {

namespace attn {
class Backend;  // src/attn/backend.h
}
namespace cuda {
class StepGraph;  // tierkv/cuda.h
}

using SeqId = uint64_t;

enum class DType : uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

// Whose memory a pointer points into.
enum class MemoryPlace : uint8_t { host = 0, device = 1 };

// Rows of the caller's: element (token t, head h, channel c) is data[t*token_stride + h*head_stride + c].
// Strides are in elements; channels are contiguous. A cache reads host memory; other rows are refused with `unsupported`, by the
// call that is given them, unless it was attached to the device whose they are (tierkv/cuda.h).
struct RowsView {
  const void* data = nullptr;
  DType type = DType::f32;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  ptrdiff_t token_stride = 0;
  ptrdiff_t head_stride = 0;
  MemoryPlace place = MemoryPlace::host;
  void* ready = nullptr;  // for a device: the stream (cudaStream_t) after whose work so far they are valid; null: the default one

  // The plain layout [tokens][heads][head_dim].
  static RowsView dense(const void* data, DType type, uint32_t tokens, uint32_t heads, uint32_t head_dim) {
    return {data, type, tokens, heads, head_dim, static_cast<ptrdiff_t>(heads) * head_dim, head_dim};
  }
  static RowsView f32(const float* data, uint32_t tokens, uint32_t heads, uint32_t head_dim) {
    return dense(data, DType::f32, tokens, heads, head_dim);
  }
};

// Runs task(0) .. task(count-1), each once, on whatever threads it has, and returns when all are done. task does not throw.
using Executor = std::function<void(uint32_t count, const std::function<void(uint32_t)>& task)>;

struct AttentionOptions {
  bool causal = true;                  // query i sees positions <= its own
  float scale = 0.0f;                  // 0: 1/sqrt(head_dim)
  float softcap = 0.0f;                // s -> softcap*tanh(s/softcap); 0: none
  int64_t first_position = -1;         // position of the first query; -1: the queries are the newest tokens
  const float* sink_logits = nullptr;  // one extra logit per query head that takes mass and gives nothing (gpt-oss); or null
  bool observe = true;                 // let the eviction policy learn from this call
  MassReport* mass = nullptr;          // filled when given
  const Executor* executor = nullptr;  // threads of the caller's to share the work; null: the cache's own (CacheConfig::threads)
};

// One sequence's part in an attention call over many.
struct AttentionItem {
  SeqId seq = 0;
  RowsView queries;
  float* out = nullptr;         // [tokens][query heads][head_dim] of out_type, in the memory that the queries are in
  int64_t first_position = -1;  // as AttentionOptions::first_position
  MassReport* mass = nullptr;   // as AttentionOptions::mass
  Status status = {};           // written by the call
  DType out_type = DType::f32;  // 16-bit results are rounded to the nearest; the address of their first is cast to float*
};

// One sequence's part in an append call over many.
struct AppendItem {
  SeqId seq = 0;
  RowsView keys, values;
  Status status = {};  // written by the call
};

// The hot rows of one KV head, zero-copy: 16-bit floats of CacheConfig::hot_type, row-major, oldest first.
// Valid until the next call that changes the sequence.
struct HotView {
  const uint16_t* keys = nullptr;
  const uint16_t* values = nullptr;
  uint32_t rows = 0;
  uint32_t head_dim = 0;
  uint32_t first_position = 0;
};

// How the archived part of a sequence is packed for disk, network or a long idle time: 16 to 50 times smaller than FP16, decoded
// before use. Sinks, hot rows and what keep_recent says stay exactly as they are. One of ratio and quality is set, or neither: then
// CacheConfig::deep says.
struct DeepOptions {
  static constexpr uint32_t kTiers = 0xFFFFFFFFu;
  double ratio = 0.0;    // FP16 bytes of the tokens coded over the bytes they take: 20 is ordinary
  double quality = 0.0;  // share of the energy, as attention sees it, that must survive: 0.97
  uint32_t keep_recent =
      kTiers;  // tokens at the end that stay as they are; kTiers: all but the archive tier (512 where there is none)
  uint32_t first_position = 0;  // tokens before it stay as they are, beside the sinks
};
struct DeepReport {
  uint32_t tokens = 0;  // coded, from first_position on; 0: none, and note says why
  uint32_t first_position = 0;
  uint64_t bytes = 0;
  double ratio = 0.0;
  double quality = 0.0;
  std::string note;  // what kept tokens out of the deep archive, if anything did
};

// What promote() did, over all layers and KV heads.
struct PromotionReport {
  uint64_t blocks = 0;        // that came back
  uint64_t tokens = 0;        // live rows in them
  uint64_t without_copy = 0;  // archive blocks in the range that have none, and stay as they are
};

// A call lacks memory under byte_budget.
struct MemoryPressure {
  SeqId seq = 0;              // the call's; 0: it makes a new one (add_sequence, load, unfreeze). For fork() the one to copy
  uint64_t needed_bytes = 0;  // at least what it lacks, as far as it knows: an append's 16-bit rows, the blocks of a wake or a load
  uint64_t used_bytes = 0;    // of the budget, free ones not counted
  uint64_t budget_bytes = 0;
  uint32_t attempt = 0;  // 0, then 1, … within one call
};
// Makes room and says whether the call shall be tried again: park(), evict(), truncate() or remove() sequences nobody waits for,
// its own too where the call still makes sense afterwards (an append to a sequence that was parked is refused as always). It is
// called with no lock held, on the thread of the call, and from several threads at once when several calls lack memory; calls that
// it makes may lack memory themselves and come here again. It does not throw.
using PressureHandler = std::function<bool(const MemoryPressure&)>;

class AdaptiveKVCache {
 public:
  // `calibration` takes the place of CacheConfig::calibration, for a caller that has it in memory.
  static Result<std::unique_ptr<AdaptiveKVCache>> create(const CacheConfig& config, CalibrationPtr calibration = nullptr);
  ~AdaptiveKVCache();
  AdaptiveKVCache(const AdaptiveKVCache&) = delete;
  AdaptiveKVCache& operator=(const AdaptiveKVCache&) = delete;

  const CacheConfig& config() const;

  // What happens when append(), wake(), load(), unfreeze(), fork() or add_sequence() lacks memory under byte_budget, after the
  // eviction policy gave what it can: the handler is asked, and while it returns true the whole call is tried again, at most 16
  // times. Until then the call has changed nothing but what the policy
  // dropped. Empty, as at the start: such calls are refused with resource_exhausted at once.
  Status set_pressure_handler(PressureHandler handler);

  // --- sequences
  Result<SeqId> add_sequence();
  // A copy that shares every block, packed ones too, until one of the two changes it. A copy of a parked sequence is parked.
  Result<SeqId> fork(SeqId seq);
  Status remove(SeqId seq);
  std::vector<SeqId> sequences() const;

  // --- tokens
  // Appends the next tokens of one layer; positions go on from length(seq, layer). Refused, no token is in; what an eviction policy
  // had given up to make room is gone, and so is what lay over the archive where `promote` is set.
  Status append(SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values);
  // The same for many sequences: a step of a batch. The rows of all go in, and blocks that become due are coded together, the same
  // bits as one after the other; where memory is short they go on one after the other. Every item gets its own status, and one that
  // is refused does not disturb the others. Returns OK when all items are, otherwise the status of the first that is not. A wrong
  // layer, a sequence that is there twice, or rows that are not all in the same memory (a device's: after the same stream) refuse
  // the whole call, and every item has that status. What happens to rows in a device's memory: tierkv/cuda.h.
  // Threads: the sequences are locked together, in the order of their ids, so two such calls cannot deadlock.
  Status append_many(uint32_t layer, std::span<AppendItem> items);
  // out is [tokens][query heads][head_dim], f32, and finite when the call succeeds. Where the queries are in a device's memory it
  // is too, and it is valid for work that comes after on their stream; queries are not looked at then, and what is wrong with them
  // is said later (tierkv/cuda.h). invalid_argument: a query that is not finite or beyond 1e25 (times scale, where that is above
  // 1), or scores or sums that overflow 32-bit floats all the same, as enormous bf16 keys can make them; resource_exhausted: the
  // system refused memory. After an overflow or want of memory `out` and a MassReport are undefined and nothing has changed: no
  // token, row or position, nor what attention answers, nor the statistics of a policy that evicts, which learns from calls that
  // succeed.
  Status attention(SeqId seq, uint32_t layer, const RowsView& queries, float* out, const AttentionOptions& options = {});
  // The same for many sequences at once, each with any number of queries: all their work is shared out together, so that many short
  // sequences keep all threads busy. Every item gets its own status: one that fails (unknown, parked, not finite) does not disturb
  // the others, whose results are the same bits as from calls of their own. Returns OK when all items are, otherwise the status of
  // the first that is not. first_position and mass come from the items; the options must leave theirs alone. A wrong layer or
  // option, or a sequence that is there twice, refuses the whole call, and every item has that status.
  // Queries are all in the same memory, a device's all after the same stream; invalid_argument otherwise.
  // Threads: the sequences are locked for the whole call, in the order of their ids, so two such calls cannot deadlock.
  Status attention(uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options = {});
  // append_many() of `rows` and then, when all of them are in, attention() of `items`: one layer of one step of decoding. The same
  // as the two calls, but that a device is asked for both together, which takes the caller less time. Where rows are refused
  // nothing is attended to, and items have the status of the first that was; where attention is, the rows are in.
  Status step(uint32_t layer, std::span<AppendItem> rows, std::span<AttentionItem> items, const AttentionOptions& options = {});
  // Rows at positions, as the cache would use them; keys and values are [positions][kv heads][head_dim], either may be null.
  Status get(SeqId seq, uint32_t layer, std::span<const uint32_t> positions, float* keys, float* values) const;
  // Forgets every position >= length in every layer.
  Status truncate(SeqId seq, uint32_t length);
  // Keeps at most `tokens` tokens in every layer by the configured policy (per layer budgets where it has them). What stays is
  // chosen for all layers before any token goes. resource_exhausted with a byte_budget that has no room for eviction's own lists:
  // the KV heads before have given up their tokens, that one and the others none.
  Status evict(SeqId seq, uint32_t tokens);
  // Graduates every full block that is due, gives free memory back to the system, and waits for the cold file's queue.
  // resource_exhausted: what came before has graduated, the rest stays in its better tier and is due again.
  Status flush();

  // Positions appended so far (evicted ones included). Without a layer: the smallest over layers.
  Result<uint32_t> length(SeqId seq) const;
  Result<uint32_t> length(SeqId seq, uint32_t layer) const;
  // Live tokens of one KV head in ascending order of position.
  Result<std::vector<uint32_t>> positions(SeqId seq, uint32_t layer, uint32_t kv_head) const;
  Result<HotView> hot_view(SeqId seq, uint32_t layer, uint32_t kv_head) const;

  // --- statistics
  MemoryStats memory_usage() const;
  Result<MemoryStats> memory_usage(SeqId seq) const;
  QualityMetrics quality_metrics() const;
  // Recomputes every block's checksum: data_loss names the first that does not match.
  Status verify(SeqId seq) const;

  // --- adaptation (ADR-004): below target hot x1.2 and archive bits +1 (max 4); comfortably above it hot x0.9 (min 32) and
  // bits -1 (min 2). Running sequences follow as they grow.
  Status adapt_thresholds(const QualityFeedback& feedback);
  std::vector<LayerThresholds> thresholds() const;
  // One for each layer, as adapt_thresholds() would leave them; what a layer does not have (a warm tier, a codec of other bits)
  // stays as it is. invalid_argument: another number of layers, a length past 2^30 that is not kAll, more than 16 bits; nothing has
  // changed then.
  Status set_thresholds(std::span<const LayerThresholds> thresholds);
  Status save_thresholds(const std::string& path) const;
  Status load_thresholds(const std::string& path);

  // --- calibration
  // Archive blocks made from here on use its tables where the configuration says `auto` or names a codec that needs some; those
  // there are stay as they are. Refused when it is of another shape.
  Status set_calibration(CalibrationPtr calibration);
  CalibrationPtr calibration() const;  // or null
  // Learns the tables from what goes by (tierkv/learning.h), from here on and at most once. set_calibration() ends it.
  // failed_precondition: it learns or has learned already, there is a calibration, or no archive would be better with one.
  // invalid_argument: ropes or matrices that are not of the cache's shape. What goes wrong later is in learning() and harms
  // nothing.
  Status learn(LearningModel model, LearningOptions options = {});
  LearningReport learning() const;
  // The mean of |h|² of the residual stream before a layer, where a host knows it: what an error weighs against. Ignored when
  // nothing is being learned.
  void set_residual(uint32_t layer, double mean_square);
  // The codec that new archive blocks of a layer get, `auto` resolved; empty when the layer has no archive.
  std::string archive_codec(uint32_t layer) const;

  // --- snapshots: one sequence, resumed bit for bit. See docs/build/block_format.md.
  Status save(SeqId seq, const std::string& path) const;
  Result<SeqId> load(const std::string& path);
  Result<std::vector<std::byte>> freeze(SeqId seq) const;
  // The same with a deep archive in it. Takes a calibration with tables for it (failed_precondition otherwise), to write and to
  // load; loading decodes the tokens into the cache's own archive codec. What cannot be coded stays as it is, and the report says
  // so.
  Status save(SeqId seq, const std::string& path, const DeepOptions& deep, DeepReport* report = nullptr) const;
  Result<std::vector<std::byte>> freeze(SeqId seq, const DeepOptions& deep, DeepReport* report = nullptr) const;
  Result<SeqId> unfreeze(std::span<const std::byte> bytes);

  // --- runs: a sequence in pieces, for stores that keep what many sequences begin with once.
  // Where a run may end, ascending: in every layer and KV head a block ends there that will not be coded again. Tokens that an
  // eviction policy dropped, and packed ones, end the list. Layers with a sliding window have no say.
  Result<std::vector<uint32_t>> run_ends(SeqId seq) const;
  // The tokens [first, end) as bytes, a snapshot of them alone. `first` is 0 or a run's end; `end` is a later one or, for the rest,
  // the length of the sequence: then the recent tiers are in it, and the layers with a sliding window. Sinks are in the first run.
  // invalid_argument: other positions. failed_precondition: it is parked, in the middle of a token, or tokens are missing there.
  Result<std::vector<std::byte>> freeze_run(SeqId seq, uint32_t first, uint32_t end) const;
  // A sequence of consecutive runs, the first from position 0 on; checked like snapshots, every byte of every one. Ended by a rest
  // it goes on bit for bit as the one that it was made of. Without a rest it is all in the coldest tier: who goes on from there
  // reads some tokens before it again (truncate() and append()) to have recent ones in recent tiers. A model with sliding windows
  // needs a rest. data_loss: damaged, cut, or not consecutive.
  Result<SeqId> unfreeze_runs(std::span<const std::span<const std::byte>> runs);

  // --- the cold store (CacheConfig::cold)
  // Every archive block of the sequence with tokens at first..first+count-1 gets its copy from the cold file laid over it, bit for
  // bit: attention and get() read that one, at the copy's precision. The archive block stays below it, so this costs memory, which
  // counts against byte_budget (MemoryStats::promoted_bytes), and no copy is ever encoded again. Forks share what is promoted; a
  // snapshot holds what attention reads. Blocks that have no copy stay as they are, and the report counts them: those that were
  // loaded, merged by eviction, or made while the file had no room.
  // A failed call changes nothing. failed_precondition: no cold file, or parked. resource_exhausted: byte_budget. data_loss: a copy
  // was cut or damaged in the file; it is given up, so that the next call promotes the others. io_error: the system said no.
  Status promote(SeqId seq, uint32_t first = 0, uint32_t count = kAll, PromotionReport* report = nullptr);
  // Drops what lies over archive blocks with tokens in the range: their own bytes are read again, as they were. Needs no memory.
  Status demote(SeqId seq, uint32_t first = 0, uint32_t count = kAll);
  // The file and its queue; all zero without one. flush() waits until everything is written.
  ColdStats cold_usage() const;

  // --- idle sequences
  // Packs the older tokens of a sequence as freeze(seq, options) does and gives their blocks back (those that a fork shares stay
  // the fork's). The packed bytes stay under the same id and count as MemoryStats::parked_bytes and against byte_budget. Until
  // wake() everything that reads or changes its tokens is refused with failed_precondition: waking takes memory and time, so it is
  // never done behind a caller's back. length(), memory_usage(), verify(), fork() and remove() work, and so do save() and freeze():
  // they write a deep snapshot of the packed bytes as they are. park() again packs what else is due by its options, as a part of
  // its own; save() and freeze() of several parts, or of one behind tokens not archived yet, are refused with failed_precondition.
  // A failed park changes nothing; failed_precondition: no calibration with tables for it, nothing to pack, or it would not shrink,
  // because the packed bytes take no less than the blocks that would go (the message says why, and both figures).
  Status park(SeqId seq, const DeepOptions& options = {}, DeepReport* report = nullptr);
  // All packed parts back into blocks, each in the codec and the tier it had. resource_exhausted: byte_budget has no room; the
  // sequence stays parked and loses nothing. Takes the calibration it was parked with, which a parked sequence keeps; its file must
  // still be there when it came from one. Meanwhile, and while a deep snapshot is loaded, the call holds outside the budget the
  // packed bytes, the calibration's tables, and as 16-bit rows of all layers one piece of 512 tokens per thread (256 MiB of them at
  // most, or one) and a block: MemoryStats::scratch_bytes.
  Status wake(SeqId seq);
  Result<bool> is_parked(SeqId seq) const;

  // Who attends: the processor, or the device of tierkv/cuda.h; null: the processor again. What another device has alone and does
  // not come back is lost. REQUIRES: no other call is under way.
  void attend_with(std::shared_ptr<const attn::Backend> backend);
  // What tierkv/cuda.h's record() does. unsupported: the processor attends.
  Result<std::unique_ptr<cuda::StepGraph>> record_step();
  // The processor again, and nothing is lost for want of memory: cuda::detach(). REQUIRES: as above.
  Status attend_here();

  struct Impl;  // src/cache/impl.h

 private:
  explicit AdaptiveKVCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkv
