/* llama.h — a tierkv cache behind unmodified libllama: its model, tokenizer, graph and samplers, our cache and attention.
 *
 * Three lines turn a libllama program into one with a tiered cache:
 *
 *     tierkv_llama* kv = tierkv_llama_attach(&params, model, "balanced", NULL, 0);   // before llama_init_from_model(model, params)
 *     tierkv_llama_decode(kv, ctx, batch);                                            // instead of llama_decode(ctx, batch)
 *     tierkv_llama_free(kv);                                                          // after llama_free(ctx)
 *
 * The context made from the changed params holds one micro-batch and nothing more; the sequences live in the cache, and positions
 * run to the model's full context. Memory is managed here too: tierkv_llama_seq_rm and _seq_cp take the place of
 * llama_memory_seq_*, and session files are the cache's (llama_state_* no longer covers the sequence).
 *
 * Served: decoder-only models with softmax attention over plain keys and values: any number of KV heads, head_dim 32..256 in steps
 * of 16, sliding windows, logit softcap, sink logits. Refused by name, before anything is decoded: recurrent and hybrid models,
 * latent attention (MLA), ALiBi, encoders, chunked attention, layers that share keys and values.
 *
 * Memory: where the system refuses memory to tierkv, a call returns 1 (tierkv_llama_attach NULL) and has changed nothing but what
 * its comment says; nothing is thrown, and what frees needs none. What libllama and ggml do without memory is theirs.
 *
 * Threads: one host serves one context; its calls are the caller's to order, as with llama_decode itself. A pressure handler may
 * make some of them while a decode is under way: see there.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ggml_tensor;
struct llama_model;
struct llama_context;
struct llama_context_params;
struct llama_batch;

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tierkv_llama tierkv_llama;

/* Changes `params` so that a context made from them keeps its sequences in a new cache. `kv` is a preset, a configuration file or
 * the inline form ("balanced,hot=128"). A calibration of the model is found as find_calibration() below finds it: the file that
 * `kv` names ("balanced,calibration=model.tkc"), the one that lies in $TIERKV_CACHE, or one that is part of this library. Where
 * there is none the model is learned in passing (tierkv/learning.h) and its tables are left in $TIERKV_CACHE;
 * "balanced,calibrate=off" does neither. NULL on failure, with one sentence in `error`; `params` is then as it was. */
tierkv_llama* tierkv_llama_attach(struct llama_context_params* params, struct llama_model* model, const char* kv, char* error,
                                  size_t error_size);
/* As llama_decode: 0 on success. 1: no room in the cache; 2: aborted, or parked; below 0: an error. Nothing of the batch is kept
 * unless it is 0: every sequence is as long as before. What an eviction policy gave up or learned meanwhile stays so, and a
 * sequence that cannot go back, because layers with a sliding window have forgotten more than window_slack tokens, is forgotten
 * whole. Sequences that are not in the batch are left alone. */
int32_t tierkv_llama_decode(tierkv_llama* kv, struct llama_context* ctx, struct llama_batch batch);
/* The same for each sequence by itself: one that fails is as long as before (with the same two exceptions), and the others have
 * advanced. 0: all of them; otherwise the number of the first that failed, which tierkv_llama_seq_status() tells of each. */
int32_t tierkv_llama_decode_each(tierkv_llama* kv, struct llama_context* ctx, struct llama_batch batch);
/* What became of a sequence in the last tierkv_llama_decode_each(): 0, 1, 2 or below 0 as above; 0 if it was not in the batch. And
 * why, "" when it is 0. */
int32_t tierkv_llama_seq_status(const tierkv_llama* kv, int32_t seq);
const char* tierkv_llama_seq_error(const tierkv_llama* kv, int32_t seq);
/* The logits of token `i` of the last batch, if it asked for them and its sequence did not fail; -1: of the last that asked. Unlike
 * llama_get_logits_ith() it knows all of the batch, not only what was computed last. Valid until the next decode; NULL: there are
 * none. */
const float* tierkv_llama_logits(tierkv_llama* kv, struct llama_context* ctx, int32_t i);
/* One more sequence, beside the n_seq_max there are at first; its number, or -1. */
int32_t tierkv_llama_add_seq(tierkv_llama* kv);
/* Forgets the positions >= from of a sequence; from <= 0 forgets the sequence. */
int32_t tierkv_llama_seq_rm(tierkv_llama* kv, int32_t seq, int32_t from);
/* Makes sequence `to` a copy of `from` that shares its blocks. */
int32_t tierkv_llama_seq_cp(tierkv_llama* kv, int32_t from, int32_t to);
/* An idle sequence's older tokens packed 16 to 50 times smaller than FP16, as the configuration says (deep.ratio, deep.quality),
 * and back. 2 for park: there is no calibration with tables for it, nothing to pack, or it would not shrink. Until it wakes,
 * decoding it is refused with 2; 1 for wake: the budget has no room, it stays parked and loses nothing. -1: the sequence is empty.
 */
