/* The cache from C: create, append, attend, ask what it costs. Rows are made up; a real host has them from its model. */
#include <math.h>
#include <stdio.h>

#include <tierkv/c.h>

enum { LAYERS = 2, HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 1000 };

static float keys[PROMPT * KV_HEADS * DIM], values[PROMPT * KV_HEADS * DIM];
static float queries[PROMPT * HEADS * DIM], out[PROMPT * HEADS * DIM];

/* [step] */
/* One forward step of any number of tokens. 0, or the code of what went wrong. */
static tierkv_status step(tierkv_cache* cache, tierkv_seq seq, uint32_t tokens) {
  tierkv_status status = TIERKV_OK;
  for (uint32_t layer = 0; layer < LAYERS && status == TIERKV_OK; ++layer) {
    status = tierkv_append_f32(cache, seq, layer, keys, values, tokens);
    if (status == TIERKV_OK) status = tierkv_attention_f32(cache, seq, layer, queries, tokens, out);
  }
  return status;
}
/* [/step] */

int main(void) {
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    keys[i] = sinf(0.37f * (float)i);
    values[i] = cosf(0.71f * (float)i);
  }
  for (size_t i = 0; i < sizeof queries / sizeof *queries; ++i) queries[i] = cosf(0.11f * (float)i);

  /* [create] */
  tierkv_config* config = NULL;
  tierkv_cache* cache = NULL;
  tierkv_seq seq = 0;
  if (tierkv_config_create(&config) || tierkv_config_set_model(config, "my-model v1", LAYERS, HEADS, KV_HEADS, DIM) ||
      tierkv_config_apply_spec(config, "balanced") || tierkv_cache_create(config, &cache) || tierkv_seq_add(cache, &seq)) {
    fprintf(stderr, "%s\n", tierkv_last_error()); /* a sentence: what was wrong, and what is allowed */
    return 1;
  }
  tierkv_config_destroy(config); /* the cache has its own copy */
  /* [/create] */

  if (step(cache, seq, PROMPT) || step(cache, seq, 1)) {
    fprintf(stderr, "%s\n", tierkv_last_error());
    return 1;
  }

  /* [memory] */
  tierkv_memory memory = {.size = sizeof memory};
  if (tierkv_memory_usage(cache, &memory)) return 1;
  printf("%.1f KiB resident, %.1f KiB as FP16\n", (double)(memory.total_bytes + memory.table_bytes) / 1024,
         (double)memory.fp16_bytes / 1024);
  /* [/memory] */

  tierkv_cache_destroy(cache);
  return memory.total_bytes < memory.fp16_bytes ? 0 : 1;
}
