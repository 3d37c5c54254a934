/* c.h — tierkv for C and for everything that speaks C: AdaptiveKVCache (tierkv/cache.h) behind opaque handles.
 *
 * Status:    every fallible call returns a tierkv_status, TIERKV_OK (0) or one of the numbers of StatusCode. tierkv_last_error()
 *            then says in a sentence what was wrong, where, and what is allowed. A failed call changes nothing, unless its comment
 *            says what, and writes no output but perhaps to the `out` rows of an attention. No exception ever crosses this header,
 *            and a machine without memory is TIERKV_RESOURCE_EXHAUSTED. Null where a pointer is needed is TIERKV_INVALID_ARGUMENT,
 *            never a crash.
 *
 * Ownership: what a function of this header creates, the caller destroys: configs with tierkv_config_destroy, caches with
 *            tierkv_cache_destroy, buffers and strings of char** and void** outputs with tierkv_free. `const char*` results belong
 *            to the library: those of tables (names, version) live for ever, tierkv_last_error()'s until the thread's next tierkv
 *            call. Rows, queries and outputs are the caller's and are not kept after the call. A cache copies its config.
 *
 * Threads:   calls on different sequences of one cache may run at the same time from any number of threads; so may adding, forking
 *            and removing sequences and all statistics. Calls on one sequence are serialised inside. Destroying a cache while
 *            another thread is in a call on it is not allowed. A tierkv_config is plain data: one thread at a time. The last error
 *            is per thread.
 *
 * Growth:    structs begin with `size`, which the _init functions and tierkv_rows_dense() set, and the caller before an output. A
 *            newer library takes an older, shorter struct, uses defaults for what it lacks and writes no further than it reaches,
 *            so a program keeps working without being compiled again. An older library takes a longer input whose further bytes
 *            are zero (TIERKV_UNSUPPORTED otherwise) and leaves the further bytes of an output alone. Two have no size:
 *            tierkv_tier_memory never grows, and tierkv_thresholds comes in lists, whose call takes the size of an element.
 */
#ifndef TIERKV_C_H
#define TIERKV_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int tierkv_status;
enum {
  TIERKV_OK = 0,
  TIERKV_INVALID_ARGUMENT = 1,    /* something that can never work: a shape, a NaN, an unknown key, a null pointer */
  TIERKV_NOT_FOUND = 2,           /* unknown sequence, evicted position, missing file */
  TIERKV_OUT_OF_RANGE = 3,        /* a position or layer past the end */
  TIERKV_RESOURCE_EXHAUSTED = 4,  /* byte budget, max_seq_len or the machine's memory */
  TIERKV_FAILED_PRECONDITION = 5, /* right call, wrong moment */
  TIERKV_DATA_LOSS = 6,           /* checksum mismatch, truncated or damaged bytes */
  TIERKV_UNSUPPORTED = 7,         /* a newer file version, a codec this build does not have */
  TIERKV_IO_ERROR = 8,            /* the operating system said no */
  TIERKV_INTERNAL = 9             /* a bug in tierkv */
};

/* "invalid_argument"; "unknown" for other numbers. */
const char* tierkv_status_name(tierkv_status status);
/* Why this thread's last failed call failed; "" when its last call succeeded. Calls that return nothing or a name leave it alone.
 * */
const char* tierkv_last_error(void);
/* "0.1.0" */
const char* tierkv_version(void);
/* Frees what a char** or void** output received. Null is fine. */
void tierkv_free(void* p);

/* --- what there is. Names by index, null past the end. */
const char* tierkv_codec_name(size_t index); /* "kivi": most take a width, "kivi2" */
const char* tierkv_codec_summary(size_t index);
const char* tierkv_policy_name(size_t index);
const char* tierkv_policy_summary(size_t index);
const char* tierkv_preset_name(size_t index);

/* --- configuration */
typedef struct tierkv_config tierkv_config;

