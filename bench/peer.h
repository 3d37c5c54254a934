// peer.h — the peer: ggml's flash attention on one layer of a KV cache as libllama keeps it, in this process, on the same rows.
//
// f32 queries, an f16 mask and GGML_PREC_F32, as libllama asks for them. A program built without ggml has no peer types, and its
// cases run alone. Keys and values lie in one of two ways, and ggml is several times faster on long caches with the first:
//   by head [kv heads][tokens][head_dim]: a query head reads one contiguous piece. The best case for the peer, and the one to beat;
//   by token [tokens][kv heads][head_dim], read through a permuted view: what libllama's cache really is.
//
// Threads: one caller at a time. ggml's own workers spin for a while after a call: see settle() in turns.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/shapes.h"
#include "tierkv/status.h"

namespace tierkv::bench {

enum class PeerLayout { by_head, by_token };

class Peer {
 public:
  // "f16", "q8_0", "q4_0"; none without ggml.
  static std::vector<std::string> types();
  // Which instructions its kernels use, "avx2+avx512+avx512_vnni"; empty without ggml.
  static std::string isa();

  // Token t holds rows.key(t), rows.value(t). All tokens are there as often as it takes to reach `least_bytes`, and calls of
  // compute() take the copies in turn: a call finds the processor's caches cold.
  // REQUIRES: type is one of types().
  static Result<std::unique_ptr<Peer>> create(const std::string& type, PeerLayout layout, const SourceRows& rows, uint32_t tokens,
                                              uint64_t least_bytes, uint32_t threads);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The next calls of compute() attend with these: [count][heads][head_dim], the newest `count` tokens, causal.
  Status set_queries(const std::vector<float>& queries, uint32_t count);
  Status compute();
  // Of the last compute(): [count][heads][head_dim].
  std::vector<float> output() const;
  // What its cache makes of the source rows.
  const SourceRows& stored() const;

 private:
  struct Impl;
  explicit Peer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkv::bench
