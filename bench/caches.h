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

// One layer of 32 query heads on 8 KV heads of 128 channels, `spec` as apply_spec() takes it, `tokens` appended 256 at a time.
Result<FilledCache> fill_cache(const std::string& spec, uint32_t tokens);

}  // namespace tierkv::bench