/* The `balanced` defaults, without a model's shape. */
tierkv_status tierkv_config_create(tierkv_config** out);
void tierkv_config_destroy(tierkv_config* config);
/* `name` may be "". num_heads (query heads) 0: as many as KV heads. */
tierkv_status tierkv_config_set_model(tierkv_config* config, const char* name, uint32_t num_layers, uint32_t num_heads,
                                      uint32_t num_kv_heads, uint32_t head_dim);
tierkv_status tierkv_config_set_max_seq_len(tierkv_config* config, uint32_t tokens);
tierkv_status tierkv_config_set_byte_budget(tierkv_config* config, uint64_t bytes);
tierkv_status tierkv_config_set_threads(tierkv_config* config, uint32_t threads);
/* On error the config is as it was. */
tierkv_status tierkv_config_apply_preset(tierkv_config* config, const char* name);
tierkv_status tierkv_config_apply_inline(tierkv_config* config, const char* text); /* "hot=64,warm=448,archive=rot2,sinks=4" */
tierkv_status tierkv_config_apply_toml(tierkv_config* config, const char* text);
tierkv_status tierkv_config_apply_json(tierkv_config* config, const char* text);
tierkv_status tierkv_config_apply_file(tierkv_config* config, const char* path); /* .toml or .json */
tierkv_status tierkv_config_apply_spec(tierkv_config* config, const char* spec); /* a preset, a file's path or the inline form */
/* The whole configuration; tierkv_free() it. */
tierkv_status tierkv_config_to_json(const tierkv_config* config, char** out);
/* Whether a cache could be made of it. */
tierkv_status tierkv_config_validate(const tierkv_config* config);

/* --- the cache */
typedef struct tierkv_cache tierkv_cache;
typedef uint64_t tierkv_seq;

tierkv_status tierkv_cache_create(const tierkv_config* config, tierkv_cache** out);
void tierkv_cache_destroy(tierkv_cache* cache);

tierkv_status tierkv_seq_add(tierkv_cache* cache, tierkv_seq* out);
/* A copy that shares every block until one of the two changes it. A copy of a parked sequence is parked. */
tierkv_status tierkv_seq_fork(tierkv_cache* cache, tierkv_seq seq, tierkv_seq* out);
tierkv_status tierkv_seq_remove(tierkv_cache* cache, tierkv_seq seq);

/* Idle sequences: the older tokens packed 16 to 50 times smaller than FP16 until the sequence wakes; see AdaptiveKVCache::park().
 * Until then all that reads or changes its tokens is TIERKV_FAILED_PRECONDITION; lengths, statistics, forking, saving and removing
 * work. */
typedef struct tierkv_deep_options {
  size_t size;             /* sizeof(tierkv_deep_options) of the caller */
  double ratio;            /* times smaller than FP16, or */
  double quality;          /* the share of the energy that must survive; both 0: as the config says (deep.ratio, deep.quality) */
  uint32_t keep_recent;    /* tokens at the end that stay as they are; UINT32_MAX: all but the archive tier */
  uint32_t first_position; /* tokens before it stay as they are */
} tierkv_deep_options;

typedef struct tierkv_deep_report {
  size_t size; /* sizeof(tierkv_deep_report) of the caller, set before the call */
  uint32_t tokens;
  uint32_t first_position;
  uint64_t bytes;
  double ratio;
  double quality;
} tierkv_deep_report;

void tierkv_deep_options_init(tierkv_deep_options* options);
/* options and report may be null. TIERKV_FAILED_PRECONDITION: no calibration with tables for it, nothing to pack, or it would not
 * shrink. */
tierkv_status tierkv_seq_park(tierkv_cache* cache, tierkv_seq seq, const tierkv_deep_options* options, tierkv_deep_report* report);
/* TIERKV_RESOURCE_EXHAUSTED: the budget has no room; it stays parked and loses nothing. */
tierkv_status tierkv_seq_wake(tierkv_cache* cache, tierkv_seq seq);
/* 1 or 0. */
tierkv_status tierkv_seq_is_parked(const tierkv_cache* cache, tierkv_seq seq, int* out);

/* The cold store (the key `cold` of the configuration): archived tokens brought back bit for bit as they were copied, and dropped
 * again; see AdaptiveKVCache::promote(). */
