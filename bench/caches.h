// caches.h — whole caches for the cases: one layer filled with random rows, and its attention checked in double precision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tierkv/cache.h"

namespace tierkv::bench {

struct FilledCache {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  std::vector<float> queries;  // one token: [query heads][head_dim]
  double append_ns = 0;        // of all tokens together

  // Attention of the newest token over everything, against double precision on the rows get() hands out.
  Status check_attention(double tolerance) const;
};

// What is in a cache: noise, of which every block gets about as much attention as every other; or topics, each of 512 tokens in a
// row, of which each query head looks at two.
enum class Contents { noise, topics };

// One layer of 32 query heads on 8 KV heads of 128 channels, `spec` as apply_spec() takes it, `tokens` appended 256 at a time.
Result<FilledCache> fill_cache(const std::string& spec, uint32_t tokens, Contents contents = Contents::noise);

// Processor time of this process, in seconds: a neighbour on the core takes time from the clock and little from this.
double processor_seconds();

}  // namespace tierkv::bench
