// statistics.h — what calibration learns of a model by running it over a text, forward passes only.
//
// Two kinds: a sample of tokens, the same ones in every layer and head, whose keys and values are kept as they are (bounded,
// whatever the length of the text); and sums over pairs of queries and keys, which need the attention itself and are added up as
// the text goes by. Everything a calibration holds (bases, steps, codebooks, predictions) is computed from these afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calib/rope.h"

namespace tierkv::calib {

// Which model, so that nothing is ever decoded with another's tables.
struct ModelId {
  std::string name;
  uint64_t fingerprint = 0;  // of weights that every quantization of a model shares
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  bool operator==(const ModelId&) const = default;
};

// Sums over pairs of a query t and a key s that lies at least `distance` before it, of what an error in that key or value would do
// to the residual stream: w = p²·|W_O(v_s - o_t)|²·scale²/|h_t|² for keys (scale: of the scores), p²/|h_t|² for values. Matrices
// are row-major, head_dim x head_dim, summed over the query heads that share the KV head.
struct PairSums {
  std::vector<double> key_block;  // w·q q', q in the frame of the key's block: R(-block_start(s)) applied to the query after RoPE
  std::vector<double> key_plain;  // w·q q', q in the frame of the key before RoPE: R(-s) applied to the query after RoPE
  std::vector<double> value;      // p²/|h_t|²·W_O'W_O
  std::vector<double> queries;    // q q' of queries as attention sees them (after RoPE), unweighted
  uint64_t query_count = 0;       // rows in `queries`
};

struct LayerSample {
  std::vector<uint16_t> keys;    // fp16, after RoPE: [sampled][kv_heads][head_dim]
  std::vector<uint16_t> values;  // fp16: the same
  std::vector<float> weight;     // [sampled][kv_heads]: sum of p² that later queries gave the token
  std::vector<float> influence;  // [sampled][kv_heads]: sum of w·|q|², w as above: what an error of the token's key would do
};

struct Statistics {
  ModelId model;
  uint32_t block = 128;             // tokens of an archive block: the frame of the keys
  uint32_t sinks = 4;               // first tokens of a sequence, which are never archived and not in the sample
  uint32_t distance = 512;          // from a query to the keys it finds in the archive
  uint64_t tokens = 0;              // of text that went by
  std::vector<Rope> ropes;          // of each layer
  std::vector<uint32_t> positions;  // [sampled], each in its own window of text
  std::vector<LayerSample> layers;
  std::vector<PairSums> pairs;  // [layer][kv head]

  uint32_t sampled() const { return static_cast<uint32_t>(positions.size()); }
  const PairSums& pair_sums(uint32_t layer, uint32_t head) const {
    return pairs[static_cast<size_t>(layer) * model.kv_heads + head];
  }
};

// The first position of the archive block that holds `position` of a sequence that was never thinned out.
inline uint32_t block_start(uint32_t position, uint32_t sinks, uint32_t block) {
  return position < sinks ? 0 : sinks + (position - sinks) / block * block;
}

}  // namespace tierkv::calib
