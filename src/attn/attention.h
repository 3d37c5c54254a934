// attention.h — exact attention of some query rows over an ordered list of block views: one online softmax, packed codes read in
// place.
//
// Each view yields scores for every query row, the running (max, sum, output) state of a row absorbs them, and the outputs of
// rotated codecs are summed in their own frame and rotated back once. What is materialised: scores of one view, never keys or
// values.
//
// Numbers:  scores and sums in f32; the error against a double-precision softmax over the decoded rows is tested below 1e-4
//           relative in plain C++, 1e-3 with the kernels, 3e-2 where they may be coarse.
// Overflow: attend() and merge() are false when scores or sums of a row left the range of floats; the row is zeros then, and no
//           observer hears of its mass.
// Threads:  attend() is a pure function of its arguments and its Scratch; run it on as many threads as there are scratches.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quant/codec.h"

namespace tierkv::attn {

// A row that was evicted keeps its slot until its block is merged; its position says so.
inline constexpr uint32_t kDeadPosition = 0xFFFFFFFFu;

// Views longer than this are cut by whoever makes them: scores of one view live in L1.
inline constexpr uint32_t kMaxViewRows = 256;

inline constexpr uint32_t kNoView = 0xFFFFFFFFu;

struct BlockView {
  const quant::Codec* key_codec = nullptr;
  const quant::Codec* value_codec = nullptr;
  std::span<const std::byte> keys;
  std::span<const std::byte> values;
  quant::BlockContext ctx;  // positions are ctx.first_position + row, or ctx.positions[row] (ascending but for dead rows)
  uint32_t rows = 0;        // <= kMaxViewRows
  // A checksum of all bytes of a sealed block, for whoever keeps a copy of them elsewhere; 0: the bytes may change after this call.
  uint64_t sealed = 0;

  // The backend has its bytes and nobody else (base/far_bytes.h): `keys` and `values` are lengths, and null.
  bool away() const { return keys.data() == nullptr; }
  uint32_t position(uint32_t row) const { return ctx.positions ? ctx.positions[row] : ctx.first_position + row; }
};

// Scores and weights of a query row lie this far apart: whole vectors, the rest hidden.
inline uint32_t row_stride(const BlockView& view) { return (view.rows + 15u) / 16u * 16u; }

struct AttendParams {
  uint32_t head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  bool causal = true;
  uint32_t window = 0;            // 0: none; else a query at p sees keys at p-window+1..p
  bool coarse = false;            // quant::Workspace::coarse
  uint32_t weigh_from = kNoView;  // of this view and those behind it the weights are kept
  bool weigh_only = false;        // values are not looked at: outputs are zeros
};

// Weights as they were against the running maximum of their row at that moment: weight·e^(top - lse) is softmax mass. For whoever
// wants to know what some views received from all queries together (mass.h); it costs no second exponential. Two bytes a weight
// (quant::exp_sum_kept()), off by 2^-11 of it at most where it is above 2^-29: a token and its query heads are few bytes, written
// and read once.
struct KeptWeights {
  std::vector<uint32_t> views;    // that any query could see
  std::vector<uint16_t> weights;  // of each: [rows of the tile][the view's rows to whole vectors]; never shrinks
  std::vector<float> tops;        // of each: [rows of the tile]
  size_t used = 0;                // of weights

  void clear() { views.clear(), tops.clear(), used = 0; }
  // Room for the weights of one more view. REQUIRES: weights has it.
  uint16_t* next(size_t count) { return weights.data() + std::exchange(used, used + count); }
};

// Query rows of one KV head, ordered query by query, `group` rows (query heads) each.
struct QueryTile {
  const float* rows = nullptr;  // queries*group x head_dim
  uint32_t queries = 0;
  uint32_t group = 1;
  const uint32_t* positions = nullptr;  // one per query
  const float* sink_logits = nullptr;   // one per row of a group, or null
  uint32_t first = 0;                   // what an observer calls the first query
};

// Hears, after a tile is done and query by query, how much softmax mass the query (all heads of the group together) gave each row
// of each view it could see; then that the query is over. It is the plain way, which others are tested against: backends sum mass
// up by lanes (mass.h).
class MassObserver {
 public:
  virtual ~MassObserver() = default;
  virtual void add(uint32_t query, uint32_t view, const float* mass, uint32_t rows) = 0;
  virtual void end_query(uint32_t query) = 0;
};

struct Scratch {
  quant::Workspace codec;
  std::vector<float> query[2], acc[2];  // by frame: plain, hadamard
  std::vector<float> scores, row_max, row_sum, kept, mass;
  std::vector<size_t> kept_at;  // by view: where its scores begin in `kept`
  KeptWeights weighed;
};

// Few rows of queries over many tokens are cut along the tokens instead: partial states of runs of views, then one merge.
struct Partial {
  std::vector<float> max, sum, out;  // per row of the tile; out is not divided by sum, in the plain frame
  KeptWeights weighed;
  uint32_t first_view = 0, end_view = 0;  // of its head: whoever cuts keeps them here
};
void attend_partial(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, Partial& partial,
                    Scratch& scratch);
// `lse`, where given, gets queries*group floats: the log of the sum of e^score of each row, softcap and sink logits included;
// minus infinity for a row that sees nothing, and where a row is zeros because it overflowed.
bool merge(std::span<const Partial> partials, const QueryTile& tile, const AttendParams& params, float* out, float* lse = nullptr);

// out: queries*group x head_dim. A row that sees no key at all gets zeros. lse: as merge() has it.
// With an observer keep tiles small: all their scores are kept until the sums are known.
bool attend(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, float* out, Scratch& scratch,
            MassObserver* observer = nullptr, float* lse = nullptr);

// The sums alone, without a value being read: lse as attend() over these views would write it.
void log_sums(std::span<const BlockView> views, const QueryTile& tile, const AttendParams& params, float* lse, Scratch& scratch);

}  // namespace tierkv::attn
