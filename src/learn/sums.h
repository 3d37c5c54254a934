// sums.h — what is added up of the rows and queries that go by, and the file in which short texts add up over runs.
//
// Only sums: no row, no token, no text can be had back from them. Sums of two texts are the sum of both.
// File:     magic, version, model, frame (block, sinks, distance), tokens; then the layers; XXH3-64 of everything at the end.
// Threads:  plain values. save_sums() of two threads or processes to one path lose nothing: it locks the folder while it merges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "calib/statistics.h"
#include "tierkv/status.h"

namespace tierkv::learn {

// Queries and pairs are of two kinds: those that tables are made of, and those that only check them.
enum Kind { kFit, kHeldOut, kKinds };

// Upper triangles of dim x dim, row by row.
inline size_t triangle(uint32_t dim) { return static_cast<size_t>(dim) * (dim + 1) / 2; }

struct HeadSums {
  uint64_t keys = 0;                  // how many
  std::vector<double> key;            // [dim]: their sum, in the frame of their blocks
  std::vector<double> square;         // triangle: the sum of k k'
  std::vector<float> metric[kKinds];  // triangle: the sum of w·q q', as calib::PairSums::key_block, with |h|² left out
  std::vector<double> value[kKinds];  // of each query head: the sum of p²
  double weight = 0.0, size = 0.0;    // sums of p² and of p²·|v|²
};

struct LayerSums {
  std::vector<HeadSums> heads;  // of each KV head; none: nothing of the layer is archived
  uint64_t queries[kKinds] = {};
  void add(const LayerSums& other);
};

struct Sums {
  uint64_t tokens = 0;
  uint32_t variety = 0;  // different tokens, counted up to some number
  std::vector<LayerSums> layers;
};

// What sums are of: those of another model or frame do not add up.
struct SumsFrame {
  calib::ModelId model;
  uint32_t block = 0, sinks = 0, distance = 0;
  std::vector<bool> learnt;  // of each layer: it has sums
};

LayerSums empty_layer(uint32_t kv_heads, uint32_t heads, uint32_t dim);
bool all_finite(const LayerSums& sums);

// not_found: there is no such file. data_loss: damaged. unsupported: of a newer version. invalid_argument: of another model or
// frame.
Result<Sums> load_sums(const std::string& path, const SumsFrame& frame);
// Adds to what lies there of the same model. What is damaged or of another model is replaced; a newer version's is left alone
// (unsupported). invalid_argument: not finite.
Status save_sums(const std::string& path, const SumsFrame& frame, const Sums& sums);

}  // namespace tierkv::learn