typedef struct tierkv_promotion_report {
  size_t size;           /* sizeof(tierkv_promotion_report) of the caller, set before the call */
  uint64_t blocks;       /* that came back, over all layers and KV heads */
  uint64_t tokens;       /* live rows in them */
  uint64_t without_copy; /* archive blocks in the range that have none, and stay as they are */
} tierkv_promotion_report;

/* Positions first..first+count-1; UINT32_MAX: to the end. `report` may be null. TIERKV_FAILED_PRECONDITION: no cold file, or
 * parked. TIERKV_RESOURCE_EXHAUSTED: the budget has no room. TIERKV_DATA_LOSS: a copy is damaged and given up; call again for the
 * others. A failed call changes nothing. */
tierkv_status tierkv_seq_promote(tierkv_cache* cache, tierkv_seq seq, uint32_t first, uint32_t count,
                                 tierkv_promotion_report* report);
tierkv_status tierkv_seq_demote(tierkv_cache* cache, tierkv_seq seq, uint32_t first, uint32_t count);

/* A call lacks memory under byte_budget. */
typedef struct tierkv_pressure {
  size_t size;           /* of this struct in the library: newer ones are longer */
  tierkv_seq seq;        /* the call's; 0: it makes a new one. For tierkv_seq_fork the one to copy */
  uint64_t needed_bytes; /* at least what it lacks, as far as it knows */
  uint64_t used_bytes;   /* of the budget, free ones not counted */
  uint64_t budget_bytes;
  uint32_t attempt; /* 0, then 1, ... within one call */
} tierkv_pressure;
/* Makes room (tierkv_seq_park, tierkv_evict, tierkv_truncate or tierkv_seq_remove of sequences nobody waits for) and returns
 * nonzero: the whole call is tried again, at most 16 times. 0: it is TIERKV_RESOURCE_EXHAUSTED, as without a handler. Called with
 * no lock held, on the thread of the call, and from several threads at once when several calls lack memory; calls that it makes may
 * come here again. It does not throw or jump out. */
typedef int (*tierkv_pressure_handler)(void* user, const tierkv_pressure* pressure);
/* Asked when appending, waking, loading, unfreezing, forking or adding a sequence lacks memory under byte_budget, after the
 * eviction policy had its turn. Null: none, as at first. Calls under way may still ask the one before. */
tierkv_status tierkv_cache_set_pressure_handler(tierkv_cache* cache, tierkv_pressure_handler handler, void* user);

/* Writes at most `capacity` ids to `out` (may be null when 0) and how many there are to `count`. */
tierkv_status tierkv_seq_list(const tierkv_cache* cache, tierkv_seq* out, size_t capacity, size_t* count);

enum { TIERKV_F32 = 0, TIERKV_F16 = 1, TIERKV_BF16 = 2 };

/* The caller's rows: element (token t, head h, channel c) is data[t*token_stride + h*head_stride + c], strides in elements,
 * channels contiguous. tierkv_rows_dense() makes the plain layout [tokens][heads][head_dim]. */
typedef struct tierkv_rows {
  size_t size; /* sizeof(tierkv_rows) of the caller */
  const void* data;
  int type;
  uint32_t tokens;
  uint32_t heads;
  uint32_t head_dim;
  int64_t token_stride;
  int64_t head_stride;
} tierkv_rows;

/* In the header, so that what it returns is as long as the caller's own struct. */
static inline tierkv_rows tierkv_rows_dense(const void* data, int type, uint32_t tokens, uint32_t heads, uint32_t head_dim) {
  tierkv_rows rows = {sizeof(tierkv_rows), NULL, 0, 0, 0, 0, 0, 0};
  rows.data = data;
  rows.type = type;
  rows.tokens = tokens;
  rows.heads = heads;
  rows.head_dim = head_dim;
  rows.token_stride = heads;
  rows.token_stride *= head_dim;
  rows.head_stride = head_dim;
  return rows;
}

/* Appends the next tokens of one layer. Refused, no token is in; what an eviction policy had given up to make room is gone. */
tierkv_status tierkv_append(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const tierkv_rows* keys,
                            const tierkv_rows* values);