int32_t tierkv_llama_seq_park(tierkv_llama* kv, int32_t seq);
int32_t tierkv_llama_seq_wake(tierkv_llama* kv, int32_t seq);

/* A sequence lacks memory under byte_budget. */
typedef struct tierkv_llama_pressure {
  size_t size;           /* of this struct in the library: newer ones are longer */
  int32_t seq;           /* the sequence that grows, wakes or is copied; -1: a new one, or one that is being loaded */
  uint32_t attempt;      /* 0, then 1, ... within one call */
  uint64_t needed_bytes; /* at least what it lacks, as far as it knows */
  uint64_t used_bytes;   /* of the budget */
  uint64_t budget_bytes;
} tierkv_llama_pressure;
/* Makes room and returns nonzero: the call that lacked it is tried again, at most 16 times. 0: it fails, as without a handler.
 *
 * It is called in the middle of a tierkv_llama_decode, _load, _seq_cp or _seq_wake, on a thread of libllama's, one call at a time.
 * It may call tierkv_llama_seq_park and tierkv_llama_seq_rm for any sequence, and tierkv_llama_bytes and _error; calls that it
 * makes may come here again. A sequence of the batch that is being decoded may be parked or removed whole, and then fails in that
 * batch; to shorten or copy it is refused with 2, and so is decoding. It does not throw or jump out. */
typedef int (*tierkv_llama_pressure_handler)(void* user, const tierkv_llama_pressure* pressure);
/* NULL: none, as at first. 0 on success. Not while a decode is under way. */
int32_t tierkv_llama_set_pressure_handler(tierkv_llama* kv, tierkv_llama_pressure_handler handler, void* user);

/* Writes or reads one sequence. */
int32_t tierkv_llama_save(tierkv_llama* kv, int32_t seq, const char* path);
int32_t tierkv_llama_load(tierkv_llama* kv, int32_t seq, const char* path);
/* Bytes in memory for keys and values: the cache, shared blocks counted once, and the pages of libllama's own that stay. */
uint64_t tierkv_llama_bytes(const tierkv_llama* kv);
/* What the archive is and why, for people, in one sentence: "learning this model: 3,100 of 8,192 tokens; older tokens wait at 4
 * bits". At most `size` bytes of it, the ending 0 included; returns how long it is without that. */
size_t tierkv_llama_describe(const tierkv_llama* kv, char* buffer, size_t size);
/* What went wrong in the last call that failed. */
const char* tierkv_llama_error(const tierkv_llama* kv);
/* From here on the context computes its own attention over its own small cache, as if nothing had been attached. */
void tierkv_llama_detach(tierkv_llama* kv);
void tierkv_llama_free(tierkv_llama* kv);

#ifdef __cplusplus
}

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tierkv/cache.h"
#include "tierkv/calibration.h"
#include "tierkv/rope.h"

namespace tierkv::llama {

// What the params of a context say of RoPE, for models that run past the length they were made for. As they are here they say
// nothing: RoPE is as the model's file has it.
struct RopeSettings {
  int32_t scaling = -1;     // a llama_rope_scaling_type
  float freq_base = 0.0f;   // what frequencies are powers of
  float freq_scale = 0.0f;  // of all frequencies: a quarter for four times the length
  float yarn_ext_factor = -1.0f, yarn_attn_factor = -1.0f, yarn_beta_fast = -1.0f, yarn_beta_slow = -1.0f;
  uint32_t yarn_orig_ctx = 0;  // the length the model was made for

