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
 * Threads: one host serves one context; its calls are the caller's to order, as with llama_decode itself.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

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
 * `kv` names ("balanced,calibration=model.tkc"), or the one that `tierkv calibrate` left in $TIERKV_CACHE. NULL on failure, with
 * one sentence in `error`; `params` is then as it was. */
tierkv_llama* tierkv_llama_attach(struct llama_context_params* params, struct llama_model* model, const char* kv, char* error,
                                  size_t error_size);
/* As llama_decode: 0 on success. 1: no room in the cache; 2: aborted, or parked; below 0: an error. Nothing of the batch is kept
 * unless it is 0: every sequence is as long as before. What an eviction policy gave up meanwhile does not come back, and a sequence
 * that cannot go back, because layers with a sliding window have forgotten more than window_slack tokens, is forgotten whole. */
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
/* Writes or reads one sequence. */
int32_t tierkv_llama_save(tierkv_llama* kv, int32_t seq, const char* path);
int32_t tierkv_llama_load(tierkv_llama* kv, int32_t seq, const char* path);
/* Bytes in memory for keys and values: the cache, shared blocks counted once, and the pages of libllama's own that stay. */
uint64_t tierkv_llama_bytes(const tierkv_llama* kv);
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

// What the cache must know of a model, found by running it on three tokens.
struct ModelShape {
  llama_model* model = nullptr;
  std::string architecture;
  std::string name;  // what the file calls it, with its size: goes into snapshots, so that another model's are refused
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;              // as the attention sees it, not embedding / heads
  uint32_t context = 0;               // the positions it may run to; LongRoPE models: those its short factors serve
  std::vector<uint32_t> window;       // of each layer, 0 where attention is full
  std::vector<int32_t> cache_layers;  // libllama's number of each layer
  float scale = 0.0f;                 // what q.k is multiplied with, of the first layer
  float softcap = 0.0f;
  std::vector<calib::Rope> ropes;  // RoPE of each layer, empty where it has none
  uint64_t fingerprint = 0;        // of the shape and of the weights that every quantization of a model leaves alone (its norms)

  // Writes the model's part of a configuration: its shape and its windows (as overrides).
  void apply(CacheConfig& config) const;
  // What a calibration of it must say (check_fit()).
  CalibrationInfo identity() const;
};

// unsupported: the model is one that tierkv does not serve, and the message says why.
Result<ModelShape> inspect(llama_model* model);

// Where models, texts and calibrations are kept: $TIERKV_CACHE, or tierkv in $XDG_CACHE_HOME or in ~/.cache.
std::string cache_folder();
// Where `tierkv calibrate` leaves the calibration of a model: calibration/<fingerprint>.tkc in the cache folder.
std::string calibration_path(const ModelShape& shape);
// The calibration of a model: the file that the configuration names, or else the one at calibration_path(); null when that is not
// there. Whether a named one fits is for Host::attach() to say.
Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config);

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
  uint32_t micro_batch = 0;    // tokens libllama sees at a time; 0: params.n_ubatch
  bool allow_patch = true;     // use Path::patch if its self-test passes
  bool self_test = true;       // compare both paths with stock attention on a few tokens, with a plain FP16 cache
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

class Host {
 public:
  // Changes `params` so that llama_init_from_model() gives a context whose attention is the cache's. The cache, the host and the
  // params' own callbacks must outlive that context. There are slots 0 to params.n_seq_max - 1 for sequences, and n_seq_max is how
  // many of them are computed together; add_slot() makes more slots.
  // Refuses a cache with the calibration of another model. REQUIRES: the cache has the model's shape (ModelShape::apply).
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
  // The cache's sequence in a slot, made when it is first asked for.
  Result<SeqId> sequence(int32_t seq);
  // Puts a sequence of the cache (one that was loaded, say) into a slot. The one before is removed.
  Status bind(int32_t seq, SeqId id);
  Status fork(int32_t from, int32_t to);
  Status truncate(int32_t seq, uint32_t length);
  Status remove(int32_t seq);

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