/* The same for plain f32 rows of the cache's own shape, [tokens][kv heads][head_dim]. */
tierkv_status tierkv_append_f32(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const float* keys, const float* values,
                                uint32_t tokens);

/* One sequence's part in an append call over many. */
typedef struct tierkv_append_item {
  size_t size;               /* sizeof(tierkv_append_item) of the caller, in every element of an array */
  tierkv_seq seq;            /* each sequence at most once */
  const tierkv_rows* keys;   /* any number of tokens */
  const tierkv_rows* values; /* as many */
  tierkv_status status;      /* written by the call */
} tierkv_append_item;

void tierkv_append_item_init(tierkv_append_item* item);
/* Appends to many sequences, one after the other: a step of a batch. An item that is refused says so in its status and does not
 * disturb the others; the call returns TIERKV_OK when all items are, otherwise the status of the first that is not. */
tierkv_status tierkv_append_batch(tierkv_cache* cache, uint32_t layer, tierkv_append_item* items, size_t count);

typedef struct tierkv_attention_options {
  size_t size;              /* sizeof(tierkv_attention_options) of the caller */
  int causal;               /* 1: a query sees positions up to its own */
  int observe;              /* 1: the eviction policy learns from this call */
  float scale;              /* 0: 1/sqrt(head_dim) */
  float softcap;            /* 0: none */
  int64_t first_position;   /* of the first query; -1: the queries are the newest tokens */
  const float* sink_logits; /* one extra logit per query head, or null */
  float* token_mass;        /* [kv heads][length] softmax mass each position received, or null */
  size_t token_mass_size;   /* floats that token_mass has room for */
} tierkv_attention_options;

void tierkv_attention_options_init(tierkv_attention_options* options);
/* out is [tokens][query heads][head_dim]; options may be null. Queries are up to 1e25 (times scale, where that is above 1). When
 * scores overflow all the same, or the system refuses memory, out and token_mass are undefined and nothing else has
 * changed: an eviction policy learns from calls that succeed. */
tierkv_status tierkv_attention(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const tierkv_rows* queries, float* out,
                               const tierkv_attention_options* options);
tierkv_status tierkv_attention_f32(tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const float* queries, uint32_t tokens,
                                   float* out);

/* One sequence's part in an attention call over many. */
typedef struct tierkv_attention_item {
  size_t size;                /* sizeof(tierkv_attention_item) of the caller, in every element of an array */
  tierkv_seq seq;             /* each sequence at most once */
  const tierkv_rows* queries; /* any number of tokens */
  float* out;                 /* [tokens][query heads][head_dim] */
  int64_t first_position;     /* of the first query; -1: the queries are the newest tokens */
  tierkv_status status;       /* written by the call */
} tierkv_attention_item;

void tierkv_attention_item_init(tierkv_attention_item* item);
/* Attention for many sequences at once, their work shared out together. An item that fails says so in its status and does not
 * disturb the others; the call returns TIERKV_OK when all items are, otherwise the status of the first that is not. options may be
 * null; their first_position and token_mass must be as _init left them. */
tierkv_status tierkv_attention_batch(tierkv_cache* cache, uint32_t layer, tierkv_attention_item* items, size_t count,
                                     const tierkv_attention_options* options);

/* Rows at positions, as the cache would use them: [positions][kv heads][head_dim]; either output may be null. */
tierkv_status tierkv_get(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, const uint32_t* positions, size_t count,
                         float* keys, float* values);
/* Forgets every position >= length in every layer. */
tierkv_status tierkv_truncate(tierkv_cache* cache, tierkv_seq seq, uint32_t length);
/* Keeps at most `tokens` tokens in every layer by the configured policy. TIERKV_RESOURCE_EXHAUSTED with a byte budget that has no
 * room for eviction's own lists: the KV heads before have given up their tokens, that one and the others none. */
tierkv_status tierkv_evict(tierkv_cache* cache, tierkv_seq seq, uint32_t tokens);
/* Graduates every full block that is due and gives free memory back to the system. TIERKV_RESOURCE_EXHAUSTED: what came before has
 * graduated, the rest is due again. */
