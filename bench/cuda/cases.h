/* cases.h — what bench/cuda/bench.py calls: pieces of attention on the device, made, checked and launched. A C interface, so that
 * one process can time them beside torch. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tierkv_bench tierkv_bench;

typedef struct tierkv_bench_shape {
  const char* archive; /* codec of whole blocks of 128 tokens */
  const char* warm;    /* of blocks of 64 tokens in front of the hot rows; used when warm_tokens > 0 */
  uint32_t warm_tokens, hot, sinks;
  uint32_t sequences;
  const uint32_t* lengths; /* tokens of each */
  uint32_t query_heads, kv_heads, head_dim;
  uint32_t sets; /* copies of all blocks at other addresses, so that none is found in a cache */
} tierkv_bench_shape;

/* Null: tierkv_bench_error() says why. Blocks are real ones of random rows, few different ones in many copies. */
tierkv_bench* tierkv_bench_make(const tierkv_bench_shape* shape);
void tierkv_bench_free(tierkv_bench* bench);
const char* tierkv_bench_error(void);

/* One launch on a stream; 0, or a cudaError_t. */
int tierkv_bench_run(tierkv_bench* bench, uint32_t set, void* stream);
/* The largest relative error of a few KV heads against double precision over the decoded rows. Waits for the device. */
double tierkv_bench_check(tierkv_bench* bench, uint32_t set);

double tierkv_bench_bytes(const tierkv_bench* bench);     /* of keys and values that one launch reads */
const char* tierkv_bench_says(const tierkv_bench* bench); /* the path, and the bits a value */

#ifdef __cplusplus
}
#endif