  static RopeSettings of(const llama_context_params& params);
  void apply(llama_context_params& params) const;
  // What is set, as options of the command: "--rope-scaling yarn --rope-freq-scale 0.25"; empty: nothing.
  std::string text() const;
  bool operator==(const RopeSettings&) const = default;
};

// What the cache must know of a model, found by running it on three tokens.
struct ModelShape {
  llama_model* model = nullptr;
  std::string architecture;
  std::string name;  // what the file calls it, with its size: goes into snapshots, so that another model's are refused
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // as the attention sees it, not embedding / heads
  // The positions it may run to: what it was made for (LongRoPE models: what their short factors serve), times what its slowest
  // channels are stretched by.
  uint32_t context = 0;
  std::vector<uint32_t> window;       // of each layer, 0 where attention is full
  std::vector<int32_t> cache_layers;  // libllama's number of each layer
  float scale = 0.0f;                 // what q.k is multiplied with, of the first layer
  float softcap = 0.0f;
  std::vector<calib::Rope> ropes;  // RoPE of each layer, as contexts with `rope` have it; empty where it has none
  RopeSettings rope;               // that it was looked at with
  bool own_ropes = true;           // the settings leave RoPE as the model's file has it
  // Of each layer: the weights of the projection that follows attention, and of the norm after it where there is one; the model's
  // own, or null where they were not found or are in no host memory.
  struct Projection {
    const ggml_tensor* weight = nullptr;
    const ggml_tensor* norm = nullptr;
  };
  std::vector<Projection> projections;
  uint64_t fingerprint = 0;  // of the shape and of the weights that every quantization of a model leaves alone (its norms)

  // Writes the model's part of a configuration: its shape and its windows (as overrides).
  void apply(CacheConfig& config) const;
  // What a calibration of it must say (check_fit()).
  CalibrationInfo identity() const;
};

// unsupported: the model is one that tierkv does not serve, and the message says why. Of `params` only what they say of RoPE
// counts: give those that the context will have, and Host::attach() takes no others. Without them RoPE is the model's own.
Result<ModelShape> inspect(llama_model* model);
Result<ModelShape> inspect(llama_model* model, const llama_context_params& params);
Result<ModelShape> inspect(llama_model* model, const RopeSettings& rope);

// Where models, texts and calibrations are kept: $TIERKV_CACHE, or tierkv in $XDG_CACHE_HOME or in ~/.cache.
std::string cache_folder();
// Where `tierkv calibrate` leaves the calibration of a model: calibration/<fingerprint>.tkc in the cache folder. A model with other
// ropes than its own has a file of its own beside it, named after the settings too.
std::string calibration_path(const ModelShape& shape);
// The calibration of a model: the file that the configuration names, or else the one at calibration_path(), or else the one that is
// part of this library; null when there is none, or with calibrate = off. Whether a named one fits is for Host::attach() to say.
// One at calibration_path() that is damaged or another model's counts as none where the configuration says calibrate = auto:
// `note`, if given, says so. One that is the model's but was made with its RoPE stretched otherwise, or not at all, comes as a copy
// with the ropes of `shape` (with_ropes()), and `note` says that.
Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config, std::string* note = nullptr);
// The one that is part of this library, or null.
Result<CalibrationPtr> shipped_calibration(const ModelShape& shape);

struct FoundCalibration {
  CalibrationPtr calibration;  // null: it is not here
  std::string where;           // its file, or that it ships with tierkv
};
// The calibration with this id (SnapshotInfo::calibration), among those of the library and of the cache folder. A file there that
// cannot be read is passed over.
Result<FoundCalibration> find_calibration(uint64_t id);
// What a cache needs to learn the model: its name, RoPE and output projections. For layers whose window is no longer than an
// archive is far there is nothing to learn, and nothing is computed.
Result<LearningModel> learning_model(const ModelShape& shape);

// How attention gets into libllama's graph.
enum class Path {
  overwrite,  // let libllama compute a node's attention, then overwrite the result: works wherever libllama does
  patch,      // turn the node into an operation of ours before it runs: no attention is computed twice, no graph is split
};

// What one layer did for consecutive tokens of one sequence. Rows are valid during the call.
struct AttentionSeen {
  uint32_t layer = 0;
  int32_t seq = 0;             // the caller's number
  uint32_t position = 0;       // of the first row
  RowsView queries;            // f32, after RoPE
  RowsView keys, values;       // f16, after RoPE
  const float* out = nullptr;  // [tokens][heads][head_dim]
  float scale = 0.0f;
  float softcap = 0.0f;
  const float* sink_logits = nullptr;  // a logit per query head, or null
};

// Called once for each layer, sequence and chunk, when its attention has been computed, by the thread that leads; the threads that
// compute wait.
using AttentionObserver = std::function<void(const AttentionSeen&)>;

struct HostOptions {
  uint32_t micro_batch = 0;  // tokens libllama sees at a time; 0: params.n_ubatch
  // Rows of a sequence that are appended before their queries are served; 0: as many as its layers allow. What a query sees of the
  // newest tokens depends on where such chunks begin. Whoever feeds prompts in pieces that are multiples of a chunk gets the same
  // results however many pieces a batch has.
  uint32_t chunk = 0;
  bool allow_patch = true;     // use Path::patch if its self-test passes
  bool self_test = true;       // compare both paths with stock attention on a few tokens, with a plain FP16 cache
  bool keep_learned = true;    // a cache that learns reads and writes calibration_path(); false: nothing is read or written
  AttentionObserver observer;  // sees everything that goes by (calibration); without one nothing is spent on it
};