tierkv_status tierkv_flush(tierkv_cache* cache);

/* Positions appended so far; the first is the smallest over layers. */
tierkv_status tierkv_length(const tierkv_cache* cache, tierkv_seq seq, uint32_t* out);
tierkv_status tierkv_layer_length(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, uint32_t* out);
/* Live positions of one KV head, ascending: at most `capacity` to `out` (may be null when 0), and how many there are to `count`. */
tierkv_status tierkv_positions(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, uint32_t kv_head, uint32_t* out,
                               size_t capacity, size_t* count);

/* --- statistics */
enum { TIERKV_SINK = 0, TIERKV_HOT = 1, TIERKV_WARM = 2, TIERKV_ARCHIVE = 3, TIERKV_NUM_TIERS = 4 };

/* Four of these lie inside tierkv_memory, so it never grows: another figure of the tiers will be another array at the end there. */
typedef struct tierkv_tier_memory {
  uint64_t tokens; /* live rows, summed over layers and KV heads */
  uint64_t payload_bytes;
  uint64_t overhead_bytes;
} tierkv_tier_memory;

typedef struct tierkv_memory {
  size_t size; /* sizeof(tierkv_memory) of the caller, set before the call */
  tierkv_tier_memory tier[TIERKV_NUM_TIERS];
  uint64_t bookkeeping_bytes;
  uint64_t free_bytes;
  uint64_t total_bytes; /* the tiers, bookkeeping_bytes, free_bytes and parked_bytes: never more than a budget */
  uint64_t peak_bytes;
  uint64_t budget_bytes;    /* 0: no budget */
  uint64_t fp16_bytes;      /* what the same live and parked tokens would take as plain FP16 */
  uint64_t parked_tokens;   /* rows of parked sequences, in no tier */
  uint64_t parked_bytes;    /* what they take, counted in total_bytes */
  uint64_t table_bytes;     /* calibrated tables, beside total_bytes: they do not grow, and a budget does not count them */
  uint64_t scratch_bytes;   /* rows that calls under way decode from deep archives, beside total_bytes */
  uint64_t promoted_tokens; /* rows that tierkv_seq_promote() brought back; they are in their tier */
  uint64_t promoted_bytes;  /* what they take beside their archive blocks, in the overhead of their tier */
  uint64_t cold_bytes;      /* of the cold file on disk, in no sum here */
  uint64_t spilled_tokens;  /* rows whose blocks are in the cold file alone; their tier counts them, without bytes */
  uint64_t read_blocks;     /* archive blocks that decoding steps had a choice about (the key `skip`) and read */
  uint64_t skipped_blocks;  /* those they did not read */
  double skipped_mass;      /* the most that those of one step may have had of a query's attention, by the bound */
  uint64_t device_tokens;   /* rows whose blocks only a device has; their tier counts them, without bytes */
  uint64_t device_bytes;    /* what they take there, in no sum here */
} tierkv_memory;

typedef struct tierkv_quality {
  size_t size; /* sizeof(tierkv_quality) of the caller, set before the call */
  uint64_t samples;
  double mean;
  double recent_mean;
  double target;
  uint64_t adaptations;
} tierkv_quality;

/* One of a list: tierkv_get_thresholds() takes its size, and later versions may be longer. */
typedef struct tierkv_thresholds {
  uint32_t hot;
  uint32_t warm;
  uint32_t archive_bits;
} tierkv_thresholds;

tierkv_status tierkv_memory_usage(const tierkv_cache* cache, tierkv_memory* out);
tierkv_status tierkv_seq_memory_usage(const tierkv_cache* cache, tierkv_seq seq, tierkv_memory* out);
tierkv_status tierkv_quality_metrics(const tierkv_cache* cache, tierkv_quality* out);
/* Recomputes every block's checksum; TIERKV_DATA_LOSS names the first that does not match. */
tierkv_status tierkv_verify(const tierkv_cache* cache, tierkv_seq seq);

