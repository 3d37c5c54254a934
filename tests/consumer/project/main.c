/* The same from C: append, attend, ask what it costs. */
#include <math.h>
#include <stdio.h>

#include <tierkv/c.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, TOKENS = 1024 };

static float keys[TOKENS * KV_HEADS * DIM], values[TOKENS * KV_HEADS * DIM], query[HEADS * DIM], out[HEADS * DIM];

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, tierkv_last_error());
  return 1;
}

int main(void) {
  tierkv_config* config = NULL;
  tierkv_cache* cache = NULL;
  tierkv_seq seq = 0;
  tierkv_memory memory;
  size_t i;

  if (tierkv_config_create(&config) || tierkv_config_set_model(config, "example", 1, HEADS, KV_HEADS, DIM) ||
      tierkv_config_apply_spec(config, "balanced,hot=128")) {
    return fail("config");
  }
  if (tierkv_cache_create(config, &cache) || tierkv_seq_add(cache, &seq)) return fail("create");
  for (i = 0; i < sizeof keys / sizeof *keys; ++i) {
    keys[i] = sinf(0.37f * (float)i);
    values[i] = cosf(0.71f * (float)i);
  }
  for (i = 0; i < sizeof query / sizeof *query; ++i) query[i] = cosf(0.11f * (float)i);

  if (tierkv_append_f32(cache, seq, 0, keys, values, TOKENS)) return fail("append");
  if (tierkv_attention_f32(cache, seq, 0, query, 1, out)) return fail("attention");
  for (i = 0; i < sizeof out / sizeof *out; ++i) {
    if (!(fabsf(out[i]) < 1.5f)) return fail("an output is out of range");
  }
  memory.size = sizeof memory;
  if (tierkv_memory_usage(cache, &memory)) return fail("memory");
  printf("%d tokens, %llu bytes resident, %llu as FP16\n", TOKENS, (unsigned long long)memory.total_bytes,
         (unsigned long long)memory.fp16_bytes);
  /* An error is a number and a sentence, and changes nothing. */
  if (tierkv_append_f32(cache, seq, 7, keys, values, 1) != TIERKV_OUT_OF_RANGE) return fail("a layer that is not there");
  printf("refused: %s\n", tierkv_last_error());
  tierkv_cache_destroy(cache);
  tierkv_config_destroy(config);
  return 0;
}