// Where the time of decode() went, in seconds, since the host was made.
struct HostTimes {
  double decode = 0.0;     // all of it
  double append = 0.0;     // while rows were appended
  double attention = 0.0;  // while attention was computed
  double own = 0.0;        // the host's own work around them
  uint64_t calls = 0;      // micro-batches
};

// What became of one sequence of a batch.
struct SequenceStatus {
  int32_t seq = 0;
  Status status;
};

// Calls of a pressure handler of the cache (AdaptiveKVCache::set_pressure_handler) while a batch is being decoded: remove() and
// park() of any sequence, number_of(), and what reads. It must make them one at a time, though the cache may ask from several
// threads. A sequence of the batch that it takes away fails in that batch; to change it otherwise, and to decode, is refused with
// failed_precondition.
class Host {
 public:
  // Changes `params` so that llama_init_from_model() gives a context whose attention is the cache's. The cache, the host and the
  // params' own callbacks must outlive that context. There are slots 0 to params.n_seq_max - 1 for sequences, and n_seq_max is how
  // many of them are computed together; add_slot() makes more slots.
  // Refuses a cache with the calibration of another model or of other ropes, and params that turn keys otherwise than `shape` says.
  // A cache with calibrate = auto and no calibration learns the model from here on (AdaptiveKVCache::learn), and the host tells it
  // of RoPE, output projections and the residual stream; the tables go to calibration_path(). REQUIRES: the cache has the model's
  // shape (ModelShape::apply).
  static Result<std::unique_ptr<Host>> attach(llama_context_params& params, const ModelShape& shape, AdaptiveKVCache& cache,
                                              const HostOptions& options = {});
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // llama_decode() with the sequences in the cache, all or nothing: splits the batch into micro-batches, and leaves nothing of a
  // batch that failed. Positions must go on where each sequence ends; a batch without positions goes on by itself. A token belongs
  // to one sequence.
  // After a failure every sequence is as long as before, with two exceptions: what an eviction policy gave up meanwhile does not
  // come back; and a sequence whose layers with a sliding window no longer hold what it would need (more than
  // CacheConfig::window_slack tokens back) is removed whole, and its slot is empty. One that was parked meanwhile is cut when it is
  // used after waking.
  Status decode(llama_context* context, const llama_batch& batch);
  // The same for each sequence by itself. One that fails (no room, full, parked, removed, a wrong position) is as long as before,
  // with the exceptions above; the others have advanced, and their logits are right. `sequences` gets the status of each, in the
  // order in which they appear in the batch. Returns OK when all are, otherwise the first that is not. A batch that is wrong as a
  // whole is refused, and `sequences` is empty.
  Status decode(llama_context* context, const llama_batch& batch, std::vector<SequenceStatus>& sequences);
  // The logits of token `index` of the last batch, if it asked for them and its sequence did not fail; -1: of the last token that
  // asked. Valid until the next decode(), and as long as the context. llama_get_logits_ith() counts within the last micro-batch:
  // for a batch of no more than micro_batch() tokens it is the same.
  Result<std::span<const float>> logits(int32_t index) const;

  // One more slot for a sequence; its number. Slots stay as long as the host.
  Result<int32_t> add_slot();
  uint32_t slots() const;
  // The cache's sequence in a slot, made when it is first asked for. not_found: there is none while a batch is being decoded.
  Result<SeqId> sequence(int32_t seq);
  // Puts a sequence of the cache (one that was loaded, say) into a slot. The one before is removed.
  Status bind(int32_t seq, SeqId id);
  Status fork(int32_t from, int32_t to);
  Status truncate(int32_t seq, uint32_t length);
  Status remove(int32_t seq);
  // AdaptiveKVCache::park() and wake() of the sequence in a slot. not_found: there is none.
  Status park(int32_t seq, const DeepOptions& options = {}, DeepReport* report = nullptr);
  Status wake(int32_t seq);
  // The slot of a sequence of the cache; -1: it is in none.
  int32_t number_of(SeqId id) const;

  void detach();
  bool attached() const;
  Path path() const;
  uint32_t micro_batch() const;
  // What libllama's own cache has in memory between two calls, beside the cache's bytes: a few pages a layer, because the cells of
  // a micro-batch go back to the kernel layer by layer.
  size_t micro_batch_bytes() const;
  AdaptiveKVCache& cache();
  HostTimes times() const;

 private:
  struct Impl;
  explicit Host(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkv::llama
#endif