/* --- adaptation: one measurement of quality, 1 is as good as FP16 */
tierkv_status tierkv_adapt_thresholds(tierkv_cache* cache, double score);
/* One per layer: at most `capacity` to `out` (may be null when 0), and how many there are to `count`. element_size is
 * sizeof(tierkv_thresholds) of the caller. */
tierkv_status tierkv_get_thresholds(const tierkv_cache* cache, tierkv_thresholds* out, size_t element_size, size_t capacity,
                                    size_t* count);
/* One per layer, as the call above lists them. Nothing changes when one is refused. */
tierkv_status tierkv_set_thresholds(tierkv_cache* cache, const tierkv_thresholds* given, size_t element_size, size_t count);
tierkv_status tierkv_save_thresholds(const tierkv_cache* cache, const char* path);
tierkv_status tierkv_load_thresholds(tierkv_cache* cache, const char* path);

/* --- learning a model in passing: tables for the archive from the rows that go by. See tierkv/learning.h. */
typedef struct tierkv_rope_pair {
  uint16_t a, b; /* channels: (a, b) -> (a cos - b sin, a sin + b cos) */
  double angle;  /* radians per position */
} tierkv_rope_pair;

typedef struct tierkv_learning_model {
  size_t size;                          /* sizeof(tierkv_learning_model) of the caller */
  const char* name;                     /* of the model, or null */
  uint64_t fingerprint;                 /* of its weights */
  const tierkv_rope_pair* const* ropes; /* of each layer of the cache */
  const uint32_t* rope_pairs;           /* of each layer: how many; 0: it has no RoPE */
  const float* const* grams;            /* of each layer: W_O'W_O of each query head, [query heads][head_dim][head_dim], or null;
                                         * all of it may be null */
} tierkv_learning_model;

enum {
  TIERKV_LEARNING_OFF = 0,
  TIERKV_LEARNING_GATHERING = 1,
  TIERKV_LEARNING_SOLVING = 2,
  TIERKV_LEARNING_DONE = 3,
  TIERKV_LEARNING_REFUSED = 4
};

typedef struct tierkv_learning_report {
  size_t size;     /* sizeof(tierkv_learning_report) of the caller, set before the call */
  int phase;       /* TIERKV_LEARNING_... */
  int waiting;     /* 1: tokens that are due for the archive stay in the warm tier */
  uint64_t tokens; /* seen, those of earlier runs included */
  uint64_t wanted; /* to be seen before tables are made */
  uint64_t bytes;  /* that learning holds now */
  double seconds;  /* that making the tables took */
} tierkv_learning_report;

/* Learns from here on, at most once. `tokens` 0: 8192. `path`: where the tables go, and where an earlier run's sums are looked for;
 * null: nothing is read or written. TIERKV_FAILED_PRECONDITION: it learns already, has tables, or no archive would be better with
 * some. */
tierkv_status tierkv_learn(tierkv_cache* cache, const tierkv_learning_model* model, uint64_t tokens, const char* path);
/* The mean of |h|^2 before a layer, where a host knows it. */
tierkv_status tierkv_learn_residual(tierkv_cache* cache, uint32_t layer, double mean_square);
/* How far it is; report may be null. `sentence` gets what the archive is and why, cut to `sentence_size` bytes; null when that is
 * 0.
 */
tierkv_status tierkv_learning(const tierkv_cache* cache, tierkv_learning_report* report, char* sentence, size_t sentence_size);

/* --- snapshots of one sequence, resumed bit for bit */
tierkv_status tierkv_save(const tierkv_cache* cache, tierkv_seq seq, const char* path);
tierkv_status tierkv_load(tierkv_cache* cache, const char* path, tierkv_seq* out);
/* tierkv_free() the bytes. */
tierkv_status tierkv_freeze(const tierkv_cache* cache, tierkv_seq seq, void** out, size_t* size);
tierkv_status tierkv_unfreeze(tierkv_cache* cache, const void* bytes, size_t size, tierkv_seq* out);

#ifdef __cplusplus
}
#endif

#endif /* TIERKV_C_H */
