/* c_api_test.c — a C program that uses tierkv the way a C host would; exits with 0 when everything held. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tierkv/c.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKENS = 300 };

static int failures = 0;

#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      ++failures;                                                                                           \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, tierkv_last_error()); \
    }                                                                                                       \
  } while (0)

#define OK(call) CHECK((call) == TIERKV_OK)

/* Refused with this code, with a sentence that has this in it. */
#define REFUSED(call, code, words)                       \
  do {                                                   \
    CHECK((call) == (code));                             \
    CHECK(strstr(tierkv_last_error(), (words)) != NULL); \
  } while (0)

static uint32_t random_state = 12345;
static float random_float(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static float* random_rows(size_t count) {
  float* rows = malloc(count * sizeof *rows);
  if (!rows) exit(2);
  for (size_t i = 0; i < count; ++i) rows[i] = random_float();
  return rows;
}

static void names_and_versions(void) {
  CHECK(strlen(tierkv_version()) > 0);
  CHECK(strcmp(tierkv_status_name(TIERKV_OK), "ok") == 0);
  CHECK(strcmp(tierkv_status_name(TIERKV_DATA_LOSS), "data_loss") == 0);
  CHECK(strcmp(tierkv_status_name(99), "unknown") == 0);
  CHECK(strcmp(tierkv_status_name(-1), "unknown") == 0);
  size_t codecs = 0, policies = 0, presets = 0;
  while (tierkv_codec_name(codecs)) CHECK(strlen(tierkv_codec_summary(codecs++)) > 0);
  while (tierkv_policy_name(policies)) CHECK(strlen(tierkv_policy_summary(policies++)) > 0);
  int balanced = 0;
  while (tierkv_preset_name(presets)) balanced |= strcmp(tierkv_preset_name(presets++), "balanced") == 0;
  CHECK(codecs >= 5 && policies == 9 && presets >= 8 && balanced);
  CHECK(tierkv_codec_summary(codecs) == NULL && tierkv_policy_summary(policies) == NULL);
  tierkv_free(NULL);
}

static tierkv_config* make_config(const char* settings) {
  tierkv_config* config = NULL;
  OK(tierkv_config_create(&config));
  OK(tierkv_config_set_model(config, "tiny", LAYERS, HEADS, KV_HEADS, DIM));
  OK(tierkv_config_apply_inline(config, settings));
  return config;
}

static void configuration(void) {
  tierkv_config* config = make_config("balanced");
  OK(tierkv_config_apply_preset(config, "compact"));
  OK(tierkv_config_apply_spec(config, "balanced,hot=32"));
  OK(tierkv_config_apply_toml(config, "sinks = 2\n[eviction]\npolicy = \"h2o\"\n"));
  OK(tierkv_config_apply_json(config, "{\"warm\": 128}"));
  OK(tierkv_config_set_max_seq_len(config, 1000));
  OK(tierkv_config_set_byte_budget(config, 64u << 20));
  OK(tierkv_config_set_threads(config, 2));
  OK(tierkv_config_validate(config));
  char* json = NULL;
  OK(tierkv_config_to_json(config, &json));
  CHECK(json && strstr(json, "\"warm\": 128") && strstr(json, "h2o") && strstr(json, "\"max_seq_len\": 1000"));

  REFUSED(tierkv_config_apply_inline(config, "hto=3"), TIERKV_INVALID_ARGUMENT, "hto");
  REFUSED(tierkv_config_apply_toml(config, "\nhot = \"x\"\n"), TIERKV_INVALID_ARGUMENT, "hot");
  REFUSED(tierkv_config_apply_json(config, "{"), TIERKV_INVALID_ARGUMENT, "JSON");
  REFUSED(tierkv_config_apply_preset(config, "nonesuch"), TIERKV_INVALID_ARGUMENT, "balanced");
  REFUSED(tierkv_config_apply_file(config, "no/such/file.toml"), TIERKV_NOT_FOUND, "file.toml");
  char* after = NULL;
  OK(tierkv_config_to_json(config, &after));
  CHECK(after && json && strcmp(json, after) == 0); /* refused texts changed nothing */
  tierkv_free(json);
  tierkv_free(after);

  OK(tierkv_config_set_model(config, "", LAYERS, HEADS, KV_HEADS, 33));
  REFUSED(tierkv_config_validate(config), TIERKV_INVALID_ARGUMENT, "head_dim");
  tierkv_cache* cache = NULL;
  REFUSED(tierkv_cache_create(config, &cache), TIERKV_INVALID_ARGUMENT, "head_dim");
  CHECK(cache == NULL);
  tierkv_config_destroy(config);
}

/* Plain attention over the rows the cache itself returns, in double precision. */
static double attention_error(const tierkv_cache* cache, tierkv_seq seq, uint32_t layer, uint32_t length, const float* query,
                              const float* out) {
  uint32_t* positions = malloc(length * sizeof *positions);
  float* keys = malloc((size_t)length * KV_HEADS * DIM * sizeof *keys);
  float* values = malloc((size_t)length * KV_HEADS * DIM * sizeof *values);
  double* weights = malloc(length * sizeof *weights);
  if (!positions || !keys || !values || !weights) exit(2);
  for (uint32_t i = 0; i < length; ++i) positions[i] = i;
  OK(tierkv_get(cache, seq, layer, positions, length, keys, values));
  double worst = 0.0;
  for (uint32_t h = 0; h < HEADS; ++h) {
    const uint32_t kv = h / (HEADS / KV_HEADS);
    double top = -1e300, sum = 0.0;
    for (uint32_t i = 0; i < length; ++i) {
      double score = 0.0;
      for (uint32_t c = 0; c < DIM; ++c) score += (double)query[h * DIM + c] * keys[((size_t)i * KV_HEADS + kv) * DIM + c];
      weights[i] = score / sqrt((double)DIM);
      if (weights[i] > top) top = weights[i];
    }
    for (uint32_t i = 0; i < length; ++i) sum += weights[i] = exp(weights[i] - top);
    for (uint32_t c = 0; c < DIM; ++c) {
      double expected = 0.0;
      for (uint32_t i = 0; i < length; ++i) expected += weights[i] / sum * values[((size_t)i * KV_HEADS + kv) * DIM + c];
      const double error = fabs(expected - out[h * DIM + c]);
      if (error > worst) worst = error;
    }
  }
  free(positions);
  free(keys);
  free(values);
  free(weights);
  return worst;
}

static void tokens_and_attention(void) {
  tierkv_config* config = make_config("hot=32,warm=64,warm_codec=rot4,archive=rot2,sinks=4,warm_block=32,archive_block=64");
  tierkv_cache* cache = NULL;
  OK(tierkv_cache_create(config, &cache));
  tierkv_config_destroy(config); /* the cache has its own copy */
  tierkv_seq seq = 0;
  OK(tierkv_seq_add(cache, &seq));
  float* keys = random_rows((size_t)TOKENS * KV_HEADS * DIM);
  float* values = random_rows((size_t)TOKENS * KV_HEADS * DIM);
  float* query = random_rows(HEADS * DIM);
  float out[HEADS * DIM], again[HEADS * DIM];
  for (uint32_t layer = 0; layer < LAYERS; ++layer) OK(tierkv_append_f32(cache, seq, layer, keys, values, TOKENS - 1));
  /* the last token through the strided form: [head][token][channel] */
  tierkv_rows last_keys = tierkv_rows_dense(keys, TIERKV_F32, 1, KV_HEADS, DIM);
  tierkv_rows last_values = tierkv_rows_dense(values, TIERKV_F32, 1, KV_HEADS, DIM);
  last_values.token_stride = DIM;
  OK(tierkv_append(cache, seq, 0, &last_keys, &last_values));
  uint32_t length = 0;
  OK(tierkv_length(cache, seq, &length));
  CHECK(length == TOKENS - 1);
  OK(tierkv_layer_length(cache, seq, 0, &length));
  CHECK(length == TOKENS);
  OK(tierkv_attention_f32(cache, seq, 0, query, 1, out));
  CHECK(attention_error(cache, seq, 0, TOKENS, query, out) < 1e-4);

  tierkv_attention_options options;
  tierkv_attention_options_init(&options);
  float* mass = malloc((size_t)KV_HEADS * TOKENS * sizeof *mass);
  if (!mass) exit(2);
  options.token_mass = mass;
  options.token_mass_size = 3;
  tierkv_rows queries = tierkv_rows_dense(query, TIERKV_F32, 1, HEADS, DIM);
  REFUSED(tierkv_attention(cache, seq, 0, &queries, again, &options), TIERKV_INVALID_ARGUMENT, "token_mass");
  options.token_mass_size = (size_t)KV_HEADS * TOKENS;
  OK(tierkv_attention(cache, seq, 0, &queries, again, &options));
  CHECK(memcmp(out, again, sizeof out) == 0);
  double sum = 0.0;
  for (size_t i = 0; i < (size_t)KV_HEADS * TOKENS; ++i) sum += mass[i];
  CHECK(fabs(sum - HEADS) < 1e-3);
  free(mass);
  /* an older program's shorter struct: what it did not know keeps its default */
  options.size = offsetof(tierkv_attention_options, token_mass);
  options.token_mass = NULL;
  OK(tierkv_attention(cache, seq, 0, &queries, again, &options));
  options.size = 0;
  REFUSED(tierkv_attention(cache, seq, 0, &queries, again, &options), TIERKV_INVALID_ARGUMENT, "size");
  OK(tierkv_attention(cache, seq, 0, &queries, again, NULL));
  CHECK(strcmp(tierkv_last_error(), "") == 0);

  /* many at once: one that is not there does not disturb the other */
  tierkv_attention_item items[2];
  memset(again, 0, sizeof again);
  for (int i = 0; i < 2; ++i) {
    tierkv_attention_item_init(&items[i]);
    items[i].queries = &queries;
    items[i].out = again;
  }
  items[0].seq = seq + 100;
  items[1].seq = seq;
  REFUSED(tierkv_attention_batch(cache, 0, items, 2, NULL), TIERKV_NOT_FOUND, "sequence");
  CHECK(items[0].status == TIERKV_NOT_FOUND && items[1].status == TIERKV_OK);
  CHECK(memcmp(out, again, sizeof out) == 0);
  OK(tierkv_attention_batch(cache, 0, &items[1], 1, NULL));
  OK(tierkv_attention_batch(cache, 0, NULL, 0, NULL));
  REFUSED(tierkv_attention_batch(cache, 0, NULL, 1, NULL), TIERKV_INVALID_ARGUMENT, "items");
  items[1].queries = NULL;
  REFUSED(tierkv_attention_batch(cache, 0, items, 2, NULL), TIERKV_INVALID_ARGUMENT, "queries");
  items[1].queries = &queries;
  items[1].size = 8;
  REFUSED(tierkv_attention_batch(cache, 0, items, 2, NULL), TIERKV_INVALID_ARGUMENT, "size");

  /* appended at once, and taken back */
  tierkv_append_item appended[2];
  const tierkv_rows more = tierkv_rows_dense(query, TIERKV_F32, 1, KV_HEADS, DIM);
  for (int i = 0; i < 2; ++i) {
    tierkv_append_item_init(&appended[i]);
    appended[i].keys = appended[i].values = &more;
  }
  appended[0].seq = seq + 100;
  appended[1].seq = seq;
  REFUSED(tierkv_append_batch(cache, 0, appended, 2), TIERKV_NOT_FOUND, "sequence");
  CHECK(appended[0].status == TIERKV_NOT_FOUND && appended[1].status == TIERKV_OK);
  OK(tierkv_layer_length(cache, seq, 0, &length));
  CHECK(length == TOKENS + 1);
  OK(tierkv_truncate(cache, seq, TOKENS));
  OK(tierkv_append_batch(cache, 0, NULL, 0));
  REFUSED(tierkv_append_batch(cache, 0, NULL, 1), TIERKV_INVALID_ARGUMENT, "items");
  appended[0].seq = seq;
  REFUSED(tierkv_append_batch(cache, 0, appended, 2), TIERKV_INVALID_ARGUMENT, "twice");
  appended[1].values = NULL;
  REFUSED(tierkv_append_batch(cache, 0, appended, 2), TIERKV_INVALID_ARGUMENT, "values");
  appended[1].size = 8;
  REFUSED(tierkv_append_batch(cache, 0, appended, 2), TIERKV_INVALID_ARGUMENT, "size");

  uint32_t some[4];
  size_t count = 0;
  OK(tierkv_positions(cache, seq, 0, 1, some, 4, &count));
  CHECK(count == TOKENS && some[0] == 0 && some[3] == 3);
  OK(tierkv_positions(cache, seq, 0, 1, NULL, 0, &count));
  CHECK(count == TOKENS);

  /* 16-bit rows: 0x3C00 is 1.0 in FP16, 0x3F80 in bfloat16 */
  uint16_t ones[2][KV_HEADS * DIM];
  float row[KV_HEADS * DIM];
  for (size_t i = 0; i < KV_HEADS * DIM; ++i) ones[0][i] = 0x3C00, ones[1][i] = 0x3F80;
  const tierkv_rows half = tierkv_rows_dense(ones[0], TIERKV_F16, 1, KV_HEADS, DIM);
  const tierkv_rows brain = tierkv_rows_dense(ones[1], TIERKV_BF16, 1, KV_HEADS, DIM);
  OK(tierkv_append(cache, seq, 1, &half, &brain));
  const uint32_t newest = TOKENS - 1;
  OK(tierkv_get(cache, seq, 1, &newest, 1, NULL, row));
  CHECK(row[0] == 1.0f && row[KV_HEADS * DIM - 1] == 1.0f);
  OK(tierkv_get(cache, seq, 1, &newest, 1, row, NULL));
  CHECK(row[5] == 1.0f);

  /* fork, truncate, remove */
  tierkv_seq copy = 0;
  OK(tierkv_seq_fork(cache, seq, &copy));
  OK(tierkv_truncate(cache, copy, 100));
  OK(tierkv_length(cache, copy, &length));
  CHECK(length == 100);
  OK(tierkv_length(cache, seq, &length));
  CHECK(length == TOKENS);
  tierkv_seq listed[1];
  OK(tierkv_seq_list(cache, listed, 1, &count));
  CHECK(count == 2 && listed[0] == seq);
  OK(tierkv_seq_remove(cache, copy));
  REFUSED(tierkv_seq_remove(cache, copy), TIERKV_NOT_FOUND, "sequence");

  /* freeze and unfreeze */
  void* frozen = NULL;
  size_t size = 0;
  OK(tierkv_freeze(cache, seq, &frozen, &size));
  OK(tierkv_unfreeze(cache, frozen, size, &copy));
  OK(tierkv_attention(cache, copy, 0, &queries, again, NULL));
  CHECK(memcmp(out, again, sizeof out) == 0);
  ((unsigned char*)frozen)[size / 2] ^= 1;
  CHECK(tierkv_unfreeze(cache, frozen, size, &copy) != TIERKV_OK);
  tierkv_free(frozen);
  const char* path = "c_api_test.tierkv";
  tierkv_seq loaded = 0;
  OK(tierkv_save(cache, seq, path));
  OK(tierkv_load(cache, path, &loaded));
  OK(tierkv_attention(cache, loaded, 0, &queries, again, NULL));
  CHECK(memcmp(out, again, sizeof out) == 0);
  remove(path);
  CHECK(tierkv_load(cache, path, &loaded) == TIERKV_NOT_FOUND);

  OK(tierkv_verify(cache, seq));
  OK(tierkv_flush(cache));
  REFUSED(tierkv_evict(cache, seq, 10), TIERKV_FAILED_PRECONDITION, "policy");

  tierkv_memory memory;
  memory.size = sizeof memory;
  OK(tierkv_memory_usage(cache, &memory));
  uint64_t bytes = memory.bookkeeping_bytes + memory.free_bytes + memory.parked_bytes;
  for (int t = 0; t < TIERKV_NUM_TIERS; ++t) bytes += memory.tier[t].payload_bytes + memory.tier[t].overhead_bytes;
  CHECK(bytes == memory.total_bytes && memory.tier[TIERKV_ARCHIVE].tokens > 0 && memory.tier[TIERKV_SINK].tokens > 0);
  OK(tierkv_seq_memory_usage(cache, seq, &memory));
  CHECK(memory.fp16_bytes == (uint64_t)2 * TOKENS * KV_HEADS * DIM * 2 * 2);
  memory.size = 0;
  REFUSED(tierkv_memory_usage(cache, &memory), TIERKV_INVALID_ARGUMENT, "size");

  free(keys);
  free(values);
  free(query);
  tierkv_cache_destroy(cache);
}

static void adaptation_and_eviction(void) {
  tierkv_config* config = make_config("balanced,archive=rot2,evict=h2o,max_len=128");
  tierkv_cache* cache = NULL;
  OK(tierkv_cache_create(config, &cache));
  tierkv_config_destroy(config);
  tierkv_thresholds before[LAYERS], after[LAYERS];
  size_t count = 0;
  OK(tierkv_get_thresholds(cache, before, sizeof *before, LAYERS, &count));
  CHECK(count == LAYERS && before[0].hot == 64);
  for (int i = 0; i < 20; ++i) OK(tierkv_adapt_thresholds(cache, 0.5));
  OK(tierkv_get_thresholds(cache, after, sizeof *after, LAYERS, &count));
  CHECK(after[0].hot > before[0].hot && after[1].archive_bits > before[1].archive_bits);
  tierkv_quality quality;
  quality.size = sizeof quality;
  OK(tierkv_quality_metrics(cache, &quality));
  CHECK(quality.samples == 20 && quality.adaptations >= 1 && fabs(quality.mean - 0.5) < 1e-9);
  CHECK(tierkv_adapt_thresholds(cache, NAN) == TIERKV_INVALID_ARGUMENT);
  OK(tierkv_set_thresholds(cache, before, sizeof *before, LAYERS));
  tierkv_thresholds set[LAYERS];
  OK(tierkv_get_thresholds(cache, set, sizeof *set, LAYERS, &count));
  CHECK(memcmp(set, before, sizeof set) == 0);
  CHECK(tierkv_set_thresholds(cache, before, sizeof *before, LAYERS - 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_set_thresholds(cache, before, 1, LAYERS) == TIERKV_INVALID_ARGUMENT);
  set[1].archive_bits = 17;
  CHECK(tierkv_set_thresholds(cache, set, sizeof *set, LAYERS) == TIERKV_INVALID_ARGUMENT);
  const char* path = "c_api_test_thresholds.json";
  OK(tierkv_save_thresholds(cache, path));
  OK(tierkv_load_thresholds(cache, path));
  remove(path);
  CHECK(tierkv_load_thresholds(cache, path) == TIERKV_NOT_FOUND);

  tierkv_seq seq = 0;
  OK(tierkv_seq_add(cache, &seq));
  float* rows = random_rows((size_t)TOKENS * KV_HEADS * DIM);
  OK(tierkv_append_f32(cache, seq, 0, rows, rows, TOKENS));
  OK(tierkv_positions(cache, seq, 0, 0, NULL, 0, &count));
  CHECK(count <= 128);
  OK(tierkv_evict(cache, seq, 20));
  OK(tierkv_positions(cache, seq, 0, 0, NULL, 0, &count));
  CHECK(count == 20);
  free(rows);
  tierkv_cache_destroy(cache);
}

static void bad_calls(void) {
  tierkv_config* config = make_config("balanced");
  tierkv_cache* cache = NULL;
  tierkv_seq seq = 0;
  uint32_t length = 0, position = 7;
  size_t count = 0;
  float buffer[HEADS * DIM] = {0};
  char* text = NULL;
  void* bytes = NULL;
  tierkv_thresholds limits;
  tierkv_memory memory = {.size = sizeof memory};
  OK(tierkv_cache_create(config, &cache));
  OK(tierkv_seq_add(cache, &seq));
  tierkv_rows rows = tierkv_rows_dense(buffer, TIERKV_F32, 1, KV_HEADS, DIM);

  REFUSED(tierkv_config_create(NULL), TIERKV_INVALID_ARGUMENT, "out");
  CHECK(tierkv_config_set_model(NULL, "x", 1, 1, 1, 64) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_set_model(config, NULL, 1, 1, 1, 64) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_set_max_seq_len(NULL, 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_set_byte_budget(NULL, 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_set_threads(NULL, 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_preset(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_inline(NULL, "hot=1") == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_toml(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_json(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_file(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_apply_spec(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_to_json(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_to_json(NULL, &text) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_config_validate(NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_cache_create(NULL, &cache) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_cache_create(config, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_add(NULL, &seq) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_add(cache, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_fork(cache, seq, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_remove(NULL, seq) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_list(cache, NULL, 3, &count) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_list(cache, &seq, 1, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_append(cache, seq, 0, NULL, &rows) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_append(cache, seq, 0, &rows, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_append_f32(cache, seq, 0, NULL, buffer, 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_append_f32(NULL, seq, 0, buffer, buffer, 1) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_attention(cache, seq, 0, NULL, buffer, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_attention_f32(cache, seq, 0, buffer, 1, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_get(cache, seq, 0, NULL, 1, buffer, buffer) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_truncate(NULL, seq, 0) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_evict(NULL, seq, 0) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_flush(NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_length(cache, seq, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_layer_length(NULL, seq, 0, &length) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_positions(cache, seq, 0, 0, NULL, 1, &count) == TIERKV_INVALID_ARGUMENT || count == 0);
  CHECK(tierkv_memory_usage(cache, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_seq_memory_usage(NULL, seq, &memory) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_quality_metrics(cache, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_verify(NULL, seq) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_adapt_thresholds(NULL, 1.0) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_get_thresholds(cache, NULL, sizeof(tierkv_thresholds), 2, &count) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_get_thresholds(cache, &limits, 0, 1, &count) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_save_thresholds(cache, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_load_thresholds(cache, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_save(cache, seq, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_load(cache, NULL, &seq) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_freeze(cache, seq, NULL, &count) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_freeze(cache, seq, &bytes, NULL) == TIERKV_INVALID_ARGUMENT);
  CHECK(tierkv_unfreeze(cache, NULL, 3, &seq) == TIERKV_INVALID_ARGUMENT);
  tierkv_attention_options_init(NULL);
  tierkv_config_destroy(NULL);
  tierkv_cache_destroy(NULL);

  REFUSED(tierkv_append_f32(cache, seq, LAYERS, buffer, buffer, 1), TIERKV_OUT_OF_RANGE, "layer");
  REFUSED(tierkv_append_f32(cache, seq + 99, 0, buffer, buffer, 1), TIERKV_NOT_FOUND, "sequence");
  REFUSED(tierkv_get(cache, seq, 0, &position, 1, buffer, buffer), TIERKV_OUT_OF_RANGE, "position 7");
  REFUSED(tierkv_attention_f32(cache, seq, 0, buffer, 1, buffer), TIERKV_OUT_OF_RANGE, "queries");
  rows.type = 17;
  REFUSED(tierkv_append(cache, seq, 0, &rows, &rows), TIERKV_INVALID_ARGUMENT, "type 17");
  rows.type = TIERKV_F32;
  rows.size = 8;
  REFUSED(tierkv_append(cache, seq, 0, &rows, &rows), TIERKV_INVALID_ARGUMENT, "keys->size is 8");
  rows.size = sizeof rows;
  rows.heads = KV_HEADS + 1;
  REFUSED(tierkv_append(cache, seq, 0, &rows, &rows), TIERKV_INVALID_ARGUMENT, "heads");
  rows.heads = KV_HEADS;
  buffer[3] = NAN;
  REFUSED(tierkv_append(cache, seq, 0, &rows, &rows), TIERKV_INVALID_ARGUMENT, "channel 3 is NaN");
  OK(tierkv_layer_length(cache, seq, 0, &length));
  CHECK(length == 0);
  tierkv_config_destroy(config);
  tierkv_cache_destroy(cache);
}

typedef struct {
  tierkv_cache* cache;
  tierkv_seq idle;
  uint32_t asked;
  tierkv_pressure last;
} pressure_log;

static int remove_idle(void* user, const tierkv_pressure* pressure) {
  pressure_log* log = user;
  ++log->asked;
  log->last = *pressure;
  if (log->idle == 0) return 0;
  OK(tierkv_seq_remove(log->cache, log->idle));
  log->idle = 0;
  return 1;
}

static tierkv_status append_all(tierkv_cache* cache, tierkv_seq seq, const float* rows) {
  for (uint32_t l = 0; l < LAYERS; ++l) {
    const tierkv_status status = tierkv_append_f32(cache, seq, l, rows, rows, TOKENS);
    if (status != TIERKV_OK) return status;
  }
  return TIERKV_OK;
}

/* A budget for one long sequence: a second one fits when the handler gives up the idle one. */
static void memory_pressure(void) {
  const uint64_t one = 2ull * 2 * LAYERS * TOKENS * KV_HEADS * DIM;
  tierkv_config* config = make_config("hot=all");
  OK(tierkv_config_set_byte_budget(config, one * 7 / 4));
  pressure_log log;
  memset(&log, 0, sizeof log);
  OK(tierkv_cache_create(config, &log.cache));
  float* rows = random_rows((size_t)TOKENS * KV_HEADS * DIM);
  tierkv_seq busy = 0;
  uint32_t length = 0;
  OK(tierkv_seq_add(log.cache, &log.idle));
  OK(append_all(log.cache, log.idle, rows));
  OK(tierkv_seq_add(log.cache, &busy));
  REFUSED(append_all(log.cache, busy, rows), TIERKV_RESOURCE_EXHAUSTED, "byte_budget");
  OK(tierkv_truncate(log.cache, busy, 0));

  CHECK(tierkv_cache_set_pressure_handler(NULL, remove_idle, &log) == TIERKV_INVALID_ARGUMENT);
  OK(tierkv_cache_set_pressure_handler(log.cache, remove_idle, &log));
  OK(append_all(log.cache, busy, rows));
  OK(tierkv_length(log.cache, busy, &length));
  CHECK(length == TOKENS);
  CHECK(log.asked == 1 && log.idle == 0);
  CHECK(log.last.size == sizeof(tierkv_pressure) && log.last.seq == busy && log.last.attempt == 0);
  CHECK(log.last.budget_bytes == one * 7 / 4 && log.last.needed_bytes > 0);
  CHECK(log.last.used_bytes > 0 && log.last.used_bytes <= log.last.budget_bytes);

  /* A handler that can do nothing, and none. */
  REFUSED(append_all(log.cache, busy, rows), TIERKV_RESOURCE_EXHAUSTED, "byte_budget");
  CHECK(log.asked == 2);
  OK(tierkv_cache_set_pressure_handler(log.cache, NULL, NULL));
  CHECK(append_all(log.cache, busy, rows) == TIERKV_RESOURCE_EXHAUSTED);
  CHECK(log.asked == 2);
  tierkv_cache_destroy(log.cache);
  tierkv_config_destroy(config);
  free(rows);
}

int main(void) {
  names_and_versions();
  configuration();
  tokens_and_attention();
  adaptation_and_eviction();
  bad_calls();
  memory_pressure();
  if (failures == 0) printf("the C API holds\n");
  return failures == 0 ? 0 : 1;
}
