/* c_api_growth_test.c — programs compiled against an older or a newer tierkv/c.h than the library's: their structs are shorter or
 * longer, and everything they know still works. Exits with 0 when it does. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tierkv/c.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKENS = 40 };

static int failures = 0;

#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      ++failures;                                                                                           \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, tierkv_last_error()); \
    }                                                                                                       \
  } while (0)

#define OK(call) CHECK((call) == TIERKV_OK)

enum { UNTOUCHED = 0x5A };

static int untouched(const unsigned char* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != UNTOUCHED) return 0;
  }
  return 1;
}

/* What an older header might have said: the first members of today's, in their order. */
struct old_attention_options {
  size_t size;
  int causal;
  int observe;
};
struct old_memory {
  size_t size;
  tierkv_tier_memory tier[TIERKV_NUM_TIERS];
  uint64_t bookkeeping_bytes;
  uint64_t free_bytes;
  uint64_t total_bytes;
};
struct old_quality {
  size_t size;
  uint64_t samples;
};
struct old_thresholds {
  uint32_t hot;
};

/* And what a newer one might say. */
struct new_rows {
  tierkv_rows known;
  uint64_t place;
};
struct new_thresholds {
  tierkv_thresholds known;
  uint32_t more;
};

static void shorter_structs(tierkv_cache* cache, tierkv_seq seq, const float* query, const float* expected) {
  const size_t out_size = HEADS * DIM;
  float* out = calloc(out_size, sizeof *out);
  struct {
    struct old_attention_options options;
    unsigned char garbage[sizeof(tierkv_attention_options)];
  } asked;
  memset(&asked, UNTOUCHED, sizeof asked); /* pointers and sizes that would crash if they were used */
  asked.options.size = sizeof asked.options;
  asked.options.causal = 1;
  asked.options.observe = 0;
  tierkv_rows queries = tierkv_rows_dense(query, TIERKV_F32, 1, HEADS, DIM);
  OK(tierkv_attention(cache, seq, 0, &queries, out, (const tierkv_attention_options*)&asked.options));
  CHECK(memcmp(out, expected, out_size * sizeof *out) == 0);

  struct {
    struct old_memory memory;
    unsigned char beyond[sizeof(tierkv_memory)];
  } used;
  memset(&used, UNTOUCHED, sizeof used);
  used.memory.size = sizeof used.memory;
  OK(tierkv_memory_usage(cache, (tierkv_memory*)&used.memory));
  CHECK(used.memory.size == sizeof used.memory && used.memory.total_bytes > 0);
  CHECK(untouched(used.beyond, sizeof used.beyond));

  struct {
    struct old_quality quality;
    unsigned char beyond[sizeof(tierkv_quality)];
  } seen;
  memset(&seen, UNTOUCHED, sizeof seen);
  seen.quality.size = sizeof seen.quality;
  OK(tierkv_quality_metrics(cache, (tierkv_quality*)&seen.quality));
  CHECK(seen.quality.samples == 0 && untouched(seen.beyond, sizeof seen.beyond));

  tierkv_thresholds whole[LAYERS];
  struct old_thresholds first[LAYERS + 1];
  size_t count = 0;
  memset(first, UNTOUCHED, sizeof first);
  OK(tierkv_get_thresholds(cache, whole, sizeof *whole, LAYERS, &count));
  OK(tierkv_get_thresholds(cache, (tierkv_thresholds*)first, sizeof *first, LAYERS, &count));
  CHECK(count == LAYERS);
  for (int l = 0; l < LAYERS; ++l) CHECK(first[l].hot == whole[l].hot);
  CHECK(untouched((const unsigned char*)&first[LAYERS], sizeof *first));
  free(out);
}

static void longer_structs(tierkv_cache* cache, tierkv_seq seq, const float* row) {
  struct new_rows rows;
  memset(&rows, 0, sizeof rows);
  rows.known = tierkv_rows_dense(row, TIERKV_F32, 1, KV_HEADS, DIM);
  rows.known.size = sizeof rows;
  OK(tierkv_append(cache, seq, 0, &rows.known, &rows.known));
  rows.place = 1; /* asks for something this library does not have */
  CHECK(tierkv_append(cache, seq, 0, &rows.known, &rows.known) == TIERKV_UNSUPPORTED);

  struct new_thresholds limits[LAYERS];
  size_t count = 0;
  memset(limits, UNTOUCHED, sizeof limits);
  OK(tierkv_get_thresholds(cache, &limits[0].known, sizeof *limits, LAYERS, &count));
  CHECK(limits[LAYERS - 1].known.hot == limits[0].known.hot);
  CHECK(untouched((const unsigned char*)&limits[1].more, sizeof limits[1].more));
}

int main(void) {
  tierkv_config* config = NULL;
  tierkv_cache* cache = NULL;
  tierkv_seq seq = 0;
  OK(tierkv_config_create(&config));
  OK(tierkv_config_set_model(config, "tiny", LAYERS, HEADS, KV_HEADS, DIM));
  OK(tierkv_cache_create(config, &cache));
  OK(tierkv_seq_add(cache, &seq));
  const size_t size = (size_t)TOKENS * KV_HEADS * DIM;
  float* rows = malloc(size * sizeof *rows);
  float expected[HEADS * DIM];
  if (!rows) return 2;
  for (size_t i = 0; i < size; ++i) rows[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
  OK(tierkv_append_f32(cache, seq, 0, rows, rows, TOKENS));
  OK(tierkv_attention_f32(cache, seq, 0, rows, 1, expected));
  shorter_structs(cache, seq, rows, expected);
  longer_structs(cache, seq, rows);
  free(rows);
  tierkv_cache_destroy(cache);
  tierkv_config_destroy(config);
  if (failures == 0) printf("older and newer programs work\n");
  return failures == 0 ? 0 : 1;
}
