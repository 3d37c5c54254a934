// pair_sums.h — the sums over pairs of a query and the archived keys it sees, of one KV head and some queries.
//
// For a query t and every key s <= t that its layer lets it see: p is the softmax over all of them, and for those the archive would
// hold (sinks <= s <= t - distance) w = p²·|W_O(v_s - o_t)|²/|h_t|². Keys of one archive block share a frame, so w adds up to W_b
// per block and key_block gets W_b·q q', q turned to the block's start. Frames of single keys differ; key_plain takes one key for
// each query and block, drawn with probability w_s/W_b, which leaves the sum's expectation as it is.
// Layout:   matrices hold their upper triangle, row-major, in f32: a task has some hundreds of rows, and whoever adds tasks up uses
//           f64.
// Threads:  a task is one thread's; tasks do not depend on each other, and their sums do not depend on who ran them.
#pragma once

#include <cstdint>
#include <vector>

#include "calib/rope.h"
#include "calib/statistics.h"

namespace tierkv::llama {

// One KV head of one layer: the rows of the text's window so far, and what its query heads do with them.
struct HeadWindow {
  const uint16_t* keys = nullptr;    // fp16 [positions][dim]
  const uint16_t* values = nullptr;  // the same
  const float* lengths = nullptr;    // |W_O v_s|² as each query head has it: [group][stride]
  size_t stride = 0;
  const float* gram = nullptr;  // W_O'W_O of each query head, [group][dim][dim]; null: the identity
  const calib::Turner* turner = nullptr;
  uint32_t dim = 0;
  uint32_t group = 0;   // query heads
  uint32_t window = 0;  // positions a query sees, itself included; 0: all
  uint32_t block = 0, sinks = 0, distance = 0;
};

struct SeenQuery {
  uint32_t position = 0;
  const float* rows = nullptr;  // of the group, head_stride apart
  ptrdiff_t head_stride = 0;
  const float* out = nullptr;  // attention's results, [group][dim]
  float scale = 0.0f, softcap = 0.0f;
  const float* sink_logits = nullptr;  // a logit for each of the group, or null
  float residual = 1.0f;               // |h_t|²
  uint64_t seed = 0;                   // of the draws
};

class PairTask {
 public:
  void begin(const HeadWindow& head, uint32_t positions);
  void add(const SeenQuery& query);
  void finish();  // no add() afterwards until begin()

  std::vector<float> key_block, key_plain, queries;  // upper triangles
  std::vector<float> value;                          // of each query head: sum of p²/|h|²
  std::vector<float> weight;                         // of each position: sum of p²
  std::vector<float> influence;                      // of each position: sum of w·|q|²
  uint32_t rows = 0;                                 // of `queries`
  uint64_t pairs = 0;

 private:
  struct Rows {
    std::vector<float> values;
    uint32_t count = 0;
  };
  float soften(const SeenQuery& query, uint32_t i, float* scores, uint32_t n) const;
  void add_head(const SeenQuery& query, uint32_t i, uint32_t first, uint32_t last, const float* p, float norm);
  void add_block(const float* q, uint32_t start, const float* w, uint32_t first, uint32_t count, uint64_t seed);
  float* next(Rows& rows, std::vector<float>& into);
  void flush(Rows& rows, std::vector<float>& into);

  HeadWindow head_;
  std::vector<float> q_, go_, scores_, dots_, w_, scratch_;
  Rows block_rows_, plain_rows_, query_rows_;
};

}  // namespace tierkv::llama
